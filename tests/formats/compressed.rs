//! Directories of 8-bit integers as compressed-tensors stores them: what is read, and what is refused
//! by name. Rows C7 and M9 of the catalogue.

use std::fs;

use nelumbo::formats::write::write_safetensors;
use nelumbo::formats::{Checkpoint, Encoding, check_file, open};
use nelumbo::{Error, Result};
use serde_json::{Value, json};

use crate::refused;

/// The settings of a directory with a scale for each row, or for groups of 8 columns.
fn settings(group: Option<usize>) -> Value {
    let strategy = if group.is_some() { "group" } else { "channel" };
    json!({
        "quant_method": "compressed-tensors", "format": "int-quantized",
        "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": null,
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": null, "input_activations": null,
            "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": strategy,
                "group_size": group, "dynamic": false, "actorder": null},
        }},
    })
}

/// The tensors of a directory: codes of 2 rows of 16 columns, and whatever is beside them.
fn opened(settings: &Value, beside: &[(&str, &[usize], Encoding, &[f32])]) -> Result<Checkpoint> {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"quantization_config": settings});
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let codes: Vec<u8> = (0..32)
        .map(|i: i32| (8 * i - 120).clamp(-127, 127) as i8 as u8)
        .collect();
    let bytes: Vec<Vec<u8>> = beside
        .iter()
        .map(|(_, _, e, values)| e.encode(values))
        .collect();
    let mut parts = vec![("a.weight", &[2, 16][..], Encoding::I8, &codes[..])];
    for ((name, shape, encoding, _), bytes) in beside.iter().zip(&bytes) {
        parts.push((name, shape, *encoding, bytes));
    }
    let path = dir.path().join("model.safetensors");
    write_safetensors(&path, &parts).unwrap();
    // a file alone may be a part of such a directory
    check_file(&path, "safetensors").unwrap();
    Ok(open(dir.path())?.checkpoint().clone())
}

fn rows(checkpoint: &Checkpoint, rows: std::ops::Range<usize>) -> Vec<f32> {
    let mut values = Vec::new();
    let info = checkpoint.require("a.weight").unwrap();
    checkpoint.read_rows(info, rows, &mut values).unwrap();
    values
}

#[test]
fn codes_are_multiplied_with_the_scales_of_their_rows_or_groups() {
    for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16] {
        let scale: (&str, &[usize], _, &[f32]) =
            ("a.weight_scale", &[2, 1], encoding, &[0.5, -2.0]);
        let checkpoint = opened(&settings(None), &[scale]).unwrap();
        // the scales are a part of what they scale
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a.weight"]);
        let info = checkpoint.require("a.weight").unwrap();
        assert_eq!(
            (info.encoding, info.scaled_columns()),
            (Encoding::I8, Some(16))
        );
        assert_eq!(info.bytes(), 32 + encoding.bytes_for(2).unwrap() as u64);
        assert_eq!(rows(&checkpoint, 0..2)[..2], [-60.0, -56.0]);
        assert_eq!(rows(&checkpoint, 1..2)[..2], [-16.0, -32.0]);
    }
    let scales = [1.0, 10.0, 100.0, 1000.0];
    let scale: (&str, &[usize], _, &[f32]) = ("a.weight_scale", &[2, 2], Encoding::F32, &scales);
    let checkpoint = opened(&settings(Some(8)), &[scale]).unwrap();
    let values = rows(&checkpoint, 0..2);
    assert_eq!(
        [values[7], values[8], values[16], values[31]],
        [-64.0, -560.0, 800.0, 127_000.0]
    );
    // both at once: which of them a tensor has, the shape of its scales tells
    let mut both = settings(Some(8));
    both["config_groups"]["group_1"] = settings(None)["config_groups"]["group_0"].clone();
    let scale: (&str, &[usize], _, &[f32]) = ("a.weight_scale", &[2, 1], Encoding::F32, &[1.0; 2]);
    assert_eq!(rows(&opened(&both, &[scale]).unwrap(), 0..1)[0], -120.0);
    // the older name of the same
    let mut older = settings(None);
    older["format"] = json!("naive-quantized");
    opened(&older, &[scale]).unwrap();
}

#[test]
fn c7_what_else_can_be_stored_so_is_refused_by_name() {
    let scale: (&str, &[usize], _, &[f32]) = ("a.weight_scale", &[2, 1], Encoding::F32, &[1.0; 2]);
    let weights = "/config_groups/group_0/weights";
    for (place, value, parts) in [
        (
            "/format",
            json!("pack-quantized"),
            &["quantization_config.format", "pack-quantized"][..],
        ),
        (
            "/format",
            json!("float-quantized"),
            &["float-quantized", "int-quantized"],
        ),
        (
            "/format",
            json!("nvfp4-pack-quantized"),
            &["nvfp4-pack-quantized"],
        ),
        (
            "/quantization_status",
            json!("frozen"),
            &["quantization_status", "frozen"],
        ),
        (
            "/quant_method",
            json!("gptq"),
            &["quantization_config", "\"gptq\""],
        ),
        (
            "/num_bits",
            json!(4),
            &["group_0.weights.num_bits", "\"4\""],
        ),
        ("/type", json!("float"), &["weights.type", "float", "int"]),
        ("/symmetric", json!(false), &["weights.symmetric", "false"]),
        ("/dynamic", json!(true), &["weights.dynamic", "true"]),
        (
            "/strategy",
            json!("tensor"),
            &["weights.strategy", "tensor", "channel, group"],
        ),
        ("/strategy", json!("block"), &["weights.strategy", "block"]),
        ("/strategy", Value::Null, &["weights.strategy", "null"]),
        ("/actorder", json!("group"), &["weights.actorder", "group"]),
    ] {
        let mut settings = settings(None);
        let whole = match settings.pointer(place) {
            Some(_) => place.to_owned(),
            None => format!("{weights}{place}"),
        };
        *settings.pointer_mut(&whole).unwrap() = value;
        let error = refused(opened(&settings, &[scale]), parts);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("config.json"), "{error}");
    }
    for (place, value, part) in [
        ("/config_groups", json!(3), "config_groups"),
        ("/config_groups/group_0", json!(3), "group_0.weights"),
        (
            "/config_groups/group_0/weights",
            Value::Null,
            "group_0.weights",
        ),
    ] {
        let mut settings = settings(None);
        *settings.pointer_mut(place).unwrap() = value;
        refused(opened(&settings, &[scale]), &["config.json", part]);
    }
    for size in [json!(0), json!(-1), json!("x"), Value::Null, json!(1e30)] {
        let mut settings = settings(Some(8));
        settings["config_groups"]["group_0"]["weights"]["group_size"] = size;
        refused(
            opened(&settings, &[scale]),
            &["weights.group_size", "from 1"],
        );
    }
}

#[test]
fn m9_codes_without_fitting_scales_are_refused_by_their_name() {
    let f32 = Encoding::F32;
    refused(
        opened(&settings(None), &[]),
        &["tensor a.weight:", "a.weight_scale is missing"],
    );
    refused(
        opened(&Value::Null, &[]),
        &["dtype of tensor a.weight", "\"I8\""],
    );
    type Beside<'a> = (&'a str, &'a [usize], Encoding, &'a [f32]);
    let scale: Beside = ("a.weight_scale", &[2, 1], f32, &[1.0; 2]);
    for (group, beside, parts) in [
        (
            None,
            vec![("a.weight_scale", &[1, 1][..], f32, &[1.0; 1][..])],
            &["a.weight_scale", "[1, 1]", "[2, 1]"][..],
        ),
        (
            None,
            vec![("a.weight_scale", &[2], f32, &[1.0; 2])],
            &["a.weight_scale", "[2]"],
        ),
        (
            None,
            vec![("a.weight_scale", &[2, 2], f32, &[1.0; 4])],
            &["a.weight_scale", "[2, 2]"],
        ),
        (
            Some(8),
            vec![("a.weight_scale", &[2, 1], f32, &[1.0; 2])],
            &["a.weight_scale", "[2, 2]"],
        ),
        (
            Some(5),
            vec![("a.weight_scale", &[2, 3], f32, &[1.0; 6])],
            &["a.weight_scale", "divide 16"],
        ),
        (
            None,
            vec![("a.weight_scale", &[2, 1], Encoding::I8, &[1.0; 2])],
            &["a.weight_scale"],
        ),
        (
            None,
            vec![scale, ("a.weight_zero_point", &[2, 1], f32, &[0.0; 2])],
            &["tensor a.weight:", "zero point", "symmetric"],
        ),
        (
            None,
            vec![scale, ("b", &[4], Encoding::I8, &[0.0; 4])],
            &["tensor b:", "b_scale is missing"],
        ),
    ] {
        refused(opened(&settings(group), &beside), parts);
    }
    // scales that are no numbers make weights that are none
    let scale: Beside = ("a.weight_scale", &[2, 1], f32, &[f32::NAN, 1.0]);
    let checkpoint = opened(&settings(None), &[scale]).unwrap();
    assert!(rows(&checkpoint, 0..1)[0].is_nan());
}

//! Every variant of every kernel, without a device: it is what the Rust side says, it keeps the
//! limits that all kernels are written for, and it translates to the language of each backend.
//! Translation is not execution: what runs is told by `tests/kernels`.

use naga::back::{PipelineConstants, glsl, hlsl, msl, pipeline_constants::process_overrides, spv};
use naga::proc::{BoundsCheckPolicies, IndexableLength};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ShaderStage, TypeInner};
use nelumbo::gpu::reflect::{self, Reflection};
use nelumbo::gpu::{Target, Variant};
use nelumbo::kernels::{ALL, Entry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const MAX_STORAGE_BUFFERS: usize = 8;
const MAX_INVOCATIONS: u32 = 256;
const MAX_WORKGROUP_BYTES: u32 = 16 * 1024;

/// Every variant with its kernel's entry in the registry.
fn variants() -> impl Iterator<Item = (&'static Entry, Variant)> {
    ALL.iter()
        .flat_map(|entry| (entry.variants)().into_iter().map(move |v| (entry, v)))
}

fn reflected(variant: &Variant) -> Reflection {
    let source = variant.compose(Target::Native);
    reflect::reflect(&source, variant.kernel.name)
        .unwrap_or_else(|e| panic!("{variant}: {}", e.message))
}

#[test]
fn the_registry_is_in_order_and_names_each_kernel_once() {
    let names: Vec<&str> = ALL.iter().map(|entry| entry.kernel.name).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    for (entry, variant) in variants() {
        assert_eq!(variant.kernel.name, entry.kernel.name);
    }
}

#[test]
fn a_kernel_is_named_after_its_file_and_its_entry_point() {
    for (entry, variant) in variants() {
        let file = format!("{}.wgsl", entry.kernel.name);
        assert!(
            entry.kernel.parts.iter().any(|p| p.name == file),
            "{variant}: no part {file}"
        );
        reflected(&variant); // refuses another entry point
    }
}

#[test]
fn parameters_are_the_same_in_rust_and_wgsl() {
    for (entry, variant) in variants() {
        let found = reflected(&variant).params;
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(n, k)| (n.as_str(), k.as_str()))
            .collect();
        assert_eq!(found, entry.kernel.params, "{variant}");
    }
}

#[test]
fn bindings_are_few_and_in_order() {
    for (_, variant) in variants() {
        let bindings = reflected(&variant).bindings;
        assert!(
            bindings.len() <= MAX_STORAGE_BUFFERS,
            "{variant}: {} storage buffers",
            bindings.len()
        );
        assert!(
            bindings.is_sorted_by(|a, b| a.index < b.index),
            "{variant}: {bindings:?}"
        );
        // the same order in the text, so that a call reads as the shader does
        let source = variant.compose(Target::Native);
        let places: Vec<Option<usize>> = bindings
            .iter()
            .map(|b| source.find(&format!("@binding({}) var<storage", b.index)))
            .collect();
        assert!(
            places.iter().all(Option::is_some),
            "{variant}: {bindings:?}"
        );
        let names: BTreeSet<&str> = bindings.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names.len(), bindings.len(), "{variant}: {bindings:?}");
    }
}

#[test]
fn overrides_that_are_set_exist() {
    for (_, variant) in variants() {
        let known = reflected(&variant).overrides;
        for (name, value) in variant.overrides() {
            assert!(
                known.iter().any(|k| k == name),
                "{variant}: no override {name} for {value}"
            );
        }
    }
}

/// The house rules that a compiler does not check.
#[test]
fn parts_keep_the_house_rules() {
    let parts: BTreeMap<&str, _> = variants()
        .flat_map(|(_, v)| v.all_parts().map(|p| (p.name, p)).collect::<Vec<_>>())
        .collect();
    for (name, part) in parts {
        let lines = part
            .source
            .lines()
            .map(|l| l.split("//").next().unwrap_or_default());
        let code: Vec<&str> = lines.collect();
        let code = code.join("\n");
        assert!(
            part.source.starts_with("//"),
            "{name}: starts with what it is"
        );
        assert!(
            !code.contains("enable "),
            "{name}: directives are the composer's"
        );
        assert!(
            !code.contains("dot("),
            "{name}: the order inside of dot is free"
        );
        let subgroup = ["subgroup", "quadBroadcast", "quadSwap"]
            .iter()
            .any(|w| code.contains(w));
        assert_eq!(subgroup, part.subgroups, "{name}: uses subgroup operations");
        for free in [
            "subgroupAdd",
            "subgroupMul",
            "subgroupInclusive",
            "subgroupExclusive",
        ] {
            assert!(
                !code.contains(free),
                "{name}: the order inside of {free} is free"
            );
        }
        assert!(
            !code.contains("atomic<f"),
            "{name}: sums of floats by atomics have no order"
        );
    }
}

#[test]
fn no_shader_is_an_orphan() {
    let used: BTreeSet<String> = variants()
        .flat_map(|(_, v)| v.all_parts().map(|p| p.name.to_owned()).collect::<Vec<_>>())
        .collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut found = BTreeSet::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "wgsl") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
                found.insert(name.replace('\\', "/"));
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    assert_eq!(found, used);
}

/// Where a line of the composed text comes from, for both targets.
#[test]
fn lines_of_the_composed_text_are_found_in_their_parts() {
    for (_, variant) in variants() {
        for target in [Target::Native, Target::Web] {
            let text = variant.compose(target);
            for (i, line) in text.lines().enumerate() {
                let (part, number) = variant.locate(target, i + 1);
                let source = variant.all_parts().find(|p| p.name == part).unwrap().source;
                let original = source.lines().nth(number - 1).unwrap_or_default();
                assert!(
                    line == original || line.starts_with("enable "),
                    "{variant}: {part}:{number}"
                );
            }
        }
    }
}

#[test]
fn every_variant_keeps_the_limits_and_translates() {
    let mut translated = 0;
    for (_, variant) in variants() {
        let source = variant.compose(Target::Native);
        let module = naga::front::wgsl::parse_str(&source).unwrap();
        let info = Validator::new(ValidationFlags::all(), Capabilities::all())
            .validate(&module)
            .unwrap_or_else(|e| panic!("{variant}: {}", e.emit_to_string(&source)));
        let chosen: PipelineConstants = variant
            .overrides()
            .map(|(n, v)| (n.to_owned(), f64::from(v)))
            .collect();
        for constants in [PipelineConstants::default(), chosen] {
            let entry = Some((ShaderStage::Compute, variant.kernel.name));
            let (module, info) = process_overrides(&module, &info, entry, &constants)
                .unwrap_or_else(|e| panic!("{variant}: {e}"));
            keep_limits(&variant, &module);
            if variant.uses_coop() {
                translate_coop(&variant, &module, &info);
            } else {
                translate(&variant, &module, &info);
            }
            translated += 1;
        }
    }
    println!(
        "{translated} modules to SPIR-V, MSL, HLSL, GLSL 430 and GLSL ES 310, of cooperative matrices to the first two"
    );
}

fn keep_limits(variant: &Variant, module: &Module) {
    let size = module.entry_points[0].workgroup_size;
    let invocations: u32 = size.iter().product();
    assert!(
        (1..=MAX_INVOCATIONS).contains(&invocations),
        "{variant}: {size:?} invocations"
    );
    let shared = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    let bytes: u32 = shared
        .map(|(_, variable)| match module.types[variable.ty].inner {
            TypeInner::Array { size, stride, .. } => match size.resolve(module.to_ctx()).unwrap() {
                IndexableLength::Known(len) => len * stride,
                IndexableLength::Dynamic => panic!("{variant}: {:?} has no length", variable.name),
            },
            ref other => other.size(module.to_ctx()),
        })
        .map(|bytes| bytes.next_multiple_of(16)) // as WebGPU counts them
        .sum();
    assert!(
        bytes <= MAX_WORKGROUP_BYTES,
        "{variant}: {bytes} bytes of workgroup memory"
    );
}

/// Cooperative matrices are in SPIR-V and MSL alone.
fn translate_coop(variant: &Variant, module: &Module, info: &ModuleInfo) {
    let (words, text) = translate_spv_and_msl(variant, module, info);
    // OpTypeCooperativeMatrixKHR
    assert!(
        words.iter().any(|word| word & 0xffff == 4456),
        "{variant}: SPIR-V without a matrix"
    );
    assert!(
        text.contains("simdgroup_multiply_accumulate"),
        "{variant}: MSL without a multiplication"
    );
}

fn translate_spv_and_msl(
    variant: &Variant,
    module: &Module,
    info: &ModuleInfo,
) -> (Vec<u32>, String) {
    let (stage, name) = (ShaderStage::Compute, variant.kernel.name.to_owned());
    let entry = Some((stage, name.clone()));

    let options = spv::Options {
        lang_version: (1, 3),
        ..spv::Options::default()
    };
    let pipeline = spv::PipelineOptions {
        shader_stage: stage,
        entry_point: name,
    };
    let words = spv::write_vec(module, info, &options, Some(&pipeline))
        .unwrap_or_else(|e| panic!("{variant}: SPIR-V: {e}"));
    assert_eq!(words[0], 0x0723_0203, "{variant}");

    let options = msl::Options {
        lang_version: (2, 4),
        ..msl::Options::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: entry,
        ..msl::PipelineOptions::default()
    };
    let (text, written) = msl::write_string(module, info, &options, &pipeline)
        .unwrap_or_else(|e| panic!("{variant}: MSL: {e}"));
    assert!(
        text.contains("kernel void") && written.entry_point_names.iter().all(Result::is_ok),
        "{variant}: MSL"
    );
    (words, text)
}

fn translate(variant: &Variant, module: &Module, info: &ModuleInfo) {
    translate_spv_and_msl(variant, module, info);
    let (stage, name) = (ShaderStage::Compute, variant.kernel.name.to_owned());
    let entry = Some((stage, name.clone()));

    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_4,
        ..hlsl::Options::default()
    };
    let pipeline = hlsl::PipelineOptions { entry_point: entry };
    let mut text = String::new();
    let written = hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(module, info, None)
        .unwrap_or_else(|e| panic!("{variant}: HLSL: {e}"));
    assert!(
        text.contains("[numthreads(") && written.entry_point_names.iter().all(Result::is_ok),
        "{variant}: HLSL"
    );

    if variant.all_parts().any(|p| p.int64) {
        return; // GLSL has no 64-bit integers of its own
    }
    for version in [glsl::Version::Desktop(430), glsl::Version::new_gles(310)] {
        let options = glsl::Options {
            version,
            ..glsl::Options::default()
        };
        let pipeline = glsl::PipelineOptions {
            shader_stage: stage,
            entry_point: name.clone(),
            multiview: None,
        };
        let mut text = String::new();
        glsl::Writer::new(
            &mut text,
            module,
            info,
            &options,
            &pipeline,
            BoundsCheckPolicies::default(),
        )
        .and_then(|mut writer| writer.write())
        .unwrap_or_else(|e| panic!("{variant}: GLSL {version}: {e}"));
        assert!(text.contains("void main()"), "{variant}: GLSL {version}");
    }
}

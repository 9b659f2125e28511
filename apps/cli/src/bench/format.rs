//! Results as a table, as CSV, and as JSON.

use serde::Serialize;
use serde_json::Value;

use super::row::Row;
pub use crate::output::markdown_table as table;

/// Names of the columns, as llama-bench has them, and one of our own.
const COLUMNS: [&str; 8] = [
    "model",
    "size",
    "params",
    "backend",
    "ngl",
    "test",
    "t/s",
    "predicted",
];
/// Columns of words; the others are aligned to the right.
const WORDS: [usize; 2] = [0, 3];

/// A table of tests in Markdown that is readable as it is.
pub fn markdown(rows: &[Row]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    table(&COLUMNS.map(str::to_owned), &WORDS, &cells)
}

fn cells(row: &Row) -> Vec<String> {
    // what is no default must not pass for one
    let mode = match row.model.numerics.as_str() {
        "canonical" => String::new(),
        other => format!(" {other}"),
    };
    vec![
        row.model.model_type.clone() + &mode,
        format!(
            "{:.2} MiB",
            row.model.model_size as f64 / f64::from(1 << 20)
        ),
        format!("{:.2} M", row.model.model_n_params as f64 / 1e6),
        row.machine.backend.clone(),
        // every layer is on the device
        "99".to_owned(),
        row.test.clone(),
        format!("{:.2} ± {:.2}", row.avg_ts, row.stddev_ts),
        row.predicted_ts
            .map_or_else(|| "-".to_owned(), |ts| format!("{ts:.2}")),
    ]
}

/// The row as one JSON object on one line.
pub fn json_line(row: &impl Serialize) -> String {
    serde_json::to_string(row).expect("a row is plain data")
}

/// One JSON array, a row a line.
pub fn json(rows: &[impl Serialize]) -> String {
    let lines: Vec<String> = rows.iter().map(|row| json_line(row)).collect();
    format!("[\n  {}\n]", lines.join(",\n  "))
}

/// A line of names, then a line for each row; lists as JSON writes them.
pub fn csv(rows: &[impl Serialize]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let value = serde_json::to_value(row).expect("a row is plain data");
        let fields = value.as_object().expect("a row has fields");
        if index == 0 {
            text += &fields
                .keys()
                .map(|k| quoted(k))
                .collect::<Vec<_>>()
                .join(",");
            text.push('\n');
        }
        let cells: Vec<String> = fields
            .values()
            .map(|value| match value {
                Value::String(text) => quoted(text),
                other => quoted(&other.to_string()),
            })
            .collect();
        text += &cells.join(",");
        text.push('\n');
    }
    text
}

/// A cell in quotes, those within it doubled.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn a_table_compares_by_eye() {
        let mut long = sample();
        long.test = "pp8".to_owned();
        long.avg_ts = 1234.5678;
        long.model.numerics = "fast".to_owned();
        let foretold = sample().with_prediction(Some(25.0));
        let text = markdown(&[foretold, long]);
        let expected = "\
| model         |       size |   params | backend | ngl |         test |            t/s | predicted |
| ------------- | ---------: | -------: | ------- | --: | -----------: | -------------: | --------: |
| llama 135M q8 | 136.40 MiB | 134.52 M | vulkan  |  99 | tg10 @ d512 |   20.56 ± 4.19 |     25.00 |
";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        let widths: Vec<usize> = lines.iter().map(|l| l.chars().count()).collect();
        assert!(widths.iter().all(|w| *w == widths[0]), "{text}");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(lines[0]), words(expected.lines().next().unwrap()));
        assert_eq!(words(lines[2]), words(expected.lines().nth(2).unwrap()));
        assert!(
            lines[1].contains(": |") && lines[1].starts_with("| ---"),
            "{text}"
        );
        assert!(lines[3].contains("1234.57 ± 4.19 |         - |"), "{text}");
        assert!(lines[3].starts_with("| llama 135M q8 fast |"), "{text}");
    }

    #[test]
    fn json_is_an_array_of_rows_that_name_adapter_and_commit() {
        let value: Value = serde_json::from_str(&json(&[sample(), sample()])).unwrap();
        let rows = value.as_array().unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["adapter"], rows[0]["adapter_name"]);
        assert_eq!(rows[0]["commit"], "0123456789ab");
        assert_eq!(rows[1]["samples_ns"].as_array().unwrap().len(), 3);
        let line: Value = serde_json::from_str(&json_line(&sample())).unwrap();
        assert_eq!(line, rows[0]);
        assert_eq!(
            json(&[] as &[Row]).split_whitespace().collect::<String>(),
            "[]"
        );
    }

    #[test]
    fn csv_keeps_commas_and_quotes_in_their_cells() {
        let text = csv(&[sample(), sample()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[1]), (3, lines[2]));
        assert!(lines[0].starts_with("\"build_commit\",\"build_version\""));
        assert!(lines[1].contains("\"a,b.gguf\"") && lines[1].contains("\"A \"\"fast\"\" one"));
        assert!(lines[1].contains("\"[400000000,500000000,600000000]\""));
        let cells = |line: &str| line.split("\",\"").count();
        assert_eq!(cells(lines[0]), cells(lines[1]));
        assert_eq!(csv(&[] as &[Row]), "");
    }
}

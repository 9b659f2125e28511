//! Tables: for people, and in Markdown that is readable as it is.

/// Columns as wide as their widest cell, two spaces apart; one line a row.
pub fn table<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    let widths: [usize; N] = std::array::from_fn(|column| widest(&rows, column));
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A table in Markdown; the columns with these indices, of words, are aligned to the left.
///
/// # Panics
/// When a row has fewer cells than there are columns.
pub fn markdown_table(columns: &[String], words: &[usize], rows: &[Vec<String>]) -> String {
    // a column of figures has a line of one dash and a colon at least
    let width = |column: usize| {
        let name = columns[column].chars().count();
        widest(rows, column).max(name).max(2)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cell: &dyn Fn(usize, usize) -> String| {
        let cells: Vec<String> = (0..widths.len()).map(|i| cell(i, widths[i])).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let aligned = |text: &str, column: usize, width: usize| {
        if words.contains(&column) {
            format!("{text:width$}")
        } else {
            format!("{text:>width$}")
        }
    };
    let mut text = line(&|i, width| aligned(&columns[i], i, width));
    text += &line(&|i, width| {
        if words.contains(&i) {
            "-".repeat(width)
        } else {
            "-".repeat(width - 1) + ":"
        }
    });
    for row in rows {
        text += &line(&|i, width| aligned(&row[i], i, width));
    }
    text
}

/// Characters of the widest cell of a column.
fn widest(rows: &[impl AsRef<[String]>], column: usize) -> usize {
    let widths = rows.iter().map(|row| row.as_ref()[column].chars().count());
    widths.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_without_trailing_blanks() {
        let rows = [["A", "B"], ["long", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(rows.into_iter()), "A     B\nlong  x\n");
    }

    #[test]
    fn words_lie_to_the_left_and_figures_to_the_right() {
        let columns = ["of", "n"].map(str::to_owned);
        let rows = [vec!["rows".to_owned(), "12".to_owned()]];
        let expected = "| of   |  n |\n| ---- | -: |\n| rows | 12 |\n";
        assert_eq!(markdown_table(&columns, &[0], &rows), expected);
    }
}

//! A page of results: one file, with nothing to fetch.

use std::fs;
use std::path::Path;

use minijinja::{AutoEscape, Environment, Value, context};

use crate::exit::Failure;

/// What a page shows, from top to bottom.
#[derive(Debug, Clone)]
pub struct Page {
    /// The heading, and the window's title.
    pub title: String,
    /// What it is about: a name and a value each.
    pub facts: Vec<(String, String)>,
    pub sections: Vec<Section>,
}

/// A heading with what belongs to it.
#[derive(Debug, Clone, Default)]
pub struct Section {
    pub heading: String,
    /// Sentences before table and plots.
    pub text: Vec<String>,
    pub table: Option<Table>,
    pub plots: Vec<Plot>,
}

/// Rows of words.
#[derive(Debug, Clone)]
pub struct Table {
    pub header: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

/// A cell, and how it is meant.
#[derive(Debug, Clone)]
pub struct Cell {
    pub text: String,
    /// `good`, `bad`, `number`, or nothing.
    pub class: &'static str,
}

/// A drawing with its caption.
#[derive(Debug, Clone)]
pub struct Plot {
    pub caption: String,
    /// As `svg.rs` makes it: the one thing that is not escaped.
    pub svg: String,
}

impl Cell {
    /// Words.
    pub fn words(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            class: "",
        }
    }

    /// Aligned to the right.
    pub fn number(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            class: "number",
        }
    }
}

impl Page {
    /// The whole page.
    pub fn html(&self) -> String {
        let mut env = Environment::new();
        env.set_auto_escape_callback(|_| AutoEscape::Html);
        let template = env.template_from_named_str("page.html", include_str!("page.html"));
        let page = template.and_then(|template| template.render(self.value()));
        page.expect("the template is part of the program, and takes what a page has")
    }

    fn value(&self) -> Value {
        let facts: Vec<Value> = self
            .facts
            .iter()
            .map(|(name, value)| context! { name, value })
            .collect();
        let sections: Vec<Value> = self.sections.iter().map(Section::value).collect();
        context! { title => &*self.title, facts, sections }
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        fs::write(path, self.html()).map_err(Failure::io(path))
    }
}

impl Section {
    fn value(&self) -> Value {
        let table = self.table.as_ref().map(|table| {
            let cell = |cell: &Cell| context! { text => &*cell.text, class => cell.class };
            let row = |row: &Vec<Cell>| row.iter().map(cell).collect::<Vec<Value>>();
            let rows: Vec<Vec<Value>> = table.rows.iter().map(row).collect();
            context! { header => table.header.clone(), rows }
        });
        let plot = |plot: &Plot| context! { caption => &*plot.caption, svg => &*plot.svg };
        let plots: Vec<Value> = self.plots.iter().map(plot).collect();
        context! { heading => &*self.heading, text => self.text.clone(), table, plots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_on_the_page_and_nothing_is_fetched() {
        let page = Page {
            title: "A <title>".to_owned(),
            facts: vec![("model".to_owned(), "a&b.gguf".to_owned())],
            sections: vec![Section {
                heading: "Speed".to_owned(),
                text: vec!["Said \"so\".".to_owned()],
                table: Some(Table {
                    header: vec!["#".to_owned(), "verdict".to_owned()],
                    rows: vec![vec![
                        Cell::number("1"),
                        Cell {
                            text: "wrong".to_owned(),
                            class: "bad",
                        },
                    ]],
                }),
                plots: vec![Plot {
                    caption: "bars".to_owned(),
                    svg: "<svg><path/></svg>".to_owned(),
                }],
            }],
        };
        let html = page.html();
        for part in [
            "<title>A &lt;title&gt;</title>",
            "a&amp;b.gguf",
            "<h2>Speed</h2>",
            "<td class=\"bad\">wrong</td>",
            "<svg><path/></svg>",
            "<figcaption>bars</figcaption>",
            "prefers-color-scheme",
            "width=device-width",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(
            !html.contains("http") && !html.contains("<script") && !html.contains("<link"),
            "{html}"
        );
    }
}

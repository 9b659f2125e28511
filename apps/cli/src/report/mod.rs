//! What results look like beside a table: plots as SVG, and a page that holds everything by itself.

pub mod page;
pub mod svg;

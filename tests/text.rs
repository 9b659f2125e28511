//! Text to ids and back for every family: tokenizers of both layouts, templates, what ends an answer, and
//! that no message holds a control token. The fixtures' folders tell where they come from.

#[path = "text/beyond.rs"]
mod beyond;
#[path = "text/common.rs"]
mod common;
#[path = "text/control.rs"]
mod control;
#[path = "text/parity.rs"]
mod parity;
#[path = "text/stops.rs"]
mod stops;
#[path = "text/surrogates.rs"]
mod surrogates;
#[path = "text/templates.rs"]
mod templates;

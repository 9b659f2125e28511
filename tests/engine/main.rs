//! The engine: how tokens are drawn, and who gets his turn when.

#[path = "../common/mod.rs"]
mod common;

mod sampling;
mod scheduler;
mod thread;

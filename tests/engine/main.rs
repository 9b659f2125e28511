//! The engine: how tokens are drawn, who gets his turn when, and what a profile tells.

#[path = "../common/mod.rs"]
mod common;

mod batching;
mod embed;
mod sampling;
mod scheduler;
mod thread;
mod times;
mod trial;

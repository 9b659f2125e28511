//! The engine: how tokens are drawn, who gets his turn when, and what a profile tells.

#[path = "../common/mod.rs"]
mod common;

mod batching;
mod company;
mod draft;
mod embed;
mod long;
mod pool;
mod sampling;
mod scheduler;
mod serving;
mod speculate;
mod thread;
mod times;
mod trial;
mod windows;

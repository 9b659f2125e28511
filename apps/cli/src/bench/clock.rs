//! What benches measure time by: the wall, or on a software adapter the CPU time of the process.

use std::time::Instant;

/// Seconds, from some beginning on.
pub enum Clock {
    /// The wall clock.
    Wall(Instant),
    /// CPU time of the process over this many cores: what idle cores would take, whatever else the
    /// machine does.
    Cpu(f64),
}

impl Clock {
    /// CPU time for software adapters, where the system tells it.
    pub fn for_adapter(software: bool) -> Clock {
        match std::thread::available_parallelism() {
            Ok(cores) if software && cpu_seconds().is_some() => Clock::Cpu(cores.get() as f64),
            _ => Clock::Wall(Instant::now()),
        }
    }

    /// In words.
    pub fn name(&self) -> String {
        match self {
            Clock::Wall(_) => "wall clock".to_owned(),
            Clock::Cpu(cores) => format!("CPU time / {cores} cores"),
        }
    }

    /// Seconds.
    pub fn now(&self) -> f64 {
        match self {
            Clock::Wall(start) => start.elapsed().as_secs_f64(),
            Clock::Cpu(cores) => cpu_seconds().unwrap_or_default() / cores,
        }
    }
}

/// CPU time of all threads of this process, on systems that tell it in nanoseconds.
fn cpu_seconds() -> Option<f64> {
    let mut nanoseconds = 0.0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        // a thread that has ended in between counts no more
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok();
        let time = text.as_deref().and_then(|t| t.split(' ').next());
        nanoseconds += time.map_or(Some(0.0), |t| t.parse::<f64>().ok())?;
    }
    (nanoseconds > 0.0).then_some(nanoseconds / 1e9)
}

//! When to try again, when to wait, and when to give up.

use std::time::Duration;

use crate::exit::{Failure, say};

/// How patient a download is.
#[derive(Debug, Clone)]
pub struct Patience {
    /// To find the host and to connect. Short, so that the next source gets its turn.
    pub connect: Duration,
    /// Without a byte.
    pub stall: Duration,
    /// Failed attempts in a row before the source is given up.
    pub attempts: u32,
    /// The wait after the first failed attempt; doubles with each.
    pub backoff: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            attempts: 5,
            backoff: Duration::from_millis(500),
        }
    }
}

impl Patience {
    /// Attempts until one succeeds.
    pub fn until_done<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Setback>,
    ) -> Result<T, Refusal> {
        let mut failed = 0;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(setback) => self.wait_after(setback, &mut failed, &say)?,
            }
        }
    }

    /// Waits before the next attempt, or ends with what no attempt will change.
    pub fn wait_after(
        &self,
        setback: Setback,
        failed: &mut u32,
        tell: &dyn Fn(&str),
    ) -> Result<(), Refusal> {
        let (why, wait) = match setback {
            Setback::Refused(refusal) => return Err(refusal),
            Setback::Again(why, wait) => (why, wait),
        };
        *failed += 1;
        if *failed >= self.attempts {
            return Err(Refusal::Next(format!("{why} ({failed} attempts)")));
        }
        let wait = wait.unwrap_or_else(|| self.backoff_after(*failed));
        let seconds = wait.as_secs_f32();
        tell(&format!("{why}; trying again in {seconds:.1} s"));
        std::thread::sleep(wait);
        Ok(())
    }

    /// Doubles with each failure, spread by up to a half so that many clients do not
    /// come back at the same moment.
    fn backoff_after(&self, failed: u32) -> Duration {
        let base = self.backoff * (1 << failed.saturating_sub(1).min(6));
        let spread = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |now| now.subsec_nanos() % 500);
        base + base * spread / 1000
    }
}

/// Why a source did not deliver.
#[derive(Debug)]
pub enum Refusal {
    /// It cannot or will not: the next source may.
    Next(String),
    /// It delivered something else: nobody should go on as if nothing had happened.
    Wrong(String),
    /// Our own disk failed.
    Local(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Local(failure)
    }
}

/// One attempt's end, if it is not the whole file.
pub enum Setback {
    /// Worth another try, after this long if the server said so.
    Again(String, Option<Duration>),
    Refused(Refusal),
}

impl From<Refusal> for Setback {
    fn from(refusal: Refusal) -> Setback {
        Setback::Refused(refusal)
    }
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Setback {
        Setback::Refused(Refusal::Local(failure))
    }
}

/// A connection that breaks is worth another try. A host that cannot be found, reached
/// or believed will be no better a second later.
pub fn setback(error: ureq::Error) -> Setback {
    use std::io::ErrorKind;
    use ureq::{Error, Timeout};
    let broke = match &error {
        Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof
                | ErrorKind::TimedOut
                | ErrorKind::Interrupted
        ),
        Error::Timeout(Timeout::Resolve | Timeout::Connect) => false,
        Error::Timeout(_) | Error::Protocol(_) => true,
        _ => false,
    };
    let why = error.to_string();
    if broke {
        Setback::Again(why, None)
    } else {
        Refusal::Next(why).into()
    }
}

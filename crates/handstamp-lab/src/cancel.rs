//! Being told to stop: looked at in every wait, so that everything that was started is ended in order.

use crate::error::{LabError, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Shared by the one who tells and those who wait.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    told: Arc<AtomicBool>,
    above: Option<Arc<AtomicBool>>,
}

impl Cancel {
    /// Tells everyone to stop. May be called from a signal's thread.
    pub fn cancel(&self) {
        self.told.store(true, Ordering::SeqCst);
    }

    /// One that is told with this one, and can be told alone.
    #[must_use]
    pub fn below(&self) -> Self {
        Self { told: Arc::default(), above: Some(Arc::clone(&self.told)) }
    }

    /// Whether it was told.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let told = |flag: &Arc<AtomicBool>| flag.load(Ordering::SeqCst);
        told(&self.told) || self.above.as_ref().is_some_and(told)
    }

    /// Goes on unless it was told to stop.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(LabError::cancelled()) } else { Ok(()) }
    }

    /// Sleeps, but not past a stop.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

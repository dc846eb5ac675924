//! How many log lines a second are written, whatever happens.

use std::time::{Duration, Instant};

/// Lets at most so many log lines through a second and counts the others.
#[derive(Debug)]
pub(crate) struct LineLimit {
    per_second: u32,
    window: Option<Instant>,
    shown: u32,
    left_out: u64,
}

impl LineLimit {
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second, window: None, shown: 0, left_out: 0 }
    }

    /// Whether a line may be shown now, and how many were left out in the second that just ended.
    pub(crate) fn take(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if self.window.is_none_or(|start| now.duration_since(start) >= Duration::from_secs(1)) {
            left_out = std::mem::take(&mut self.left_out);
            self.window = Some(now);
            self.shown = 0;
        }
        if self.shown < self.per_second {
            self.shown += 1;
            (true, left_out)
        } else {
            self.left_out += 1;
            (false, left_out)
        }
    }

    /// How many were left out and not yet told, once the second is over or at the end.
    pub(crate) fn rest(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_so_many_lines_a_second_and_the_rest_is_told() {
        let mut limit = LineLimit::new(100);
        let start = Instant::now();
        let shown = (0..250).filter(|_| limit.take(start).0).count();
        assert_eq!(shown, 100);
        assert_eq!(limit.take(start + Duration::from_secs(1)), (true, 150));
        assert_eq!(limit.rest(), 0);
    }
}

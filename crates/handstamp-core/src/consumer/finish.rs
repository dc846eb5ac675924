//! The end of a run: the source settles what was asked and leaves, and the report is written.

use super::batch::say_left_out;
use super::engine::{CLOSE_MIN, Engine};
use super::{RunError, RunErrorKind, StopReason};
use crate::crash_point::CrashPoint;
use crate::source::Command;
use crate::start::StartStore;
use crate::telemetry::Report;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

impl<S: StartStore> Engine<S> {
    /// Why the run may end now, but for what is parked and due.
    pub(super) fn end_of_source(&self) -> Option<StopReason> {
        let idle = self.assigned_once && self.intake.is_idle();
        let until_idle = self.shared.options.until_idle;
        if self.has_taken_all() {
            (!self.intake.has_work()).then_some(StopReason::MessagesMax)
        } else if !self.deliveries_open {
            (!self.intake.has_work()).then_some(StopReason::SourceEnded)
        } else if idle && self.capabilities.ends {
            Some(StopReason::SourceEnded)
        } else if idle && until_idle.is_some_and(|idle| self.last_activity.elapsed() >= idle) {
            Some(StopReason::Idle)
        } else {
            None
        }
    }

    /// Lets the source settle what was asked and leave; answers what it still says.
    pub(super) async fn close(&mut self) {
        self.shared.end_starts().await;
        CrashPoint::OnShutdown.reached();
        let within = self.shared.options.shutdown_timeout.clamp(CLOSE_MIN, CLOSE_MIN * 2);
        self.command(Command::Close { within });
        let until = Instant::now() + within + Duration::from_secs(1);
        while self.deliveries_open {
            tokio::select! {
                biased;
                Some(control) = self.control.recv() => self.on_control(control, &mut vec![]),
                batch = self.deliveries.recv() => match batch {
                    Some(late) => self.settle_release(&late),
                    None => self.deliveries_open = false,
                },
                () = sleep_until(until) => {
                    tracing::warn!(target: "handstamp", "the source did not close in time; what it had not settled comes again");
                    break;
                }
            }
        }
        // A source says its last lag before it closes the deliveries: it lies here now.
        self.drain_control(&mut vec![]);
    }

    pub(super) fn finish(self) -> Result<Report, RunError> {
        say_left_out(self.shared.duplicates.borrow_mut().rest());
        let parked = self.shared.parked_lines.borrow_mut().rest();
        if parked > 0 {
            tracing::info!(target: "handstamp", left_out = parked, "more messages were parked without a line each");
        }
        self.retries.say_rest(&self.shared.parked, Instant::now());
        let counts = self.shared.live.snapshot();
        debug_assert_eq!(crate::invariants::counts_reconcile(&counts), Ok(()));
        let ended = if self.error.is_some() { StopReason::Failed } else { StopReason::SourceEnded };
        let report = Report {
            counts,
            notices: self
                .shared
                .live
                .vitals()
                .notices()
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect(),
            lag: self.intake.lags().collect(),
            breaker: self.shared.live.breaker(),
            took: self.started.elapsed(),
            busy: self.shared.live.busy(),
            stopped: self.stop.unwrap_or(ended),
        };
        if let Some(mut error) = self.error {
            error.report = Some(Box::new(report));
            return Err(error);
        }
        if self.cut_short {
            let text = "what ran did not end within shutdown_timeout: rolled back, nothing of it settled; it comes again";
            let mut error = RunError::new(RunErrorKind::ShutdownTimeout, text);
            error.report = Some(Box::new(report));
            return Err(error);
        }
        Ok(report)
    }
}

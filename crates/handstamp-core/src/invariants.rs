//! Predicates that debug assertions, suites and the lab share (pure).

use crate::telemetry::Counts;

/// I2 at an exit: every delivery and every parked message taken up again ended under exactly one count.
///
/// # Errors
/// One line that says what does not add up.
pub fn counts_reconcile(counts: &Counts) -> Result<(), String> {
    if counts.received != counts.ended() {
        return Err(format!("received {} but {} ended: {counts:?}", counts.received, counts.ended()));
    }
    if counts.resumed != counts.resumed_ended() {
        return Err(format!("resumed {} but {} ended: {counts:?}", counts.resumed, counts.resumed_ended()));
    }
    Ok(())
}

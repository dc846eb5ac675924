//! Topics of a run on the mock cluster inside the supervisor: they end with it.

use crate::error::{LabError, LabErrorKind, Result};
use handstamp_sources::kafka::mock::MockBroker;
use std::time::Duration;

/// A new group waits so long for further members.
const REBALANCE_DELAY: Duration = Duration::from_millis(100);

pub(super) fn start() -> Result<MockBroker> {
    MockBroker::start(REBALANCE_DELAY)
        .map_err(|error| LabError::new(LabErrorKind::Other, "no mock broker").because(error))
}

pub(super) fn create(broker: &MockBroker, name: &str, partitions: i32) -> Result<()> {
    broker
        .create_topic(name, partitions)
        .map_err(|error| LabError::new(LabErrorKind::Other, "the mock broker refuses").because(error))
}

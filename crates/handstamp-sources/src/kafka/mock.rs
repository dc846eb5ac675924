//! A broker inside this process: the client library's mock cluster, for the crash lab without a server.
//!
//! Other processes connect to it over loopback. It keeps nothing on disk, at most 5 MiB or 100,000 messages
//! a partition, and ends with its [`MockBroker`]. It is no Kafka: what it shows must be shown on a real
//! broker too.

use super::context::Quiet;
use super::ffi;
use super::session::drop_within;
use handstamp_core::{SourceError, SourceErrorKind};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::fmt;
use std::time::Duration;

/// A running mock cluster of one broker.
pub struct MockBroker {
    /// Taken only by `drop`.
    client: Option<BaseConsumer<Quiet>>,
    bootstrap: String,
}

impl fmt::Debug for MockBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockBroker").field("bootstrap", &self.bootstrap).finish()
    }
}

impl MockBroker {
    /// Starts one on a free port of 127.0.0.1. A new group waits so long for further members; the library's
    /// own 3 s would be most of a short run.
    ///
    /// # Errors
    /// `Other` when the library cannot start it.
    pub fn start(rebalance_delay: Duration) -> Result<Self, SourceError> {
        let failed =
            |what: String| SourceError::new(SourceErrorKind::Other, format!("no mock broker: {what}"));
        let mut config = ClientConfig::new();
        // That brokers were replaced by mocks is what was asked for: no warning.
        config.set_log_level(RDKafkaLogLevel::Error);
        config.set("test.mock.num.brokers", "1").set("log_level", "3");
        let client: BaseConsumer<Quiet> =
            config.create_with_context(Quiet).map_err(|error| failed(error.to_string()))?;
        let bootstrap = client
            .client()
            .mock_cluster()
            .map(|cluster| cluster.bootstrap_servers())
            .ok_or_else(|| failed("the client library has none".into()))?;
        if !ffi::set_mock_rebalance_delay(client.client(), rebalance_delay) {
            return Err(failed("the client library has none".into()));
        }
        Ok(Self { client: Some(client), bootstrap })
    }

    /// Where it listens: `host:port`.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Makes a topic.
    ///
    /// # Errors
    /// `Other` when the library refuses, as for a name that is taken.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), SourceError> {
        let cluster = self.client.as_ref().and_then(|client| client.client().mock_cluster());
        let refused = |what: String| {
            SourceError::new(SourceErrorKind::Other, format!("the mock broker makes no topic {name}: {what}"))
        };
        match cluster {
            Some(cluster) => {
                cluster.create_topic(name, partitions, 1).map_err(|error| refused(error.to_string()))
            }
            None => Err(refused("it has ended".into())),
        }
    }
}

impl Drop for MockBroker {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop_within(client, Duration::from_secs(5));
        }
    }
}

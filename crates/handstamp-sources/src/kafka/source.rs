//! [`KafkaSource`]: the seam's side of the Kafka consumer.

use super::config::KafkaOptions;
use super::hooks::Hooks;
use super::settings::Severity;
use super::thread;
use handstamp_core::source::{DeliveryCount, SettleKind};
use handstamp_core::store::Fingerprint;
use handstamp_core::{Capabilities, Source, SourceError, SourceErrorKind, SourcePort};
use std::sync::Arc;

/// Topics read as a member of a consumer group. Offsets are committed only for what the engine settled.
#[derive(Debug)]
pub struct KafkaSource {
    options: KafkaOptions,
    hooks: Arc<Hooks>,
}

impl KafkaSource {
    /// A source with these options; they are checked at `start`.
    #[must_use]
    pub fn new(options: KafkaOptions) -> Self {
        Self { options, hooks: Arc::default() }
    }

    /// For tests: a source with hooks.
    #[doc(hidden)]
    #[must_use]
    pub fn with_hooks(options: KafkaOptions, hooks: Arc<Hooks>) -> Self {
        Self { options, hooks }
    }

    /// What every Kafka source can do.
    #[must_use]
    pub fn capabilities() -> Capabilities {
        Capabilities {
            settle: SettleKind::Cumulative,
            ordered: true,
            lease: None,
            release_delay_max: None,
            delivery_count: DeliveryCount::None,
            redelivery_window: None,
            ends: false,
        }
    }
}

impl Source for KafkaSource {
    fn capabilities(&self) -> Capabilities {
        Self::capabilities()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.options.fingerprint()
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        for problem in self.options.validate() {
            if problem.severity == Severity::Warning {
                tracing::warn!(target: "handstamp", "{problem}");
            }
        }
        if let Some(error) = self.options.first_error() {
            return Err(error);
        }
        let (options, hooks) = (Arc::new(self.options), self.hooks);
        std::thread::Builder::new()
            .name("handstamp-kafka".into())
            .spawn(move || thread::run(options, hooks, port))
            .map_err(|e| {
                SourceError::new(SourceErrorKind::Other, "no thread for the Kafka source").with_source(e)
            })?;
        Ok(())
    }
}

//! For how long the pipeline's source can deliver a message again.

use crate::config::{Config, SourceSection};
use crate::exit::CliError;
use handstamp_core::retention::{SourceWindow, Window};

/// The window of each part of the source.
///
/// # Errors
/// The brokers cannot be asked, or the source is not in this build.
#[cfg_attr(not(feature = "kafka"), allow(clippy::unused_async, reason = "brokers are waited for"))]
pub(crate) async fn windows(config: &Config) -> Result<Vec<SourceWindow>, CliError> {
    match &config.source {
        SourceSection::File(section) => Ok(vec![SourceWindow {
            name: format!("the file {}", section.path.shown()),
            window: Window::Unknown { why: "it can be read from its beginning at any time".to_owned() },
        }]),
        #[cfg(feature = "kafka")]
        SourceSection::Kafka(section) => super::kafka::windows(section).await,
        #[cfg(not(feature = "kafka"))]
        SourceSection::Kafka(_) => Err(super::built_without("source", "kafka")),
    }
}

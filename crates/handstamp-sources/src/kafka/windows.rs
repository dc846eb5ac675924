//! How long a topic's records can be delivered again, as the brokers say.
//!
//! Authoritative: `cleanup.policy`, `retention.ms` and `segment.ms` of each topic. Records go a segment at a time, so
//! the first of a segment outlives `retention.ms` by as long as its segment was being written. A limit in bytes
//! only makes it sooner, and is not looked at.

use super::admin::{plain, unanswered};
use super::config::refused;
use super::context::Quiet;
use super::session::drop_within;
use handstamp_core::SourceError;
use handstamp_core::retention::{SourceWindow, Window};
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::error::RDKafkaErrorCode;
use std::collections::BTreeMap;
use std::time::Duration;

/// Asks for the window of each topic, in their order.
///
/// # Errors
/// As [`look`](super::admin::look). What is refused for one topic is an unknown window of it.
pub async fn windows(
    brokers: &str,
    options: &BTreeMap<String, String>,
    topics: &[&str],
    within: Duration,
) -> Result<Vec<SourceWindow>, SourceError> {
    let (base, config) = plain(brokers, options)?;
    let admin: AdminClient<Quiet> =
        config.create_with_context(Quiet).map_err(|error| refused(&base, &error))?;
    let limits = AdminOptions::new().request_timeout(Some(within)).operation_timeout(Some(within));
    let asked: Vec<ResourceSpecifier<'_>> =
        topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let answer = admin.describe_configs(&asked, &limits).await;
    drop_within(admin, Duration::from_secs(2));
    let answers = answer.map_err(|error| unanswered(brokers, error))?;
    let window = |(topic, answer): (&&str, Result<ConfigResource, RDKafkaErrorCode>)| SourceWindow {
        name: format!("topic {topic}"),
        window: match answer {
            // Some brokers say nothing of a topic that they do not have, instead of an error.
            Ok(config) if config.entries.is_empty() => {
                Window::Unknown { why: refusal(RDKafkaErrorCode::UnknownTopicOrPartition) }
            }
            Ok(config) => window_of(|name| value_of(&config, name)),
            Err(code) => Window::Unknown { why: refusal(code) },
        },
    };
    Ok(topics.iter().zip(answers).map(window).collect())
}

fn value_of(config: &ConfigResource, name: &str) -> Option<String> {
    config.get(name).and_then(|entry| entry.value.clone())
}

fn refusal(code: RDKafkaErrorCode) -> String {
    match code {
        RDKafkaErrorCode::UnknownTopicOrPartition => "it does not exist".to_owned(),
        code => format!("the brokers do not say how it is set up ({code})"),
    }
}

/// The window that a topic's settings mean.
fn window_of(setting: impl Fn(&str) -> Option<String>) -> Window {
    let unknown = |why: String| Window::Unknown { why };
    let number = |name: &str| setting(name).and_then(|text| text.trim().parse::<i64>().ok());
    let policy = setting("cleanup.policy").unwrap_or_default();
    if policy.split(',').any(|policy| policy.trim() == "compact") {
        return unknown(format!(
            "cleanup.policy = {policy}: a compacted topic keeps the last record of each key for good"
        ));
    }
    let (Some(retention), Some(segment)) = (number("retention.ms"), number("segment.ms")) else {
        return unknown("the brokers do not say its retention.ms and segment.ms".to_owned());
    };
    let (Ok(retention_ms), Ok(segment_ms)) = (u64::try_from(retention), u64::try_from(segment)) else {
        return unknown(format!("retention.ms = {retention}: its records are kept for good"));
    };
    Window::Known {
        retention: Duration::from_millis(retention_ms),
        segment: Duration::from_millis(segment_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &[(&str, &str)]) -> Window {
        window_of(|name| settings.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_segment_makes_a_window_longer() {
        let window =
            of(&[("cleanup.policy", "delete"), ("retention.ms", "604800000"), ("segment.ms", "3600000")]);
        assert_eq!(window.length(), Some(Duration::from_secs(7 * 86_400 + 3_600)));
    }

    #[test]
    fn what_is_kept_for_good_has_no_window() {
        for settings in [
            &[("cleanup.policy", "delete"), ("retention.ms", "-1"), ("segment.ms", "1")][..],
            &[("cleanup.policy", "compact"), ("retention.ms", "1"), ("segment.ms", "1")],
            &[("cleanup.policy", "compact,delete"), ("retention.ms", "1"), ("segment.ms", "1")],
            &[("cleanup.policy", "delete"), ("segment.ms", "1")],
            &[("retention.ms", "1"), ("segment.ms", "-1")],
            &[("retention.ms", "soon"), ("segment.ms", "1")],
            &[],
        ] {
            assert_eq!(of(settings).length(), None, "{settings:?}");
        }
    }
}

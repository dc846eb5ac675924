//! `[dead_letter]`: a topic that receives a copy of each dead letter.

use super::model::SourceSection;
use super::parse::{Section, Text};

/// Longest name that brokers take.
const NAME_MAX: usize = 249;

/// Reads the topic's name.
pub(super) fn read(top: &Section<'_, '_>) -> Option<Text> {
    let section = top.section("dead_letter")?;
    let topic = section.required_text("topic", "\"orders.dlq\"");
    if let Some(topic) = topic.as_ref().filter(|topic| topic.is_known() && !is_name(&topic.value)) {
        let why = "a topic's name has 1 to 249 of A-Z a-z 0-9 . _ - and is neither . nor ..";
        section.problem(topic.line, "topic", why);
    }
    section.finish();
    topic
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits) && name != "." && name != ".."
}

/// The source's brokers take the copies, and the source must not read them.
pub(super) fn refuse(top: &Section<'_, '_>, source: &SourceSection, topic: &Text) {
    let SourceSection::Kafka(kafka) = source else {
        let why = "only with a Kafka source, whose brokers take the copies; every dead letter is in the store, see \
                   `handstamp dlq list`";
        return top.problem(topic.line, "dead_letter.topic", why);
    };
    if topic.is_known() && kafka.topics.iter().any(|read| read.is_known() && read.value == topic.value) {
        let why = format!("the source reads {}: every copy would come back", topic.shown());
        top.problem(topic.line, "dead_letter.topic", why);
    }
}

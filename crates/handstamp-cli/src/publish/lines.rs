//! JSON lines → records: where each line has its id and its key.

use super::{header, record};
use crate::exit::CliError;
use bytes::Bytes;
use handstamp_core::json::{Document, Kind, Pointer};
use handstamp_core::{Header, Identity, MessageId, Record};
use std::sync::Arc;

/// The longest line that is read.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 20;

/// How lines become records.
#[derive(Debug)]
pub(crate) struct LineRule {
    /// The destination.
    pub(crate) topic: Arc<str>,
    /// The header for the id; `None` where the body alone carries it.
    pub(crate) id_header: Option<String>,
    /// Where a line has its id.
    pub(crate) id: Pointer,
    /// Where a line has its key.
    pub(crate) key: Option<Pointer>,
    /// Headers of every record.
    pub(crate) headers: Vec<Header>,
    /// Lines without a readable id are published without the header.
    pub(crate) allow_no_id: bool,
}

impl LineRule {
    /// The record of a line; `number` counts from 1.
    ///
    /// # Errors
    /// The line has no readable id, and that is not allowed.
    pub(crate) fn record(&self, number: u64, line: &[u8]) -> Result<Record, CliError> {
        let plain = record(&self.topic, Vec::new(), None, Bytes::copy_from_slice(line));
        let id = match Identity::Field(self.id.clone()).message_id(&plain) {
            Ok(id) => Some(id),
            Err(_) if self.allow_no_id => None,
            Err(fault) => {
                return Err(CliError::usage(format!("line {number} has no id: {fault}")).hint(
                    "--id-field names the field that has it; --allow-no-id publishes such lines without one",
                ));
            }
        };
        let key = self.key.as_ref().and_then(|pointer| key(line, pointer));
        Ok(record(&self.topic, self.headers(id.as_ref()), key, Bytes::copy_from_slice(line)))
    }

    /// The headers of a message with this id.
    pub(crate) fn headers(&self, id: Option<&MessageId>) -> Vec<Header> {
        let id = self.id_header.as_deref().zip(id).map(|(name, id)| header(name, id.as_bytes()));
        id.into_iter().chain(self.headers.iter().cloned()).collect()
    }
}

/// A string by its text, a number by its token; anything else is a null key.
fn key(line: &[u8], pointer: &Pointer) -> Option<Bytes> {
    let document = Document::parse(line).ok()?;
    let node = document.at(pointer).ok()??;
    match node.kind() {
        Kind::String => node.text().ok().map(|text| Bytes::copy_from_slice(text.as_bytes())),
        Kind::Number => Some(Bytes::copy_from_slice(node.raw().as_bytes())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(allow_no_id: bool) -> LineRule {
        LineRule {
            topic: "credits".into(),
            id_header: Some("event_id".into()),
            id: Pointer::parse("/id").unwrap(),
            key: Some(Pointer::parse("/account").unwrap()),
            headers: vec![header("tenant", b"a")],
            allow_no_id,
        }
    }

    #[test]
    fn id_and_key_come_from_the_line_and_the_body_stays() {
        let line = br#"{"id": "007", "account": 1e3}"#;
        let record = rule(false).record(1, line).unwrap();
        assert_eq!(record.value.as_deref(), Some(&line[..]));
        assert_eq!(record.key.as_deref(), Some(&b"1e3"[..]));
        assert_eq!(record.headers.all(b"event_id").collect::<Vec<_>>(), [Some(&Bytes::from_static(b"007"))]);
    }

    #[test]
    fn a_line_without_an_id_is_refused_by_its_number_or_goes_without_the_header() {
        let refused = rule(false).record(7, b"not JSON").unwrap_err().to_string();
        assert!(refused.contains("line 7") && refused.contains("--id-field"), "{refused}");
        let record = rule(true).record(7, b"not JSON").unwrap();
        assert_eq!(record.headers.as_slice(), [header("tenant", b"a")]);
        assert_eq!(record.value.as_deref(), Some(&b"not JSON"[..]));
    }
}

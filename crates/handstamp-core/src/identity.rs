//! The rule that finds a message's id (pure).
//!
//! Authoritative: the producer. The id is taken as it was sent: nothing is trimmed, folded or
//! guessed, and whatever is not clearly one id is a fault that says why. [`Identity`] is the place;
//! [`IdentityRule`] says beside it what is done about long ids, and what of a body must be equal where an id
//! comes again.

use crate::cloud_events::source_and_id;
use crate::delivery::ReadAhead;
use crate::digest::DigestFields;
use crate::json::{Document, Kind, Node, Pointer, Shape};
use crate::message::Record;
use crate::message_id::{MessageId, MessageIdError, shown_text};
use bytes::Bytes;
use std::borrow::Cow;
use std::fmt;

/// Where the producer put the id.
///
/// In a body, a string counts by its decoded text and a number by its raw token: `"1e3"`, `1e3`,
/// `"007"` and 2^53+1 stay what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The value of the header with this name (compared by bytes).
    Header(String),
    /// One field of the JSON body.
    Field(Pointer),
    /// Several fields of the JSON body, joined to a compact JSON array. Each must be usable by itself.
    Fields(Vec<Pointer>),
    /// The record's key.
    Key,
    /// `source` and `id` of a CloudEvent, in binary or structured mode, joined to a compact JSON array: of the
    /// same event the same id in both modes.
    CloudEvents,
}

/// What becomes of an id that is longer than [`MessageId::MAX_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LongIds {
    /// It is no usable id: the message is a dead letter.
    #[default]
    Refuse,
    /// Its hash stands for it, see [`MessageId::hashing_long`].
    Hash,
}

/// Where the producer put the id, what is done about long ones, and what the digest is of by which a reused id is
/// told from a redelivery. An [`Identity`] alone is a rule that refuses long ids and compares whole bodies.
///
/// ```
/// use handstamp_core::json::Pointer;
/// use handstamp_core::{Identity, IdentityRule};
///
/// let rule = IdentityRule::new(Identity::Header("webhook-id".into()))
///     .hashing_long_ids()
///     .digest_of(vec![Pointer::parse("/amount")?, Pointer::parse("/account")?]);
/// # assert_eq!(rule.digest.map(|fields| fields.pointers().len()), Some(2));
/// # Ok::<(), handstamp_core::json::PointerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityRule {
    /// Where the id is.
    pub identity: Identity,
    /// What becomes of long ones.
    pub long_ids: LongIds,
    /// The fields that the digest is of; `None`: the whole body, byte for byte.
    pub digest: Option<DigestFields>,
}

impl From<Identity> for IdentityRule {
    fn from(identity: Identity) -> Self {
        Self { identity, long_ids: LongIds::Refuse, digest: None }
    }
}

/// What a rule finds in a record.
pub(crate) struct Found {
    pub(crate) id: Result<MessageId, IdentityFault>,
    /// `None`: nobody had to compute it yet.
    pub(crate) digest: Option<i64>,
    /// The shape of the body, where it was read.
    pub(crate) shape: Option<Shape>,
}

impl IdentityRule {
    /// A rule that refuses long ids and compares whole bodies.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        identity.into()
    }

    /// Ids that are too long are kept as their hashes.
    #[must_use]
    pub fn hashing_long_ids(mut self) -> Self {
        self.long_ids = LongIds::Hash;
        self
    }

    /// Where an id comes again, only these fields of the body must be equal; no field: the whole body.
    #[must_use]
    pub fn digest_of(mut self, fields: Vec<Pointer>) -> Self {
        self.digest = DigestFields::new(fields);
        self
    }

    /// The record's id by this rule.
    ///
    /// # Errors
    /// As [`Identity::message_id`]; an id is too long only where long ones are refused.
    pub fn message_id(&self, record: &Record) -> Result<MessageId, IdentityFault> {
        self.identity.find(record, None, self.long_ids).map(|(id, _)| id)
    }

    /// The record's digest by this rule: that of its chosen fields, or of its whole value where none are chosen or
    /// they say nothing.
    #[must_use]
    pub fn digest(&self, record: &Record) -> i64 {
        let of_fields = self
            .digest
            .as_ref()
            .zip(record.value.as_deref())
            .and_then(|(fields, value)| fields.of(&Document::parse(value).ok()?));
        of_fields.unwrap_or_else(|| record.digest())
    }

    /// Id and digest in one reading of the body; what was read in advance is not read again. A value that is only
    /// a prefix has no digest here.
    pub(crate) fn find(&self, record: &Record, ahead: ReadAhead, is_whole: bool) -> Found {
        let ReadAhead { digest, shape } = ahead;
        let digest = digest.filter(|_| is_whole);
        let (id, shape) = match self.identity.find(record, shape, self.long_ids) {
            Ok((id, shape)) => (Ok(id), shape),
            Err(fault) => (Err(fault), None),
        };
        let Some(fields) = self.digest.as_ref().filter(|_| is_whole) else {
            return Found { id, digest, shape };
        };
        let Some(document) = body(record, shape).ok() else { return Found { id, digest, shape: None } };
        let digest = fields.of(&document).or(digest);
        Found { id, digest, shape: Some(document.into_shape()) }
    }
}

/// Why a record has no usable id; one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct IdentityFault {
    /// One line for a person.
    pub reason: String,
}

impl Identity {
    /// The record's id by this rule.
    ///
    /// # Errors
    /// [`IdentityFault`] when the record has no usable id: missing, null, empty or blank, too long, a
    /// boolean, array or object, a header with two different values, a duplicate key, a lone surrogate,
    /// or a body that is not JSON.
    pub fn message_id(&self, record: &Record) -> Result<MessageId, IdentityFault> {
        self.find(record, None, LongIds::Refuse).map(|(id, _)| id)
    }

    /// The same, with the body's shape where that is known by now.
    fn find(
        &self,
        record: &Record,
        shape: Option<Shape>,
        long_ids: LongIds,
    ) -> Result<(MessageId, Option<Shape>), IdentityFault> {
        let (id, shape) = self.bytes(record, shape)?;
        let id = match long_ids {
            LongIds::Refuse => MessageId::new(id),
            LongIds::Hash => MessageId::hashing_long(id),
        };
        let long = |e: &MessageIdError| matches!(e, MessageIdError::TooLong(_));
        id.map(|id| (id, shape)).map_err(|e| match long(&e) {
            true => {
                fault(&self.to_string(), format!("{e}; `long_ids = \"hash\"` keeps the hash of such an id"))
            }
            false => fault(&self.to_string(), e),
        })
    }

    /// The id's bytes, and the body's shape where it was read.
    fn bytes(&self, record: &Record, shape: Option<Shape>) -> Result<(Bytes, Option<Shape>), IdentityFault> {
        match self {
            Self::Header(name) => {
                let value = header_value(record, name)?;
                Ok((value.ok_or_else(|| fault(&self.to_string(), "it is missing"))?, shape))
            }
            Self::Key => {
                let key = record.key.clone().ok_or_else(|| fault("the key", "it is null"))?;
                Ok((key, shape))
            }
            Self::CloudEvents => {
                let (pair, shape) = source_and_id(record, shape)?;
                let joined = serde_json::to_string(&pair).map_err(|e| fault(&self.to_string(), e))?;
                Ok((joined.into(), shape))
            }
            Self::Field(pointer) => {
                let document = body(record, shape)?;
                let id = match (part(&document, pointer)?.0, &record.value) {
                    // Shares the body's memory.
                    (Cow::Borrowed(text), Some(value)) => value.slice_ref(text.as_bytes()),
                    (text, _) => Bytes::from(text.into_owned()),
                };
                Ok((id, Some(document.into_shape())))
            }
            Self::Fields(pointers) => {
                let document = body(record, shape)?;
                let joined = join(&document, pointers)?;
                Ok((joined.into(), Some(document.into_shape())))
            }
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {}", shown_text(name.as_bytes())),
            Self::Field(pointer) => write!(f, "field {pointer}"),
            Self::Fields(pointers) => {
                f.write_str("fields")?;
                pointers.iter().try_for_each(|pointer| write!(f, " {pointer}"))
            }
            Self::Key => f.write_str("the key"),
            Self::CloudEvents => f.write_str("the CloudEvent's source and id"),
        }
    }
}

pub(crate) fn fault(place: &str, why: impl fmt::Display) -> IdentityFault {
    IdentityFault { reason: format!("no usable id in {place}: {why}") }
}

pub(crate) fn body(record: &Record, shape: Option<Shape>) -> Result<Document<'_>, IdentityFault> {
    let value = record.value.as_ref().ok_or_else(|| fault("the body", "it is null"))?;
    let document = match shape {
        Some(shape) => Document::of_shape(value, Cow::Owned(shape)),
        None => Document::parse(value),
    };
    document.map_err(|e| fault("the body", e))
}

/// A header's value, if it is there.
pub(crate) fn header_value(record: &Record, name: &str) -> Result<Option<Bytes>, IdentityFault> {
    let place = || format!("header {}", shown_text(name.as_bytes()));
    let mut value: Option<&Bytes> = None;
    for next in record.headers.all(name.as_bytes()) {
        let next = next.ok_or_else(|| fault(&place(), "its value is null"))?;
        if value.is_some_and(|value| value != next) {
            return Err(fault(&place(), "it stands more than once with different values"));
        }
        value = Some(next);
    }
    Ok(value.cloned())
}

/// One field: its text, and whether it is a string.
fn part<'a>(document: &Document<'a>, pointer: &Pointer) -> Result<(Cow<'a, str>, bool), IdentityFault> {
    scalar(document, pointer).map_err(|why| fault(&format!("field {pointer}"), why))
}

/// A string or a number of the body, as its decoded text or its raw token, and whether it is a string; or why there
/// is none that says something.
pub(crate) fn scalar<'a>(document: &Document<'a>, pointer: &Pointer) -> Result<(Cow<'a, str>, bool), String> {
    let node: Node<'a> = match document.at(pointer) {
        Ok(Some(node)) => node,
        Ok(None) => return Err("it is missing".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    match node.kind() {
        Kind::Number => Ok((Cow::Borrowed(node.raw()), false)),
        Kind::String => match node.text() {
            Ok(text) if text.is_empty() => Err("it is empty".to_owned()),
            Ok(text) if text.chars().all(char::is_whitespace) => {
                Err("it is blank (only white space)".to_owned())
            }
            Ok(text) => Ok((text, true)),
            Err(error) => Err(error.to_string()),
        },
        kind => Err(format!("it is {}", kind.as_str())),
    }
}

/// A compact JSON array of the fields: strings quoted, numbers as their tokens. Two different lists
/// never give the same text.
fn join(document: &Document<'_>, pointers: &[Pointer]) -> Result<String, IdentityFault> {
    let mut joined = String::from("[");
    for (at, pointer) in pointers.iter().enumerate() {
        if at > 0 {
            joined.push(',');
        }
        match part(document, pointer)? {
            (text, true) => {
                let quoted = serde_json::to_string(&text).map_err(|e| fault("fields", e))?;
                joined.push_str(&quoted);
            }
            (token, false) => joined.push_str(&token),
        }
    }
    joined.push(']');
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Header, Headers, Origin};
    use proptest::prelude::*;

    fn record(value: Option<&[u8]>) -> Record {
        Record {
            key: None,
            value: value.map(Bytes::copy_from_slice),
            headers: Headers::default(),
            origin: Origin { topic: "t".into(), partition: 0, offset: 0, line: None },
            timestamp: None,
        }
    }

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).unwrap()
    }

    fn by_field(body: &str) -> Result<Vec<u8>, String> {
        let found = Identity::Field(pointer("/id")).message_id(&record(Some(body.as_bytes())));
        found.map(|id| id.as_bytes().to_vec()).map_err(|e| e.reason)
    }

    fn by_header(headers: &[(&[u8], Option<&[u8]>)]) -> Result<Vec<u8>, String> {
        let mut record = record(None);
        let owned = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        record.headers = Headers::new(
            headers.iter().map(|(name, value)| Header::new(owned(name), value.map(owned))).collect(),
        );
        let found = Identity::Header("event_id".into()).message_id(&record);
        found.map(|id| id.as_bytes().to_vec()).map_err(|e| e.reason)
    }

    #[test]
    fn a_field_keeps_every_character() {
        for (body, id) in [
            (r#"{"id":"007"}"#, "007"),
            (r#"{"id":"1e3"}"#, "1e3"),
            (r#"{"id":1e3}"#, "1e3"),
            (r#"{"id":1000}"#, "1000"),
            (r#"{"id":9007199254740993}"#, "9007199254740993"),
            (r#"{"id":"null"}"#, "null"),
            (r#"{"id":" padded "}"#, " padded "),
            (r#"{"id":"ABC"}"#, "ABC"),
            (r#"{"id":"abc"}"#, "abc"),
            (r#"{"id":"\"quoted\""}"#, "\"quoted\""),
            (r#"{"id":"a\u0000b"}"#, "a\0b"),
            (r#"{"id":"x\n"}"#, "x\n"),
        ] {
            assert_eq!(by_field(body).unwrap(), id.as_bytes(), "{body}");
        }
    }

    #[test]
    fn an_unusable_field_is_a_fault_with_its_reason() {
        for (body, reason) in [
            (r#"{"other":1}"#, "missing"),
            (r#"{"id":null}"#, "null"),
            (r#"{"id":true}"#, "boolean"),
            (r#"{"id":{"a":1}}"#, "object"),
            (r#"{"id":["a"]}"#, "array"),
            (r#"{"id":""}"#, "empty"),
            (r#"{"id":" \t"}"#, "blank"),
            (r#"{"id":"\u00a0"}"#, "blank"),
            (r#"{"id":"\ud800"}"#, "lone surrogate"),
            (r#"{"id":"a","id":"a"}"#, "more than once"),
            (r#"{"id":007}"#, "not JSON"),
            ("no json", "not JSON"),
            ("", "not JSON"),
            ("[1]", "missing"),
        ] {
            let found = by_field(body).unwrap_err();
            assert!(found.contains(reason), "{body}: {found}");
        }
        let long = |n: usize| by_field(&format!(r#"{{"id":"{}"}}"#, "x".repeat(n)));
        assert!(long(1024).is_ok());
        assert!(long(1025).unwrap_err().contains("1025 bytes"));
        let tombstone = Identity::Field(pointer("/id")).message_id(&record(None)).unwrap_err();
        assert!(tombstone.reason.contains("null"), "{tombstone}");
    }

    #[test]
    fn a_header_counts_by_its_bytes() {
        assert_eq!(by_header(&[(b"event_id", Some(b"a"))]).unwrap(), b"a");
        assert_eq!(by_header(&[(b"event_id", Some(b"\xff\x00"))]).unwrap(), b"\xff\x00");
        assert_eq!(
            by_header(&[(b"event_id", Some(b"a")), (b"x", None), (b"event_id", Some(b"a"))]).unwrap(),
            b"a"
        );
        type Pairs<'a> = &'a [(&'a [u8], Option<&'a [u8]>)];
        let cases: [(Pairs<'_>, &str); 7] = [
            (&[(b"event_id", Some(b"a")), (b"event_id", Some(b"b"))], "different values"),
            (&[(b"event_id", Some(b"a")), (b"event_id", None)], "null"),
            (&[(b"event_id", None)], "null"),
            (&[(b"Event_Id", Some(b"a"))], "missing"),
            (&[(b"event_id", Some(b""))], "empty"),
            (&[(b"event_id", Some(b" \n"))], "blank"),
            (&[], "missing"),
        ];
        for (headers, reason) in cases {
            let found = by_header(headers).unwrap_err();
            assert!(found.contains(reason), "{found}");
        }
    }

    #[test]
    fn a_key_counts_by_its_bytes() {
        let mut with = record(None);
        with.key = Some(Bytes::from_static(b"\xffk"));
        assert_eq!(Identity::Key.message_id(&with).unwrap().as_bytes(), b"\xffk");
        assert!(Identity::Key.message_id(&record(None)).unwrap_err().reason.contains("null"));
    }

    #[test]
    fn several_fields_make_a_compact_array() {
        let rule = Identity::Fields(vec![pointer("/a"), pointer("/b/c")]);
        let id = |body: &str| rule.message_id(&record(Some(body.as_bytes())));
        assert_eq!(id(r#"{ "a" : "x" , "b" : {"c": 1e3} }"#).unwrap().as_bytes(), br#"["x",1e3]"#);
        assert_eq!(id(r#"{"a":"\u0078","b":{"c":1e3}}"#).unwrap().as_bytes(), br#"["x",1e3]"#);
        for body in [r#"{"a":"x"}"#, r#"{"a":"","b":{"c":1}}"#, r#"{"a":null,"b":{"c":1}}"#] {
            assert!(id(body).is_err(), "{body}");
        }
    }

    #[derive(Debug, Clone, PartialEq)]
    enum Part {
        Text(String),
        Token(String),
    }

    fn parts() -> impl Strategy<Value = Vec<Part>> {
        let text = prop_oneof![r#"[\[\],"\\a1]{1,4}"#, "[^\\s]{1,6}"];
        let one = prop_oneof![
            text.prop_filter("not blank", |t| !t.trim().is_empty()).prop_map(Part::Text),
            prop_oneof!["(0|[1-9][0-9]{0,3})(e[0-9])?", "-?[1-9]\\.[0-9]{1,2}"].prop_map(Part::Token),
        ];
        proptest::collection::vec(one, 2)
    }

    fn joined(parts: &[Part]) -> MessageId {
        let value = |part: &Part| match part {
            Part::Text(text) => serde_json::to_string(text).unwrap(),
            Part::Token(token) => token.clone(),
        };
        let body = format!(r#"{{"a":{},"b":{}}}"#, value(&parts[0]), value(&parts[1]));
        let rule = Identity::Fields(vec![pointer("/a"), pointer("/b")]);
        rule.message_id(&record(Some(body.as_bytes()))).unwrap()
    }

    proptest! {
        #[test]
        fn different_fields_never_make_the_same_id(a in parts(), b in parts()) {
            prop_assert_eq!(a == b, joined(&a) == joined(&b));
        }

        #[test]
        fn fields_can_be_read_back_from_the_id(parts in parts()) {
            // What can be read back without loss cannot meet another list.
            let id = joined(&parts);
            let document = Document::parse(id.as_bytes()).unwrap();
            for (at, expected) in parts.iter().enumerate() {
                let node = document.at(&pointer(&format!("/{at}"))).unwrap().unwrap();
                let read = match node.kind() {
                    Kind::String => Part::Text(node.text().unwrap().into_owned()),
                    _ => Part::Token(node.raw().to_owned()),
                };
                prop_assert_eq!(&read, expected);
            }
            prop_assert_eq!(document.at(&pointer("/2")).unwrap(), None);
        }

        #[test]
        fn any_record_is_answered(body in proptest::collection::vec(any::<u8>(), 0..40)) {
            for rule in [Identity::Field(pointer("/id")), Identity::Fields(vec![pointer("/id"), pointer("")])] {
                let _ = rule.message_id(&record(Some(&body)));
            }
        }
    }
}

//! The digest of chosen fields (pure): what must be equal where an id comes again, for producers whose bodies
//! change when they send a message again.
//!
//! Authoritative: the values of the fields, not how they are written: `1`, `1.0` and `1e0` are one number, escapes,
//! the order of keys and white space do not count. A field that is missing is not one that is null. What has none of
//! the fields, a fault on the way to one (a key that stands twice), or a body that is not JSON, is compared whole,
//! byte for byte, as without chosen fields: that can only take more bodies for different ones, never fewer.

use crate::json::{Document, Pointer, write_canonical};
use crate::message::first_i64;

/// The fields of the body that a record's digest is of; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestFields {
    /// In the order of their texts, each once: the order in which they were named does not count.
    pointers: Vec<Pointer>,
}

impl DigestFields {
    /// The fields with these pointers; `None` where there are none.
    #[must_use]
    pub fn new(mut pointers: Vec<Pointer>) -> Option<Self> {
        pointers.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        pointers.dedup();
        (!pointers.is_empty()).then_some(Self { pointers })
    }

    /// The pointers, in the order of their texts.
    #[must_use]
    pub fn pointers(&self) -> &[Pointer] {
        &self.pointers
    }

    /// The digest of a body; `None` where the body counts as a whole.
    #[must_use]
    pub fn of(&self, document: &Document<'_>) -> Option<i64> {
        let mut bytes = Vec::with_capacity(128);
        let mut any = false;
        for pointer in &self.pointers {
            push_framed(&mut bytes, pointer.as_str());
            match document.at(pointer).ok()? {
                Some(node) => {
                    any = true;
                    write_canonical(node.raw(), &mut bytes);
                }
                // No value begins with this.
                None => bytes.push(b'-'),
            }
        }
        let mut hasher = blake3::Hasher::new_derive_key("handstamp digest of fields");
        any.then(|| first_i64(hasher.update(&bytes).finalize().as_bytes()))
    }
}

fn push_framed(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(texts: &[&str]) -> DigestFields {
        DigestFields::new(texts.iter().map(|text| Pointer::parse(text).unwrap()).collect()).unwrap()
    }

    fn of(fields: &DigestFields, body: &str) -> Option<i64> {
        fields.of(&Document::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn only_the_values_of_the_fields_count() {
        let fields = fields(&["/amount", "/to/account"]);
        let first = of(&fields, r#"{"id":"a","amount":10,"to":{"account":"x","name":"A"},"sent":1}"#);
        assert!(first.is_some());
        for same in [
            r#"{"sent":2,"to":{"name":"B","account":"\u0078"},"amount":1.0e1,"id":"a"}"#,
            r#" { "amount" : 10.00 , "to" : { "account" : "x" } , "attempt": 7 } "#,
        ] {
            assert_eq!(of(&fields, same), first, "{same}");
        }
        for other in [
            r#"{"amount":11,"to":{"account":"x"}}"#,
            r#"{"amount":"10","to":{"account":"x"}}"#,
            r#"{"amount":10,"to":{"account":"y"}}"#,
            r#"{"amount":10,"to":{"account":null}}"#,
            r#"{"amount":10,"to":{}}"#,
            r#"{"amount":10}"#,
            r#"{"to":{"account":"x"}}"#,
        ] {
            assert_ne!(of(&fields, other), first, "{other}");
        }
    }

    #[test]
    fn missing_and_null_differ_and_values_do_not_change_places() {
        let both = fields(&["/a", "/b"]);
        let bodies = [
            r#"{"a":null,"b":1}"#,
            r#"{"b":1}"#,
            r#"{"a":1,"b":null}"#,
            r#"{"a":1}"#,
            r#"{"a":null,"b":null}"#,
            r#"{"a":null}"#,
            r#"{"b":null}"#,
        ];
        for (at, one) in bodies.iter().enumerate() {
            for two in &bodies[at + 1..] {
                assert_ne!(of(&both, one), of(&both, two), "{one} {two}");
            }
        }
    }

    #[test]
    fn where_the_fields_say_nothing_the_body_counts_whole() {
        let fields = fields(&["/amount", "/a/b"]);
        for body in [
            "{}",
            r#"{"other":1}"#,
            "[1]",
            "null",
            "1",
            r#"{"amount":1,"amount":1}"#,
            r#"{"amount":1,"a":{"b":1,"b":1}}"#,
        ] {
            assert_eq!(of(&fields, body), None, "{body}");
        }
    }

    #[test]
    fn the_order_and_number_of_pointers_do_not_count() {
        let body = r#"{"a":1,"b":2}"#;
        let [one, two] = [fields(&["/a", "/b"]), fields(&["/b", "/a", "/b"])];
        assert_eq!(of(&one, body), of(&two, body));
        assert_ne!(of(&one, body), of(&fields(&["/a"]), body));
        assert_eq!(DigestFields::new(vec![]), None);
    }

    #[test]
    fn the_whole_body_as_a_field_leaves_out_how_it_is_written() {
        let whole = fields(&[""]);
        assert_eq!(of(&whole, r#"{"a":1,"b":[2]}"#), of(&whole, " {\"b\" : [2.0],\n\"a\":1e0} "));
        assert_ne!(of(&whole, r#"{"a":1,"b":[2]}"#), of(&whole, r#"{"a":1,"b":[3]}"#));
    }

    proptest! {
        #[test]
        fn any_body_is_answered(body in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(document) = Document::parse(&body) {
                let _ = fields(&["", "/a", "/a/0"]).of(&document);
            }
        }
    }
}

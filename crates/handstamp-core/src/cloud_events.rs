//! Where a CloudEvent says what it is (pure): `source` and `id`, which together name one event.
//!
//! Authoritative: the specification of CloudEvents 1.0 and its binding for Kafka. Two modes say the same:
//!
//! | mode | known by | the attributes |
//! |---|---|---|
//! | structured | the header `content-type` begins with `application/cloudevents` | members of the JSON body |
//! | binary | otherwise, one of the headers `ce_specversion`, `ce_id`, `ce_source` | headers `ce_source`, `ce_id` |
//! | structured, without headers | otherwise, a JSON body with the member `specversion` | members of the JSON body |
//!
//! The content type decides, as the binding says. Where it says that the body is the event and the headers have
//! a source and an id too, they must be the same. In binary mode the body is data, whatever it looks like.

use crate::identity::{IdentityFault, body, fault, header_value};
use crate::json::{Document, Pointer, Shape};
use crate::message::Record;

const CONTENT_TYPE: &str = "content-type";
const MEDIA_TYPE: &str = "application/cloudevents";
const ATTRIBUTES: [&str; 2] = ["source", "id"];

/// `source` and `id`, and the body's shape where it was read.
pub(crate) fn source_and_id(
    record: &Record,
    shape: Option<Shape>,
) -> Result<([String; 2], Option<Shape>), IdentityFault> {
    if is_structured(record)? {
        let document = body(record, shape)?;
        let in_body = of_body(&document)?;
        agrees(record, &in_body)?;
        return Ok((in_body, Some(document.into_shape())));
    }
    if ["ce_specversion", "ce_id", "ce_source"].iter().any(|name| has_header(record, name)) {
        return Ok((of_headers(record)?, shape));
    }
    const NEITHER: &str = "it is none: no header `ce_id`, no content type `application/cloudevents+json`";
    let unmarked = |why: String| fault("the CloudEvent", format!("{NEITHER}, and {why}"));
    let document =
        body(record, shape).map_err(|fault| unmarked(format!("no body to be one ({})", fault.reason)))?;
    match document.at(&Pointer::member("specversion")) {
        Ok(Some(_)) => Ok((of_body(&document)?, Some(document.into_shape()))),
        _ => Err(unmarked("no `specversion` in the body".to_owned())),
    }
}

/// Whether the content type says that the body is the event.
fn is_structured(record: &Record) -> Result<bool, IdentityFault> {
    let Some(value) = header_value(record, CONTENT_TYPE).unwrap_or_default() else { return Ok(false) };
    let text = String::from_utf8_lossy(&value);
    let media_type = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.strip_prefix(MEDIA_TYPE) {
        Some("+json") => Ok(true),
        Some(rest) if rest.is_empty() || rest.starts_with(['+', '-']) => Err(fault(
            "the CloudEvent",
            format!("its format is {media_type}; only {MEDIA_TYPE}+json is read"),
        )),
        _ => Ok(false),
    }
}

fn has_header(record: &Record, name: &str) -> bool {
    record.headers.all(name.as_bytes()).next().is_some()
}

fn of_body(document: &Document<'_>) -> Result<[String; 2], IdentityFault> {
    let attribute = |name: &str| -> Result<String, IdentityFault> {
        let pointer = Pointer::member(name);
        let why = |why: &dyn std::fmt::Display| fault(&format!("the CloudEvent's {name}"), why);
        let node =
            document.at(&pointer).map_err(|error| why(&error))?.ok_or_else(|| why(&"it is missing"))?;
        let text = node.text().map_err(|error| why(&error))?;
        usable(&text).map_err(|reason| why(&reason))?;
        Ok(text.into_owned())
    };
    let [source, id] = ATTRIBUTES;
    Ok([attribute(source)?, attribute(id)?])
}

fn of_headers(record: &Record) -> Result<[String; 2], IdentityFault> {
    let attribute = |name: &str| -> Result<String, IdentityFault> {
        let header = format!("ce_{name}");
        let why = |why: &str| fault(&format!("the CloudEvent's header {header}"), why);
        let value = header_value(record, &header)?.ok_or_else(|| why("it is missing"))?;
        let text = std::str::from_utf8(&value).map_err(|_| why("it is not UTF-8"))?;
        usable(text).map_err(why)?;
        Ok(text.to_owned())
    };
    let [source, id] = ATTRIBUTES;
    Ok([attribute(source)?, attribute(id)?])
}

fn usable(text: &str) -> Result<(), &'static str> {
    match text {
        "" => Err("it is empty"),
        text if text.chars().all(char::is_whitespace) => Err("it is blank (only white space)"),
        _ => Ok(()),
    }
}

/// What the headers say beside a structured event must be what it says itself.
fn agrees(record: &Record, in_body: &[String; 2]) -> Result<(), IdentityFault> {
    for (name, said) in ATTRIBUTES.iter().zip(in_body) {
        let header = format!("ce_{name}");
        if header_value(record, &header)?.is_some_and(|value| value != said.as_bytes()) {
            let place = format!("the CloudEvent's {name}");
            return Err(fault(&place, format!("the body and the header {header} say different ones")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::identity::Identity;
    use crate::message::{Header, Headers, Origin, Record};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn record(headers: &[(&str, &str)], body: Option<&str>) -> Record {
        let header = |(name, value): &(&str, &str)| {
            Header::new(name.as_bytes().to_vec(), Some(Bytes::copy_from_slice(value.as_bytes())))
        };
        Record {
            key: None,
            value: body.map(|body| Bytes::copy_from_slice(body.as_bytes())),
            headers: Headers::new(headers.iter().map(header).collect()),
            origin: Origin { topic: "t".into(), partition: 0, offset: 0, line: None },
            timestamp: None,
        }
    }

    fn id(headers: &[(&str, &str)], body: Option<&str>) -> Result<String, String> {
        let found = Identity::CloudEvents.message_id(&record(headers, body));
        found.map(|id| id.as_str().unwrap().to_owned()).map_err(|fault| fault.reason)
    }

    const STRUCTURED: (&str, &str) = ("content-type", "application/cloudevents+json; charset=UTF-8");

    #[test]
    fn both_modes_give_an_event_the_same_id() {
        let event = r#"{"specversion":"1.0","id":"e\u002d1","source":"/shop","type":"t","data":{"id":"no"}}"#;
        let expected = Ok(r#"["/shop","e-1"]"#.to_owned());
        let headers = [("ce_specversion", "1.0"), ("ce_id", "e-1"), ("ce_source", "/shop")];
        assert_eq!(id(&headers, Some("\u{0}no JSON")), expected, "binary");
        assert_eq!(id(&headers, None), expected, "binary, without data");
        assert_eq!(id(&[STRUCTURED], Some(event)), expected, "structured");
        assert_eq!(id(&[], Some(event)), expected, "structured, without headers");
        assert_eq!(id(&[("Content-Type", "Application/CloudEvents+JSON")], Some(event)), expected);
        assert_eq!(id(&[("content-type", "Application/CloudEvents+JSON")], Some(event)), expected);
        let fields = Identity::Fields(vec![super::Pointer::member("source"), super::Pointer::member("id")]);
        assert_eq!(
            fields.message_id(&record(&[], Some(event))).unwrap().as_str(),
            Some(r#"["/shop","e-1"]"#)
        );
    }

    #[test]
    fn the_content_type_decides_and_headers_beside_it_must_agree() {
        let event = r#"{"specversion":"1.0","id":"e","source":"s"}"#;
        let with =
            |source: &str, of: &str| id(&[STRUCTURED, ("ce_source", source), ("ce_id", of)], Some(event));
        assert!(with("s", "e").is_ok());
        assert!(with("s", "other").unwrap_err().contains("say different ones"));
        assert!(with("other", "e").unwrap_err().contains("say different ones"));
        assert_eq!(id(&[STRUCTURED, ("ce_id", "e")], Some(event)).unwrap(), r#"["s","e"]"#);
        // Binary: an event inside of the data is data.
        let binary = [("content-type", "application/json"), ("ce_id", "outer"), ("ce_source", "s")];
        assert_eq!(id(&binary, Some(event)).unwrap(), r#"["s","outer"]"#);
    }

    #[test]
    fn what_is_missing_or_empty_is_a_fault_that_names_it() {
        for (headers, body, reason) in [
            (&[("ce_id", "e")][..], Some("{}"), "header ce_source: it is missing"),
            (&[("ce_source", "s")], Some("{}"), "header ce_id: it is missing"),
            (&[("ce_specversion", "1.0")], Some("{}"), "header ce_source: it is missing"),
            (&[("ce_id", ""), ("ce_source", "s")], None, "header ce_id: it is empty"),
            (&[("ce_id", "e"), ("ce_source", " \t")], None, "header ce_source: it is blank"),
            (&[("ce_id", "e"), ("ce_id", "f"), ("ce_source", "s")], None, "different values"),
            (&[STRUCTURED], Some(r#"{"id":"e"}"#), "source: it is missing"),
            (&[STRUCTURED], Some(r#"{"source":"s"}"#), "id: it is missing"),
            (&[STRUCTURED], Some(r#"{"source":"s","id":""}"#), "id: it is empty"),
            (&[STRUCTURED], Some(r#"{"source":"s","id":7}"#), "id: the value is a number, not a string"),
            (&[STRUCTURED], Some(r#"{"source":null,"id":"e"}"#), "source: the value is null"),
            (&[STRUCTURED], Some(r#"{"source":"s","id":"e","id":"e"}"#), "more than once"),
            (&[STRUCTURED], Some(r#"{"source":"s","id":"\ud800"}"#), "lone surrogate"),
            (&[STRUCTURED], Some("no JSON"), "not JSON"),
            (&[STRUCTURED], None, "null"),
            (
                &[("content-type", "application/cloudevents-batch+json")],
                Some("[]"),
                "only application/cloudevents+json",
            ),
            (
                &[("content-type", "application/cloudevents+avro")],
                Some(""),
                "only application/cloudevents+json",
            ),
            (&[], Some(r#"{"source":"s","id":"e"}"#), "no `specversion`"),
            (&[], Some("no JSON"), "not JSON"),
            (&[], None, "it is null"),
            (&[("content-type", "application/cloudeventsx")], Some("{}"), "no `specversion`"),
        ] {
            let found = id(headers, body).unwrap_err();
            assert!(found.contains(reason), "{headers:?} {body:?}: {found}");
            assert_eq!(found.lines().count(), 1, "{found}");
        }
        let mut bytes = record(&[("ce_source", "s")], None);
        let not_text = Header::new("ce_id", Some(Bytes::from_static(b"\xff")));
        bytes.headers = Headers::new(bytes.headers.as_slice().iter().cloned().chain([not_text]).collect());
        assert!(Identity::CloudEvents.message_id(&bytes).unwrap_err().reason.contains("not UTF-8"));
    }

    proptest! {
        /// ("a", "bc") is not ("ab", "c"), whatever the texts hold; and both modes agree.
        #[test]
        fn different_pairs_are_different_ids(one in ["[ab\",\\[\\]\\\\]{1,4}", "[ab\",\\[\\]\\\\]{1,4}"], two in ["[ab\",\\[\\]\\\\]{1,4}", "[ab\",\\[\\]\\\\]{1,4}"]) {
            let binary = |[source, of]: &[String; 2]| id(&[("ce_source", source), ("ce_id", of)], None).unwrap();
            let structured = |[source, of]: &[String; 2]| {
                id(&[STRUCTURED], Some(&serde_json::json!({ "source": source, "id": of }).to_string())).unwrap()
            };
            prop_assert_eq!(binary(&one) == binary(&two), one == two);
            prop_assert_eq!(binary(&one), structured(&one));
        }

        #[test]
        fn any_record_is_answered(name in "(ce_id|ce_source|content-type)", value in any::<String>(), body in any::<String>()) {
            let _ = id(&[(&name, &value)], Some(&body));
        }
    }
}

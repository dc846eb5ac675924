//! Looking into a JSON body without losing a digit (pure).
//!
//! This file owns [`Pointer`] (RFC 6901) and [`Document`]: a body checked once against the JSON
//! grammar, whose values stay the raw text they were sent as. Authoritative: the producer's bytes. A
//! number is its token (`1e3` stays `1e3`), a string its decoded text. A duplicate key on the way of a
//! pointer is a fault, never a silent first or last. Nothing here recurses, so deep nesting costs no stack.

mod canonical;
mod number;
mod scan;

pub(crate) use canonical::write as write_canonical;
pub use number::{Exact, Number};
pub(crate) use scan::Shape;
use scan::{Member, Scanner, Span};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A parsed JSON pointer (RFC 6901).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

/// A text that is no JSON pointer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// It is not empty and does not start with a slash.
    #[error("{0:?} is no JSON pointer: it must start with '/', as in \"/id\"")]
    NoSlash(String),
    /// A `~` is not followed by `0` or `1`.
    #[error("{0:?} is no JSON pointer: '~' must be written '~0' (and '/' inside a name '~1')")]
    BadEscape(String),
}

impl Pointer {
    /// Parses a pointer; the empty text is the whole document.
    ///
    /// # Errors
    /// [`PointerError`] when the text is not a pointer of RFC 6901.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let mut pieces = text.split('/');
        if pieces.next().is_some_and(|before| !before.is_empty()) {
            return Err(PointerError::NoSlash(text.into()));
        }
        let tokens = pieces
            .map(|piece| unescape(piece).ok_or_else(|| PointerError::BadEscape(text.into())))
            .collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), tokens })
    }

    /// The pointer to a member of the top level, whatever its name contains.
    #[must_use]
    pub fn member(name: &str) -> Self {
        let text = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        Self { text, tokens: vec![name.into()] }
    }

    /// The pointer as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names (or indexes) on the way, unescaped.
    #[must_use]
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn unescape(piece: &str) -> Option<String> {
    let mut out = String::with_capacity(piece.len());
    let mut chars = piece.chars();
    while let Some(c) = chars.next() {
        if c != '~' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('0') => out.push('~'),
            Some('1') => out.push('/'),
            _ => return None,
        }
    }
    Some(out)
}

/// Why a body, or a value in it, cannot be used; one line, without the body's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonFault {
    /// The bytes are not UTF-8.
    #[error("the body is not JSON: byte {at} is not UTF-8")]
    NotUtf8 {
        /// Position of the first bad byte.
        at: usize,
    },
    /// The bytes break the JSON grammar.
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// A key stands twice in an object on the pointer's way.
    #[error("the key {key:?} stands more than once at {pointer:?}")]
    DuplicateKey {
        /// The whole pointer.
        pointer: String,
        /// The key that is repeated.
        key: String,
    },
    /// A string contains half of a surrogate pair, which no text can hold.
    #[error("the string contains a lone surrogate")]
    LoneSurrogate,
    /// The value is no string.
    #[error("the value is {}, not a string", .0.as_str())]
    NotText(Kind),
}

/// What a JSON value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number
    Number,
    /// A string
    String,
    /// An array
    Array,
    /// An object
    Object,
}

impl Kind {
    /// The word for people, with its article.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

/// One value of a document: its raw text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node<'a> {
    raw: &'a str,
}

impl<'a> Node<'a> {
    /// What the value is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.raw.as_bytes().first() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// The value as it was sent, without the white space around it.
    #[must_use]
    pub fn raw(&self) -> &'a str {
        self.raw
    }

    /// The decoded text of a string.
    ///
    /// # Errors
    /// [`JsonFault::NotText`] for another kind, [`JsonFault::LoneSurrogate`] when the string holds one.
    pub fn text(&self) -> Result<Cow<'a, str>, JsonFault> {
        if self.kind() != Kind::String {
            return Err(JsonFault::NotText(self.kind()));
        }
        decoded(self.raw).ok_or(JsonFault::LoneSurrogate)
    }

    /// One step of a pointer; `whole` is the pointer it belongs to.
    fn step(self, token: &str, whole: &Pointer) -> Result<Option<Node<'a>>, JsonFault> {
        match self.kind() {
            Kind::Object => {
                let shape = shape_of(self.raw)?;
                found(self.raw, &shape.members, token, whole)
            }
            Kind::Array => match array_index(token) {
                Some(index) => element_of(self.raw, index),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

/// A body that is JSON, with the members of its top level at hand.
#[derive(Debug, Clone)]
pub struct Document<'a> {
    text: &'a str,
    shape: Cow<'a, Shape>,
}

impl<'a> Document<'a> {
    /// Checks a body in one pass. White space around the value is allowed; a byte order mark, `NaN`,
    /// an unquoted `007` or anything behind the value is not JSON.
    ///
    /// # Errors
    /// [`JsonFault::NotUtf8`] or [`JsonFault::NotJson`].
    pub fn parse(body: &'a [u8]) -> Result<Self, JsonFault> {
        let text = text_of(body)?;
        Ok(Self { text, shape: Cow::Owned(shape_of(text)?) })
    }

    /// A body whose shape was found before.
    pub(crate) fn of_shape(body: &'a [u8], shape: Cow<'a, Shape>) -> Result<Self, JsonFault> {
        Ok(Self { text: text_of(body)?, shape })
    }

    /// The shape, to be kept beside the body.
    pub(crate) fn into_shape(self) -> Shape {
        self.shape.into_owned()
    }

    /// The whole value.
    #[must_use]
    pub fn root(&self) -> Node<'a> {
        Node { raw: part(self.text, self.shape.root) }
    }

    /// The value a pointer names; `None` when there is none.
    ///
    /// # Errors
    /// [`JsonFault::DuplicateKey`] when an object on the way holds the pointer's key twice.
    pub fn at(&self, pointer: &Pointer) -> Result<Option<Node<'a>>, JsonFault> {
        let Some((first, rest)) = pointer.tokens.split_first() else {
            return Ok(Some(self.root()));
        };
        let root = self.root();
        let mut next = match root.kind() {
            Kind::Object => found(self.text, &self.shape.members, first, pointer)?,
            _ => root.step(first, pointer)?,
        };
        for token in rest {
            match next {
                Some(node) => next = node.step(token, pointer)?,
                None => return Ok(None),
            }
        }
        Ok(next)
    }
}

fn text_of(body: &[u8]) -> Result<&str, JsonFault> {
    std::str::from_utf8(body).map_err(|e| JsonFault::NotUtf8 { at: e.valid_up_to() })
}

/// A part that lies in this text; empty for a span of another text.
fn part(text: &str, span: Span) -> &str {
    text.get(span.range()).unwrap_or_default()
}

fn found<'a>(
    text: &'a str,
    members: &[Member],
    token: &str,
    whole: &Pointer,
) -> Result<Option<Node<'a>>, JsonFault> {
    // Most keys differ in length: then the text is not looked at.
    let may_be = |member: &&Member| !member.plain || member.key.len() == token.len() + 2;
    let is = |member: &&Member| key_is(part(text, member.key), member.plain, token);
    let mut matching = members.iter().filter(may_be).filter(is);
    let first = matching.next();
    if matching.next().is_some() {
        return Err(JsonFault::DuplicateKey { pointer: whole.text.clone(), key: token.into() });
    }
    Ok(first.map(|member| Node { raw: part(text, member.value) }))
}

/// True when a raw key decodes to the token. A key with a lone surrogate equals no token.
fn key_is(raw: &str, plain: bool, token: &str) -> bool {
    if plain {
        return raw.get(1..raw.len().saturating_sub(1)) == Some(token);
    }
    decoded(raw).is_some_and(|text| text == token)
}

/// The text of a raw string; `None` when it contains a lone surrogate.
fn decoded(raw: &str) -> Option<Cow<'_, str>> {
    match raw.get(1..raw.len().saturating_sub(1)) {
        Some(inner) if !inner.contains('\\') => Some(Cow::Borrowed(inner)),
        _ => serde_json::from_str::<String>(raw).ok().map(Cow::Owned),
    }
}

/// An index of RFC 6901: digits without a leading zero.
fn array_index(token: &str) -> Option<usize> {
    let digits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_digit());
    let plain = token == "0" || !token.starts_with('0');
    if digits && plain { token.parse().ok() } else { None }
}

/// What is wrong with a text that the scanner refused, and where.
fn not_json(text: &str) -> JsonFault {
    let told = serde_json::from_str::<&RawValue>(text).err().map(|error| error.to_string());
    // The scanner takes the same texts, up to a length.
    JsonFault::NotJson(told.unwrap_or_else(|| "it is longer than 4 GiB".into()))
}

fn shape_of(text: &str) -> Result<Shape, JsonFault> {
    Scanner::new(text).shape().ok_or_else(|| not_json(text))
}

fn element_of(array: &str, index: usize) -> Result<Option<Node<'_>>, JsonFault> {
    let found = Scanner::new(array).element(index).ok_or_else(|| not_json(array))?;
    Ok(found.map(|span| Node { raw: part(array, span) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(body: &str, pointer: &str) -> Result<Option<String>, JsonFault> {
        let document = Document::parse(body.as_bytes())?;
        Ok(document.at(&Pointer::parse(pointer).unwrap())?.map(|node| node.raw().to_owned()))
    }

    fn raw(body: &str, pointer: &str) -> Option<String> {
        at(body, pointer).unwrap()
    }

    #[test]
    fn pointers_follow_the_rfc() {
        let body = r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3," ":7,"m~n":8,"k\"l":6,"o":{"p":[{"q":9}]}}"#;
        for (pointer, expected) in [
            ("/foo", Some(r#"["bar","baz"]"#)),
            ("/foo/0", Some(r#""bar""#)),
            ("/foo/1", Some(r#""baz""#)),
            ("/foo/2", None),
            ("/foo/-", None),
            ("/foo/01", None),
            ("/foo/+1", None),
            ("/foo/99999999999999999999999", None),
            ("/", Some("0")),
            ("/a~1b", Some("1")),
            ("/c%d", Some("2")),
            ("/e^f", Some("3")),
            ("/ ", Some("7")),
            ("/m~0n", Some("8")),
            ("/k\"l", Some("6")),
            ("/o/p/0/q", Some("9")),
            ("/o/p/0/q/r", None),
            ("/nope", None),
        ] {
            assert_eq!(raw(body, pointer).as_deref(), expected, "{pointer}");
        }
        assert_eq!(raw(body, "").as_deref(), Some(body));
        assert!(matches!(Pointer::parse("id"), Err(PointerError::NoSlash(_))));
        assert!(matches!(Pointer::parse("/a~2"), Err(PointerError::BadEscape(_))));
        assert!(matches!(Pointer::parse("/a~"), Err(PointerError::BadEscape(_))));
    }

    #[test]
    fn numbers_keep_their_token() {
        for token in
            ["1e3", "1E+3", "9007199254740993", "-0", "0.10", "1.0e-400", "123456789012345678901234567890"]
        {
            assert_eq!(raw(&format!(r#"{{"n": {token} }}"#), "/n").as_deref(), Some(token));
        }
    }

    #[test]
    fn what_is_no_json_is_said_to_be_none() {
        for bad in [
            "",
            " ",
            "007",
            "{\"a\":007}",
            "NaN",
            "{\"a\":NaN}",
            "Infinity",
            "{\"a\":1} x",
            "1 2",
            "{\"a\":1}{}",
            "\u{feff}{\"a\":1}",
            "{a:1}",
            "{'a':1}",
            "{\"a\":1,}",
            "[1,]",
            "\"a\nb\"",
            "{\"a\":\"\t\"}",
            "{1:2}",
            "{\"a\":\"\\x\"}",
            "+1",
            ".5",
            "1.",
            "tru",
            "{\"a\"",
            "[",
            "\u{a0}1",
            "{\"a\":1}\u{a0}",
            "// x\n1",
        ] {
            assert!(matches!(Document::parse(bad.as_bytes()), Err(JsonFault::NotJson(_))), "{bad:?}");
        }
        assert!(matches!(Document::parse(b"{\"a\":\"\xff\"}"), Err(JsonFault::NotUtf8 { at: 6 })));
        for good in ["null", " 1 ", "\r\n{\"a\":1}\r\n", "\"x\"", "[]", "{}"] {
            assert!(Document::parse(good.as_bytes()).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_duplicate_key_counts_only_on_the_pointers_way() {
        let body = r#"{"a":1,"b":{"c":1,"\u0063":2,"d":3},"b2":0,"\u0061":2}"#;
        assert!(matches!(at(body, "/a"), Err(JsonFault::DuplicateKey { key, .. }) if key == "a"));
        assert!(matches!(at(body, "/b/c"), Err(JsonFault::DuplicateKey { key, .. }) if key == "c"));
        assert_eq!(raw(body, "/b/d").as_deref(), Some("3"));
        assert_eq!(raw(body, "/b2").as_deref(), Some("0"));
        let deep = r#"{"x":{"y":1},"x":{"y":1}}"#;
        assert!(matches!(at(deep, "/x/y"), Err(JsonFault::DuplicateKey { key, .. }) if key == "x"));
    }

    #[test]
    fn text_is_decoded_and_a_lone_surrogate_is_a_fault() {
        let text = |body: &str| {
            let document = Document::parse(body.as_bytes()).unwrap();
            document.root().text().map(Cow::into_owned)
        };
        assert_eq!(text(r#""007""#).unwrap(), "007");
        assert_eq!(text(r#""\u00e9\n\ud83d\ude00""#).unwrap(), "é\n😀");
        assert_eq!(text(r#""a\u0000b""#).unwrap(), "a\0b");
        for lone in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#""\ud800x""#, r#""\ud800\n""#] {
            assert_eq!(text(lone), Err(JsonFault::LoneSurrogate), "{lone}");
        }
        assert_eq!(text("1"), Err(JsonFault::NotText(Kind::Number)));
    }

    #[test]
    fn a_lone_surrogate_elsewhere_does_not_spoil_the_rest() {
        let body = r#"{"\ud800":1,"bad":"\udfff","id":"x"}"#;
        assert_eq!(raw(body, "/id").as_deref(), Some("\"x\""));
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let depth = 400_000;
        let body = format!("{{\"deep\":{}{},\"id\":1}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(raw(&body, "/id").as_deref(), Some("1"));
        assert_eq!(raw(&body, "/deep/0/0/0").map(|raw| raw.len()), Some(2 * depth - 6));
        let bare = "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
        assert!(raw(&bare, "/a/a").is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(body in proptest::collection::vec(any::<u8>(), 0..64), pointer in "(/[a-c0-2~]{0,3}){0,3}") {
            if let (Ok(document), Ok(pointer)) = (Document::parse(&body), Pointer::parse(&pointer)) {
                let _ = document.at(&pointer);
            }
        }

        #[test]
        fn json_is_what_serde_json_takes(body in r#"[\[\]{}",:0-2a-c\\ ue.+-]{0,12}"#) {
            let ours = Document::parse(body.as_bytes()).is_ok();
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok();
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn a_member_is_found_whatever_its_name(name in any::<String>(), text in any::<String>()) {
            let body = serde_json::json!({ name.as_str(): text }).to_string();
            let document = Document::parse(body.as_bytes()).unwrap();
            let pointer = Pointer::member(&name);
            prop_assert_eq!(Pointer::parse(pointer.as_str()).unwrap(), pointer.clone());
            let node = document.at(&pointer).unwrap().unwrap();
            prop_assert_eq!(node.text().unwrap(), text);
        }
    }
}

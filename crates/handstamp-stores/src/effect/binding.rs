//! Where each parameter of an effect comes from, and the exact value it has in a message.
//!
//! Authoritative: the bytes of the message. A number stays its token until the store decides whether
//! its column can hold it; nothing is rounded, trimmed or guessed here. Which value fits which type is
//! the store's part: `docs/reference/binding.md` holds one table for both.
//!
//! | parameter | value |
//! |---|---|
//! | `:name` | the member `name` of the JSON body, or the pointer of `params.name` |
//! | `:message_id` `:message_key` `:header_x` | bytes: text where they are UTF-8 |
//! | `:topic` `:partition` `:offset` `:timestamp` | where and when, as the source said |
//! | `:body` `:body_text` | the whole body as JSON, or as text |

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use handstamp_core::json::{Document, JsonFault, Kind, Node, Pointer};
use handstamp_core::message_id::shown_text;
use handstamp_core::{Message, Timestamp};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

/// Where a parameter's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParamSource {
    /// A value of the JSON body.
    Body(Pointer),
    /// A header by its name (compared by bytes).
    Header(String),
    /// `:message_id`
    MessageId,
    /// `:message_key`
    MessageKey,
    /// `:topic`
    Topic,
    /// `:partition`
    Partition,
    /// `:offset`
    Offset,
    /// `:timestamp`
    Timestamp,
    /// `:body`, as JSON
    BodyJson,
    /// `:body_text`
    BodyText,
}

impl ParamSource {
    /// The source of a parameter that was not declared: a built-in name, `header_…`, or the member of
    /// the body with that name.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        match name {
            "message_id" => Self::MessageId,
            "message_key" => Self::MessageKey,
            "topic" => Self::Topic,
            "partition" => Self::Partition,
            "offset" => Self::Offset,
            "timestamp" => Self::Timestamp,
            "body" => Self::BodyJson,
            "body_text" => Self::BodyText,
            _ => match name.strip_prefix("header_") {
                Some(header) if !header.is_empty() => Self::Header(header.into()),
                _ => Self::Body(Pointer::member(name)),
            },
        }
    }
}

impl fmt::Display for ParamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(pointer) => write!(f, "the body's {pointer}"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::MessageId => f.write_str("the message id"),
            Self::MessageKey => f.write_str("the message key"),
            Self::Topic => f.write_str("the topic"),
            Self::Partition => f.write_str("the partition"),
            Self::Offset => f.write_str("the offset"),
            Self::Timestamp => f.write_str("the timestamp"),
            Self::BodyJson | Self::BodyText => f.write_str("the body"),
        }
    }
}

/// How a value's text encodes its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// RFC 4648 with padding.
    Base64,
}

/// How one parameter is declared: `params.x = …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// Where it comes from; `None` is what its name says.
    pub source: Option<ParamSource>,
    /// The text encodes bytes.
    pub encoding: Option<Encoding>,
    /// Bind as text: a number by its token.
    pub as_text: bool,
}

impl ParamSpec {
    /// A plain value from a source.
    #[must_use]
    pub fn from_source(source: ParamSource) -> Self {
        Self { source: Some(source), encoding: None, as_text: false }
    }
}

/// One parameter of a compiled effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name in the statement.
    pub name: String,
    /// Where its value comes from.
    pub source: ParamSource,
    /// The text encodes bytes.
    pub encoding: Option<Encoding>,
    /// Bound as text; `resolve` has already made it [`Value::Text`].
    pub as_text: bool,
    /// A missing value is NULL.
    pub optional: bool,
}

impl Param {
    /// Its value in a message.
    ///
    /// # Errors
    /// As [`Bindings::resolve`].
    pub fn resolve<'m>(&self, view: &MessageView<'m>) -> Result<Value<'m>, BindError> {
        resolve_one(self, view)
    }

    /// Whether it has the other's value in every message, whatever the names.
    fn is_as(&self, other: &Self) -> bool {
        self.source == other.source
            && self.encoding == other.encoding
            && self.as_text == other.as_text
            && self.optional == other.optional
    }
}

/// A parameter's exact value in one message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// JSON null; a null key, header value or body; a missing optional value.
    Null,
    /// JSON true or false.
    Bool(bool),
    /// A JSON number's token.
    Number(&'a str),
    /// Decoded text. May contain NUL, which a store refuses for its text types.
    Text(Cow<'a, str>),
    /// A JSON array or object (or the whole body), raw.
    Json(&'a str),
    /// Decoded bytes.
    Bytes(Cow<'a, [u8]>),
    /// Bytes of the producer's whose meaning is not known: bytes for a bytes column, text only when they
    /// are UTF-8 (id, key, header).
    Opaque(&'a [u8]),
    /// A partition or offset.
    Int(i64),
    /// Milliseconds since the Unix epoch: a number, or a point in time for a column that holds one.
    Timestamp(i64),
}

impl Value<'_> {
    /// The value's start for an error: at most 40 characters, one line.
    #[must_use]
    pub fn start(&self) -> String {
        let whole: Cow<'_, [u8]> = match self {
            Self::Null => Cow::Borrowed(b"null"),
            Self::Bool(true) => Cow::Borrowed(b"true"),
            Self::Bool(false) => Cow::Borrowed(b"false"),
            Self::Number(text) | Self::Json(text) => Cow::Borrowed(text.as_bytes()),
            Self::Text(text) => Cow::Borrowed(text.as_bytes()),
            Self::Bytes(bytes) => Cow::Borrowed(bytes),
            Self::Opaque(bytes) => Cow::Borrowed(bytes),
            Self::Int(number) | Self::Timestamp(number) => Cow::Owned(number.to_string().into_bytes()),
        };
        // Enough bytes for 41 characters, cut where text may be cut.
        let mut end = whole.len().min(164);
        while end < whole.len() && end > 160 && whole.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
            end -= 1;
        }
        let shown = shown_text(whole.get(..end).unwrap_or_default());
        let mut start: String = shown.chars().take(40).collect();
        if start.len() < shown.len() || end < whole.len() {
            start.push('…');
        }
        start
    }

    /// The value's start in quotes; what is not printable is escaped once.
    fn quoted(&self) -> String {
        format!("\"{}\"", self.start())
    }
}

/// A value does not fit its parameter: the message's own failure (class `binding`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parameter :{param}: {reason}")]
pub struct BindError {
    /// The parameter's name.
    pub param: String,
    /// What is wrong, with the type and the value's start where there is one; one line.
    pub reason: String,
}

impl BindError {
    /// A value that the parameter's type cannot hold: names parameter, type, value's start and why.
    #[must_use]
    pub fn mismatch(param: &str, type_name: &str, value: &Value<'_>, why: &str) -> Self {
        Self { param: param.into(), reason: format!("{type_name} cannot hold {}: {why}", value.quoted()) }
    }

    fn new(param: &Param, reason: impl fmt::Display) -> Self {
        Self { param: param.name.clone(), reason: format!("{}: {reason}", param.source) }
    }
}

/// A message whose body is read at most once, whatever the number of effects and parameters.
#[derive(Debug)]
pub struct MessageView<'m> {
    message: &'m Message,
    document: OnceCell<Result<Document<'m>, JsonFault>>,
}

impl<'m> MessageView<'m> {
    /// A view; the body is not read before a parameter asks for it.
    #[must_use]
    pub fn new(message: &'m Message) -> Self {
        Self { message, document: OnceCell::new() }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &'m Message {
        self.message
    }

    /// The body as JSON. A null body has no values: pointers into it find nothing.
    fn document(&self) -> Result<&Document<'m>, &JsonFault> {
        self.document.get_or_init(|| self.message.document()).as_ref()
    }
}

/// The parameters of one statement, in the order of their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bindings {
    params: Vec<Param>,
}

impl Bindings {
    pub(super) fn new(params: Vec<Param>) -> Self {
        Self { params }
    }

    /// The parameters; the n-th is number n + 1 in the rendered statement.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Every parameter's value in a message; the n-th answers the n-th of [`Bindings::params`].
    ///
    /// # Errors
    /// [`BindError`] names the first parameter that has no usable value: it is missing (and not
    /// optional), its key is repeated, it holds a lone surrogate, its header is repeated with different
    /// values, its base64 is bad, or the body is not JSON.
    pub fn resolve<'m>(&self, view: &MessageView<'m>) -> Result<Vec<Value<'m>>, BindError> {
        self.params.iter().map(|param| resolve_one(param, view)).collect()
    }
}

/// The values of one message, each found once however many effects bind it.
#[derive(Debug, Clone, Default)]
pub struct SharedParams {
    /// For each statement, the slot of each of its parameters.
    slots: Vec<Vec<usize>>,
    count: usize,
}

/// The values that were found so far, by slot.
pub type SharedValues<'m> = Vec<Option<Value<'m>>>;

impl SharedParams {
    /// Parameters that have the same value in every message share a slot.
    pub fn of<'a>(statements: impl IntoIterator<Item = &'a Bindings>) -> Self {
        let mut known: Vec<&Param> = vec![];
        let mut slot_of = |param: &'a Param| {
            known.iter().position(|other| param.is_as(other)).unwrap_or_else(|| {
                known.push(param);
                known.len() - 1
            })
        };
        let slots = statements.into_iter().map(|s| s.params.iter().map(&mut slot_of).collect()).collect();
        Self { slots, count: known.len() }
    }

    /// Forgets the values of the message before.
    pub fn begin(&self, values: &mut SharedValues<'_>) {
        values.clear();
        values.resize_with(self.count, || None);
    }

    /// The value of a statement's parameter.
    ///
    /// # Errors
    /// As [`Bindings::resolve`].
    pub fn value<'v, 'm>(
        &self,
        statement: usize,
        at: usize,
        param: &Param,
        view: &MessageView<'m>,
        values: &'v mut SharedValues<'m>,
    ) -> Result<&'v Value<'m>, BindError> {
        let slot = self.slots.get(statement).and_then(|slots| values.get_mut(*slots.get(at)?));
        let Some(slot) = slot else {
            return Err(BindError::new(param, "it was not prepared for"));
        };
        if slot.is_none() {
            *slot = Some(resolve_one(param, view)?);
        }
        Ok(slot.get_or_insert(Value::Null))
    }
}

fn resolve_one<'m>(param: &Param, view: &MessageView<'m>) -> Result<Value<'m>, BindError> {
    let found = match found(param, view)? {
        Some(value) => value,
        None if param.optional => Value::Null,
        None => return Err(BindError::new(param, "missing; list it in `optional` if NULL will do")),
    };
    let decoded = match param.encoding {
        Some(Encoding::Base64) => from_base64(param, found)?,
        None => found,
    };
    if param.as_text { into_text(param, decoded) } else { Ok(decoded) }
}

/// The value before decoding; `None` is missing.
pub(super) fn found<'m>(param: &Param, view: &MessageView<'m>) -> Result<Option<Value<'m>>, BindError> {
    let message = view.message();
    let origin = message.origin();
    let value = match &param.source {
        ParamSource::Body(pointer) => return from_body(param, view, pointer),
        ParamSource::Header(name) => return from_header(param, message, name),
        ParamSource::MessageId => Value::Opaque(message.id().as_bytes()),
        ParamSource::MessageKey => message.key().map_or(Value::Null, Value::Opaque),
        ParamSource::Topic => Value::Text(Cow::Borrowed(&*origin.topic)),
        ParamSource::Partition => Value::Int(i64::from(origin.partition)),
        ParamSource::Offset => Value::Int(origin.offset),
        ParamSource::Timestamp => {
            message.timestamp().map_or(Value::Null, |Timestamp(ms)| Value::Timestamp(ms))
        }
        ParamSource::BodyJson if message.value().is_none() => Value::Null,
        ParamSource::BodyJson => {
            let document = view.document().map_err(|fault| BindError::new(param, fault))?;
            Value::Json(document.root().raw())
        }
        ParamSource::BodyText => match message.value().map(std::str::from_utf8) {
            None => Value::Null,
            Some(Ok(text)) => Value::Text(Cow::Borrowed(text)),
            Some(Err(error)) => {
                return Err(BindError::new(param, format_args!("byte {} is not UTF-8", error.valid_up_to())));
            }
        },
    };
    Ok(Some(value))
}

fn from_body<'m>(
    param: &Param,
    view: &MessageView<'m>,
    pointer: &Pointer,
) -> Result<Option<Value<'m>>, BindError> {
    let document = view.document().map_err(|fault| BindError::new(param, fault))?;
    match document.at(pointer) {
        Ok(Some(node)) => node_value(node).map(Some).map_err(|fault| BindError::new(param, fault)),
        Ok(None) => Ok(None),
        Err(fault) => Err(BindError::new(param, fault)),
    }
}

fn node_value(node: Node<'_>) -> Result<Value<'_>, JsonFault> {
    Ok(match node.kind() {
        Kind::Null => Value::Null,
        Kind::Bool => Value::Bool(node.raw() == "true"),
        Kind::Number => Value::Number(node.raw()),
        Kind::String => Value::Text(node.text()?),
        Kind::Array | Kind::Object => Value::Json(node.raw()),
    })
}

fn from_header<'m>(param: &Param, message: &'m Message, name: &str) -> Result<Option<Value<'m>>, BindError> {
    let mut values = message.headers().as_slice().iter().filter(|header| header.name == name.as_bytes());
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.any(|next| next.value != first.value) {
        return Err(BindError::new(param, "it stands more than once with different values"));
    }
    Ok(Some(first.value.as_deref().map_or(Value::Null, Value::Opaque)))
}

fn from_base64<'m>(param: &Param, value: Value<'m>) -> Result<Value<'m>, BindError> {
    let decoded = match &value {
        Value::Null => return Ok(Value::Null),
        Value::Text(text) => STANDARD.decode(text.as_bytes()),
        Value::Opaque(bytes) => STANDARD.decode(bytes),
        _ => return Err(BindError::new(param, format_args!("{} is no base64 text", value.quoted()))),
    };
    match decoded {
        Ok(bytes) => Ok(Value::Bytes(Cow::Owned(bytes))),
        Err(error) => Err(BindError::new(param, format_args!("{} is no base64: {error}", value.quoted()))),
    }
}

pub(super) fn into_text<'m>(param: &Param, value: Value<'m>) -> Result<Value<'m>, BindError> {
    Ok(Value::Text(match value {
        Value::Null => return Ok(Value::Null),
        Value::Bool(true) => Cow::Borrowed("true"),
        Value::Bool(false) => Cow::Borrowed("false"),
        Value::Number(text) | Value::Json(text) => Cow::Borrowed(text),
        Value::Text(text) => text,
        Value::Int(number) | Value::Timestamp(number) => Cow::Owned(number.to_string()),
        Value::Opaque(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => return Err(BindError::mismatch(&param.name, "text", &value, "it is not UTF-8")),
        },
        Value::Bytes(ref bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Owned(text.to_owned()),
            Err(_) => return Err(BindError::mismatch(&param.name, "text", &value, "it is not UTF-8")),
        },
    }))
}

/// Milliseconds since the epoch as RFC 3339 in UTC, for a column that holds a point in time.
#[must_use]
pub fn format_timestamp(ms: i64) -> String {
    Timestamp(ms).to_string()
}

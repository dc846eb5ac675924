//! Looking into a JSON body without losing a digit (pure).
use crate::message_id::shown_text;
/// A parsed JSON pointer (RFC 6901).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

//! One form for every JSON value (pure): equal bytes for equal values however they are written, and for no others.
//!
//! Numbers count by their exact value (beyond an exponent of a thousand million by their token), strings by their
//! decoded text (half of a surrogate pair as its own code unit), arrays by their elements in order, objects by
//! their members in the order of their keys; of a key that stands twice both values count, in their order. Each
//! part ends by itself, so that parts one behind the other cannot be read in two ways. What is nested is put in as
//! its BLAKE3 hash: one pass, no recursion, and time in proportion to the text whatever its shape.
//!
//! ```text
//!  n · t · f · d NUMBER ; · D TOKEN ; · s LENGTH TEXT · a HASH of the elements · o HASH of the members, sorted
//! ```

use super::number::Number;

/// What is open.
struct Frame {
    is_object: bool,
    /// Where its parts begin in what is written.
    start: usize,
    /// Which of the members are its own: from this one on.
    members: usize,
    /// A key that waits for its value.
    key: Option<Key>,
}

/// Where a key lies in what is written.
#[derive(Clone, Copy)]
struct Key {
    start: usize,
    end: usize,
}

/// A member: from its key to the end of its value.
struct Member {
    key: Key,
    end: usize,
}

/// Appends a value's one form. The text is a value that was checked before; what is no JSON gives bytes of no meaning.
pub(crate) fn write(raw: &str, out: &mut Vec<u8>) {
    let mut writer = Writer { out, frames: vec![], members: vec![] };
    let mut rest = raw;
    while let Some(first) = rest.bytes().next() {
        let length = match first {
            b'{' | b'[' => writer.open(first == b'{'),
            b'}' | b']' => writer.close(),
            b'"' => {
                let length = string_length(rest);
                writer.string(part(rest, 1, length.saturating_sub(1)));
                length
            }
            b'-' | b'0'..=b'9' => {
                let length = number_length(rest);
                writer.number(part(rest, 0, length));
                length
            }
            b't' | b'f' | b'n' => {
                writer.out.push(first);
                writer.ended();
                if first == b'f' { 5 } else { 4 }
            }
            // White space, commas and colons. Outside of strings everything is ASCII.
            _ => 1,
        };
        rest = part(rest, length, rest.len());
    }
}

/// A part of a text; empty where it cannot be.
fn part(text: &str, from: usize, to: usize) -> &str {
    text.get(from..to).unwrap_or_default()
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    frames: Vec<Frame>,
    members: Vec<Member>,
}

impl Writer<'_> {
    fn open(&mut self, is_object: bool) -> usize {
        let (start, members) = (self.out.len(), self.members.len());
        self.frames.push(Frame { is_object, start, members, key: None });
        1
    }

    fn close(&mut self) -> usize {
        let Some(frame) = self.frames.pop() else { return 1 };
        let mut hasher = blake3::Hasher::new();
        if frame.is_object {
            let out = &*self.out;
            let own = self.members.get_mut(frame.members..).unwrap_or_default();
            let key = |member: &Member| out.get(member.key.start..member.key.end).unwrap_or_default();
            // Stable: of a key that stands twice the first value stays the first.
            own.sort_by(|a, b| key(a).cmp(key(b)));
            for member in own {
                hasher.update(out.get(member.key.start..member.end).unwrap_or_default());
            }
            self.members.truncate(frame.members);
        } else {
            hasher.update(self.out.get(frame.start..).unwrap_or_default());
        }
        self.out.truncate(frame.start);
        self.out.push(if frame.is_object { b'o' } else { b'a' });
        self.out.extend_from_slice(hasher.finalize().as_bytes());
        self.ended();
        1
    }

    /// A value has ended: with it the member it belongs to.
    fn ended(&mut self) {
        let end = self.out.len();
        if let Some(key) = self.frames.last_mut().and_then(|frame| frame.key.take()) {
            self.members.push(Member { key, end });
        }
    }

    fn string(&mut self, inner: &str) {
        let start = self.out.len();
        self.out.push(b's');
        let length_at = self.out.len();
        self.out.extend_from_slice(&[0; 8]);
        push_decoded(inner, self.out);
        let length = (self.out.len() - length_at - 8) as u64;
        if let Some(place) = self.out.get_mut(length_at..length_at + 8) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        let end = self.out.len();
        match self.frames.last_mut() {
            Some(frame) if frame.is_object && frame.key.is_none() => frame.key = Some(Key { start, end }),
            _ => self.ended(),
        }
    }

    fn number(&mut self, token: &str) {
        match Number::parse(token).and_then(|number| number.exact()) {
            Some(exact) => {
                self.out.push(b'd');
                exact.write(self.out);
            }
            None => {
                self.out.push(b'D');
                self.out.extend_from_slice(token.as_bytes());
            }
        }
        self.out.push(b';');
        self.ended();
    }
}

/// The bytes of a string with both its quotes.
fn string_length(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return at + 1,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    text.len()
}

fn number_length(text: &str) -> usize {
    let of_number = |byte: u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    text.bytes().position(|byte| !of_number(byte)).unwrap_or(text.len())
}

/// The text between the quotes of a string, decoded. Half of a surrogate pair becomes the three bytes that UTF-8
/// would have for its number: no text has them.
fn push_decoded(inner: &str, out: &mut Vec<u8>) {
    let mut rest = inner;
    while let Some((plain, behind)) = rest.split_once('\\') {
        out.extend_from_slice(plain.as_bytes());
        let Some(sign) = behind.chars().next() else { return };
        rest = part(behind, sign.len_utf8(), behind.len());
        let byte = match sign {
            'b' => 0x08,
            'f' => 0x0c,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'u' => {
                let (code, behind) = code_point(rest);
                push_code_point(code, out);
                rest = behind;
                continue;
            }
            // A quote, a backslash, a slash.
            _ => {
                out.extend_from_slice(sign.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        out.push(byte);
    }
    out.extend_from_slice(rest.as_bytes());
}

/// The code point that four hex digits begin, two halves of a pair put together; and what follows.
fn code_point(text: &str) -> (u32, &str) {
    let unit = |text: &str| text.get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let high = unit(text).unwrap_or_default();
    let behind = part(text, 4, text.len());
    if (0xd800..0xdc00).contains(&high)
        && let Some(second) = behind.strip_prefix("\\u")
        && let Some(low) = unit(second).filter(|low| (0xdc00..0xe000).contains(low))
    {
        return (0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), part(second, 4, second.len()));
    }
    (high, behind)
}

fn push_code_point(code: u32, out: &mut Vec<u8>) {
    match char::from_u32(code) {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            let byte =
                |shift: u32, mask: u32, mark: u8| mark | u8::try_from(code >> shift & mask).unwrap_or(0);
            out.extend_from_slice(&[byte(12, 0x0f, 0xe0), byte(6, 0x3f, 0x80), byte(0, 0x3f, 0x80)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn form(text: &str) -> Vec<u8> {
        let mut out = vec![];
        write(text, &mut out);
        out
    }

    #[test]
    fn one_value_has_one_form() {
        for same in [
            &["1", "1.0", "1e0", " 10e-1 "][..],
            &[r#""é\/\n""#, r#""\u00e9/\u000a""#, r#""\u00E9\/\u000A""#],
            &[r#""😀""#, r#""\ud83d\ude00""#, r#""\uD83D\uDE00""#],
            &[r#""\ud83d""#, r#""\uD83D""#],
            &[r#"{"a":1,"b":[true,null]}"#, r#" { "b" : [ true , null ] , "\u0061" : 1.0 } "#],
            &["[]", "[ ]"],
            &["{}", "{ \n}"],
            &[r#"{"x":{"b":2,"a":1},"w":[{"d":0,"c":""}]}"#, r#"{"w":[{"c":"","d":-0}],"x":{"a":1,"b":2}}"#],
            &["1e99999999999999999999"],
        ] {
            for text in same {
                assert_eq!(form(text), form(same[0]), "{text}");
            }
        }
    }

    #[test]
    fn values_apart_have_forms_apart() {
        let texts = [
            "null",
            "true",
            "false",
            "0",
            "1",
            "-1",
            "10",
            r#""""#,
            r#""1""#,
            r#""null""#,
            "[]",
            "{}",
            "[[]]",
            "[1]",
            "[1,1]",
            "[[1],1]",
            "[1,[1]]",
            r#"["1"]"#,
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
            r#"{"b":1}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":1,"b":1}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            r#"["a",1]"#,
            r#"["a",["b"]]"#,
            r#"["a","b"]"#,
            r#"["ab"]"#,
            r#"["","ab"]"#,
            r#""\ud83d""#,
            r#""\ude00""#,
            r#""\ude00\ud83d""#,
            r#""\ufffd""#,
            r#""\u0000""#,
            "1e99999999999999999999",
            "1e99999999999999999998",
            r#"[{"a":1},{}]"#,
            r#"[{},{"a":1}]"#,
        ];
        for (at, one) in texts.iter().enumerate() {
            for two in &texts[at + 1..] {
                assert_ne!(form(one), form(two), "{one} {two}");
            }
        }
    }

    #[test]
    fn hostile_nesting_takes_neither_stack_nor_quadratic_time() {
        let deep = 200_000;
        let arrays = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
        let objects = format!("{}1{}", r#"{"b":0,"a":"#.repeat(deep), "}".repeat(deep));
        for text in [arrays, objects] {
            assert_eq!(form(&text).len(), 33);
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-30_i64..30).prop_map(Value::from),
            "[ab\\\\\"\u{1}é😀]{0,3}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[ab]{0,2}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// The same value in another text: members turned round, blanks, escapes, other forms of numbers.
    fn rewritten(value: &Value) -> String {
        match value {
            Value::Array(items) => {
                format!("[ {} ]", items.iter().map(rewritten).collect::<Vec<_>>().join(" ,\n"))
            }
            Value::Object(members) => {
                let member = |(key, value): (&String, &Value)| {
                    format!("{} : {}", rewritten(&Value::from(key.as_str())), rewritten(value))
                };
                format!("{{\t{} }}", members.iter().rev().map(member).collect::<Vec<_>>().join(", "))
            }
            Value::String(text) => {
                let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
                format!("\"{}\"", units.collect::<String>())
            }
            Value::Number(number) if number.as_i64() == Some(0) => "-0.00e7".to_owned(),
            Value::Number(number) => format!("{number}0e-1"),
            other => other.to_string(),
        }
    }

    proptest! {
        #[test]
        fn the_form_is_that_of_the_value(one in values(), two in values()) {
            prop_assert_eq!(form(&one.to_string()), form(&rewritten(&one)));
            prop_assert_eq!(form(&one.to_string()) == form(&two.to_string()), one == two, "{} {}", one, two);
        }

        #[test]
        fn what_is_no_json_is_survived(text in any::<String>(), pieces in prop::collection::vec(prop::sample::select(vec!["{", "}", "[", "]", "\"", "\\", "\\u12", ":", ",", "1e", "t", "n", "é"]), 0..12)) {
            let _ = (form(&text), form(&pieces.concat()));
        }
    }
}

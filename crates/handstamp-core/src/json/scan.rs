//! One pass over JSON text (pure): is it JSON, and where do the parts of its outermost value lie?
//!
//! The grammar is RFC 8259's and nothing more. Nothing recurses: what is open lies in a vector. A `None`
//! says only that the text is not JSON; why is told by `serde_json`, which refuses the same texts.

use smallvec::SmallVec;
use std::ops::Range;

/// Members that need no memory of their own: shapes are made on one thread and dropped on another.
const MEMBERS_INLINE: usize = 6;

/// Where the parts of a text lie that is JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The value, without the white space around it.
    pub(super) root: Span,
    /// If it is an object, its members in order.
    pub(super) members: SmallVec<[Member; MEMBERS_INLINE]>,
}

/// A part of a text of at most 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Option<Self> {
        Some(Self { start: u32::try_from(start).ok()?, end: u32::try_from(end).ok()? })
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(super) fn len(self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Where a member of an object lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    /// The key with its quotes.
    pub(super) key: Span,
    /// The key holds no escape: between its quotes is its text.
    pub(super) plain: bool,
    /// The value.
    pub(super) value: Span,
}

/// Reads a text from its beginning.
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    /// The closing signs of what is open inside the value that is passed over.
    open: Vec<u8>,
}

/// Bytes that end the plain run of a string: a quote, a backslash, a control character.
const ENDS_RUN: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        ends[byte] = true;
        byte += 1;
    }
    ends[b'"' as usize] = true;
    ends[b'\\' as usize] = true;
    ends
};

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0, open: Vec::new() }
    }

    /// The shape of the whole text.
    pub(super) fn shape(mut self) -> Option<Shape> {
        self.skip_blank();
        let start = self.at;
        let members = match self.peek()? {
            b'{' => self.members()?,
            _ => {
                self.pass_value()?;
                SmallVec::new()
            }
        };
        let root = Span::new(start, self.at)?;
        self.is_at_end().then_some(Shape { root, members })
    }

    fn members(&mut self) -> Option<SmallVec<[Member; MEMBERS_INLINE]>> {
        let mut members = SmallVec::new();
        self.expect(b'{')?;
        self.skip_blank();
        if self.eat(b'}') {
            return Some(members);
        }
        loop {
            self.skip_blank();
            let (key, plain) = self.key()?;
            members.push(Member { key, plain, value: self.value()? });
            if self.ends(b'}')? {
                return Some(members);
            }
        }
    }

    /// One element of the array that is the whole text; `Some(None)` when it has fewer.
    pub(super) fn element(mut self, index: usize) -> Option<Option<Span>> {
        let mut found = None;
        self.expect(b'[')?;
        self.skip_blank();
        if !self.eat(b']') {
            for at in 0_usize.. {
                let value = self.value()?;
                if at == index {
                    found = Some(value);
                }
                if self.ends(b']')? {
                    break;
                }
            }
        }
        self.is_at_end().then_some(found)
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_blank();
        self.at == self.text.len()
    }

    /// After a member or element: true at the closing sign, false behind a comma.
    fn ends(&mut self, close: u8) -> Option<bool> {
        self.skip_blank();
        match self.next()? {
            b',' => Some(false),
            byte if byte == close => Some(true),
            _ => None,
        }
    }

    /// A key and its colon.
    fn key(&mut self) -> Option<(Span, bool)> {
        let start = self.at;
        let plain = self.string()?;
        let key = Span::new(start, self.at)?;
        self.skip_blank();
        self.expect(b':')?;
        Some((key, plain))
    }

    /// Where the next value lies.
    fn value(&mut self) -> Option<Span> {
        self.skip_blank();
        let start = self.at;
        self.pass_value()?;
        Span::new(start, self.at)
    }

    /// Passes over one value with everything in it.
    fn pass_value(&mut self) -> Option<()> {
        self.open.clear();
        loop {
            if self.pass_start()? {
                continue;
            }
            // A value has ended here: whatever it ends with it, until another one is wanted.
            loop {
                let Some(&close) = self.open.last() else { return Some(()) };
                if self.ends(close)? {
                    self.open.pop();
                    continue;
                }
                if close == b'}' {
                    self.skip_blank();
                    self.key()?;
                }
                break;
            }
        }
    }

    /// Passes over a scalar or what opens a value; true when another value begins inside it.
    fn pass_start(&mut self) -> Option<bool> {
        self.skip_blank();
        match self.peek()? {
            b'"' => self.string().map(|_| false),
            b'-' | b'0'..=b'9' => self.number().map(|()| false),
            b'{' => {
                self.at += 1;
                self.skip_blank();
                if self.eat(b'}') {
                    return Some(false);
                }
                self.key()?;
                self.open.push(b'}');
                Some(true)
            }
            b'[' => {
                self.at += 1;
                self.skip_blank();
                if self.eat(b']') {
                    return Some(false);
                }
                self.open.push(b']');
                Some(true)
            }
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => None,
        }
    }

    fn word(&mut self, word: &str) -> Option<bool> {
        if !self.text.get(self.at..)?.starts_with(word.as_bytes()) {
            return None;
        }
        self.at += word.len();
        Some(false)
    }

    /// A string with its quotes; true when it holds no escape.
    fn string(&mut self) -> Option<bool> {
        self.expect(b'"')?;
        let mut plain = true;
        loop {
            let rest = self.text.get(self.at..)?;
            self.at += rest.iter().position(|byte| ENDS_RUN[usize::from(*byte)])?;
            match self.next()? {
                b'"' => return Some(plain),
                b'\\' => self.escape()?,
                _ => return None,
            }
            plain = false;
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => (0..4).try_for_each(|_| self.next().filter(u8::is_ascii_hexdigit).map(drop)),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<()> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _signed = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
        }
        Some(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn skip_blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn eat(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        self.eat(wanted).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    /// Texts that are JSON, nearly JSON or nothing like it, in pieces that JSON is made of.
    fn texts() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            6 => prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"a\":", "\"b\" : ", "\"\\u0061\":", "null", "true", "false",
                "\"x\"", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\ud800\"", "\"\\u12g4\"", "\"é\"", "\"\\x\"", "\"\t\"",
                "\"", "\\", "\u{7f}", "{}", "[]", "{\"k\":[1,{\"l\":[]}]}", " ", "\n", "\r\t",
            ]).prop_map(str::to_owned),
            2 => "-?[0-9]{0,3}[.]?[0-9]{0,2}([eE][+-]?[0-9]{0,2})?",
            1 => any::<String>(),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    /// Any JSON value, written with blanks and without.
    fn values() -> impl Strategy<Value = String> {
        let scalar = prop_oneof![
            Just("null".to_owned()),
            Just("-0.5e+7".to_owned()),
            any::<i64>().prop_map(|number| number.to_string()),
            any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        ];
        scalar.prop_recursive(6, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5)
                    .prop_map(|parts| format!("[ {} ]", parts.join(" , "))),
                prop::collection::vec((any::<String>(), inner), 0..5).prop_map(|members| {
                    let members = members
                        .iter()
                        .map(|(key, value)| format!("{}: {value}", serde_json::to_string(key).unwrap()));
                    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
                }),
            ]
        })
    }

    fn serde_accepts(text: &str) -> bool {
        serde_json::from_str::<&RawValue>(text).is_ok()
    }

    proptest! {
        #[test]
        fn the_same_texts_are_json_as_for_serde(text in prop_oneof![texts(), values()]) {
            prop_assert_eq!(Scanner::new(&text).shape().is_some(), serde_accepts(&text), "{}", text);
        }

        /// One byte left out or doubled makes most texts wrong in one place only.
        #[test]
        fn a_slip_anywhere_is_judged_as_serde_does(text in values(), at in any::<prop::sample::Index>(), double in any::<bool>()) {
            let chars: Vec<char> = text.chars().collect();
            let at = at.index(chars.len());
            let slipped: String = chars.iter().enumerate().flat_map(|(n, c)| {
                std::iter::repeat_n(*c, if n != at { 1 } else if double { 2 } else { 0 })
            }).collect();
            prop_assert_eq!(Scanner::new(&slipped).shape().is_some(), serde_accepts(&slipped), "{}", slipped);
        }

        #[test]
        fn members_and_elements_are_the_raw_parts(values in prop::collection::vec(values(), 0..6), keys in prop::collection::vec(any::<String>(), 6)) {
            let keys: Vec<String> = keys.iter().map(|key| serde_json::to_string(key).unwrap()).collect();
            let object: Vec<String> = keys.iter().zip(&values).map(|(key, value)| format!(" {key} : {value} ")).collect();
            let object = format!("{{{}}}", object.join(","));
            let found = Scanner::new(&object).shape().unwrap();
            prop_assert_eq!((found.root.range(), found.members.len()), (0..object.len(), values.len()));
            for ((member, key), value) in found.members.into_iter().zip(&keys).zip(&values) {
                prop_assert_eq!((&object[member.key.range()], &object[member.value.range()]), (&key[..], &value[..]));
                prop_assert_eq!(member.plain, !key.contains('\\'));
            }
            let array = format!("[ {} ]", values.join(" , "));
            for (at, value) in values.iter().enumerate() {
                let found = Scanner::new(&array).element(at).unwrap().unwrap();
                prop_assert_eq!(&array[found.range()], &value[..]);
            }
            prop_assert_eq!(Scanner::new(&array).element(values.len()), Some(None));
        }
    }
}

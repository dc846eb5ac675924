//! Cutting SQL into tokens: just enough to find parameters and never to find one in a string or comment.
//!
//! Both databases' quoting is known: `'…'`, `E'…'`, `"…"`, `$tag$…$tag$`, `--`, nested `/* */`. Where
//! SQLite reads a text differently (it does not nest comments and has no `$tag$`), preparing the
//! statement refuses it, because the number of parameters differs.

use super::statement::StatementError;
use std::ops::Range;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// An unquoted word: keyword or name.
    Word,
    /// A quoted name.
    QuotedName,
    /// A string.
    Text,
    /// A number.
    Number,
    /// `:name`; the range covers the colon.
    Param,
    /// Anything else, one character at a time (`::` and `:=` are one).
    Sign,
}

/// One token of a statement; comments and white space are none.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) range: Range<usize>,
}

pub(super) fn tokenize(sql: &str) -> Result<Vec<Token>, StatementError> {
    let mut reader = Reader { sql, at: 0 };
    let mut tokens = Vec::new();
    while let Some(token) = reader.next_token()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Reader<'a> {
    sql: &'a str,
    at: usize,
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn continues_word(byte: u8) -> bool {
    starts_word(byte) || byte.is_ascii_digit()
}

impl Reader<'_> {
    fn byte(&self, ahead: usize) -> Option<u8> {
        self.sql.as_bytes().get(self.at + ahead).copied()
    }

    fn next_token(&mut self) -> Result<Option<Token>, StatementError> {
        self.skip_blank()?;
        let start = self.at;
        let Some(first) = self.byte(0) else {
            return Ok(None);
        };
        let kind = match first {
            b'\'' => self.quoted(b'\'', false)?,
            b'"' => self.quoted(b'"', false)?,
            b'e' | b'E' if self.byte(1) == Some(b'\'') => {
                self.at += 1;
                self.quoted(b'\'', true)?
            }
            b'u' | b'U' if self.byte(1) == Some(b'&') && matches!(self.byte(2), Some(b'"' | b'\'')) => {
                return Err(StatementError::UnicodeEscape);
            }
            b'$' => self.dollar()?,
            b'?' => return Err(StatementError::Positional("?")),
            b':' => self.colon(),
            byte if starts_word(byte) => {
                self.skip_while(|byte| continues_word(byte) || byte == b'$');
                TokenKind::Word
            }
            byte if byte.is_ascii_digit() => {
                self.skip_while(|byte| continues_word(byte) || byte == b'.');
                TokenKind::Number
            }
            _ => {
                self.at += 1;
                TokenKind::Sign
            }
        };
        Ok(Some(Token { kind, range: start..self.at }))
    }

    fn skip_while(&mut self, fits: impl Fn(u8) -> bool) {
        while self.byte(0).is_some_and(&fits) {
            self.at += 1;
        }
    }

    fn skip_blank(&mut self) -> Result<(), StatementError> {
        loop {
            match (self.byte(0), self.byte(1)) {
                (Some(b'-'), Some(b'-')) => self.skip_while(|byte| byte != b'\n'),
                (Some(b'/'), Some(b'*')) => self.skip_comment()?,
                (Some(byte), _) if byte.is_ascii_whitespace() || byte == 0x0b => self.at += 1,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), StatementError> {
        let mut depth = 0_usize;
        loop {
            match (self.byte(0), self.byte(1)) {
                (Some(b'/'), Some(b'*')) => {
                    depth += 1;
                    self.at += 2;
                }
                (Some(b'*'), Some(b'/')) => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                (Some(_), _) => self.at += 1,
                (None, _) => return Err(StatementError::Unterminated("comment")),
            }
        }
    }

    /// From an opening quote to behind the closing one; a doubled quote is part of it.
    fn quoted(&mut self, quote: u8, escapes: bool) -> Result<TokenKind, StatementError> {
        self.at += 1;
        loop {
            match self.byte(0) {
                Some(b'\\') if escapes => self.at += if self.byte(1).is_some() { 2 } else { 1 },
                Some(byte) if byte == quote && self.byte(1) == Some(quote) => self.at += 2,
                Some(byte) if byte == quote => {
                    self.at += 1;
                    return Ok(if quote == b'"' { TokenKind::QuotedName } else { TokenKind::Text });
                }
                Some(_) => self.at += 1,
                None => {
                    let what = if quote == b'"' { "quoted name" } else { "string" };
                    return Err(StatementError::Unterminated(what));
                }
            }
        }
    }

    /// `$tag$ … $tag$`; anything else behind a dollar is a parameter that is not ours.
    fn dollar(&mut self) -> Result<TokenKind, StatementError> {
        let rest = self.sql.get(self.at..).unwrap_or_default();
        let bytes = rest.as_bytes();
        let mut end = 1;
        while bytes.get(end).is_some_and(|&byte| continues_word(byte)) {
            end += 1;
        }
        let named = bytes.get(1).is_some_and(|&byte| starts_word(byte) || byte == b'$');
        if !named || bytes.get(end) != Some(&b'$') {
            return Err(StatementError::Positional("$"));
        }
        let (tag, body) = rest.split_at(end + 1);
        let length = body.find(tag).ok_or(StatementError::Unterminated("dollar-quoted string"))?;
        self.at += 2 * tag.len() + length;
        Ok(TokenKind::Text)
    }

    fn colon(&mut self) -> TokenKind {
        match self.byte(1) {
            Some(b':' | b'=') => {
                self.at += 2;
                TokenKind::Sign
            }
            Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' => {
                self.at += 1;
                self.skip_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                TokenKind::Param
            }
            _ => {
                self.at += 1;
                TokenKind::Sign
            }
        }
    }
}

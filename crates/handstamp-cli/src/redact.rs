//! Keeping secrets out of every output.
//!
//! First line of defence: messages are made from names, never from values. Last resort: every secret
//! that the program learns is registered here, and everything written to a terminal, a log or a pipe
//! passes through [`redact`]. (`dlq export` and `dlq show` print the bodies that were asked for.)

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

/// What stands where a secret was.
pub(crate) const MASK: &str = "***";

/// Shorter secrets are not searched for: replacing every `a` would hide the output, not the secret.
const SECRET_BYTES_MIN: usize = 4;

/// Words that this program prints by itself; a password like that cannot be masked in running text.
const OWN_WORDS: [&str; 8] =
    ["postgres", "postgresql", "sqlite", "kafka", "handstamp", "password", "admin", "test"];

static SECRETS: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// Makes a text one that is masked wherever it would be printed, in its spellings.
pub(crate) fn register(secret: &str) {
    if secret.len() < SECRET_BYTES_MIN || OWN_WORDS.contains(&secret.to_ascii_lowercase().as_str()) {
        return;
    }
    let mut spellings = Vec::new();
    for text in [secret.to_owned(), percent_decoded(secret)] {
        spellings.push(percent_encoded(&text));
        spellings.push(text.escape_debug().to_string());
        if let Ok(json) = serde_json::to_string(&text) {
            spellings.push(json[1..json.len() - 1].to_owned());
        }
        spellings.push(text);
    }
    let mut known = SECRETS.write().unwrap_or_else(PoisonError::into_inner);
    for spelling in spellings {
        if spelling.len() >= SECRET_BYTES_MIN && !known.contains(&spelling) {
            known.push(spelling);
        }
    }
    // Longest first: a secret inside another one must not leave the rest of it readable.
    known.sort_by_key(|text| std::cmp::Reverse(text.len()));
}

/// The text with every registered secret masked.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    let known = SECRETS.read().unwrap_or_else(PoisonError::into_inner);
    let mut out = Cow::Borrowed(text);
    for secret in known.iter() {
        if out.contains(secret.as_str()) {
            out = Cow::Owned(out.replace(secret.as_str(), MASK));
        }
    }
    out
}

/// Registers the passwords of a connection string: `scheme://user:PASSWORD@host`, `?password=`, and
/// the `password=` of a key-value string.
pub(crate) fn register_url(url: &str) {
    if let Some((start, end)) = userinfo_password(url) {
        register(&url[start..end]);
    }
    for (start, end) in password_parameters(url) {
        register(&url[start..end]);
    }
}

/// A connection string with its passwords masked.
pub(crate) fn masked_url(url: &str) -> String {
    let mut ranges = password_parameters(url);
    ranges.extend(userinfo_password(url));
    ranges.sort_unstable();
    let mut out = url.to_owned();
    for (start, end) in ranges.into_iter().rev() {
        out.replace_range(start..end, MASK);
    }
    out
}

/// Whether an option of a client library carries a secret, by its name.
pub(crate) fn is_secret_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    [
        "password",
        "passphrase",
        "secret",
        "token",
        "credential",
        "jaas",
        ".pem",
        "private",
        "oauthbearer.config",
    ]
    .iter()
    .any(|word| key.contains(word))
}

fn userinfo_password(url: &str) -> Option<(usize, usize)> {
    let authority = url.find("://")? + 3;
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
    // A password may hold an `@` or a `/` that should have been escaped: take the last `@` there is.
    let at = url[authority..end]
        .rfind('@')
        .map(|at| authority + at)
        .or_else(|| url[authority..].rfind('@').map(|at| authority + at))?;
    let colon = authority + url[authority..at].find(':')?;
    (colon + 1 < at).then_some((colon + 1, at))
}

fn password_parameters(url: &str) -> Vec<(usize, usize)> {
    let lower = url.to_ascii_lowercase();
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = lower[from..].find("password=") {
        let start = from + at + "password=".len();
        let quoted = url[start..].starts_with('\'');
        let end = if quoted {
            url[start + 1..].find('\'').map_or(url.len(), |n| start + 1 + n + 1)
        } else {
            url[start..].find(['&', ' ', '\t', '\n']).map_or(url.len(), |n| start + n)
        };
        let (inner_start, inner_end) =
            if quoted && end > start + 1 { (start + 1, end - 1) } else { (start, end) };
        if inner_start < inner_end {
            found.push((inner_start, inner_end));
        }
        from = end;
    }
    found
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        match hex.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(decoded) if byte == b'%' => {
                out.push(decoded);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_every_connection_string_are_found() {
        for (url, masked) in [
            ("postgres://u:canary-1@h/db", "postgres://u:***@h/db"),
            ("postgres://u:canary/2@h:5/db?x=1", "postgres://u:***@h:5/db?x=1"),
            ("postgres://u@h/db?password=canary-3&x=1", "postgres://u@h/db?password=***&x=1"),
            ("host=h password=canary-4 user=u", "host=h password=*** user=u"),
            ("host=h password='canary 5' user=u", "host=h password='***' user=u"),
            ("postgres://u@h/db", "postgres://u@h/db"),
        ] {
            assert_eq!(masked_url(url), masked);
        }
    }

    #[test]
    fn a_registered_secret_is_masked_in_every_spelling() {
        register_url("postgres://u:can%40ry\"7@h/db");
        for text in ["can%40ry\"7", "can@ry\"7", "can@ry\\\"7", "x can%40ry%227 y"] {
            let shown = redact(text);
            assert!(!shown.contains("ry"), "{text} was shown as {shown}");
        }
    }
}

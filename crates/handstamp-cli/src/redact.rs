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
const OWN_WORDS: [&str; 14] = [
    "postgres",
    "postgresql",
    "sqlite",
    "kafka",
    "handstamp",
    "password",
    "admin",
    "test",
    "true",
    "false",
    "none",
    "default",
    "oidc",
    "http",
];

/// Where a password that was not escaped may be cut by whoever reads it.
const CUTS: [char; 15] = ['@', '/', ':', ',', ';', '?', '#', '&', '=', '\\', '\'', '"', ' ', '\t', '\n'];

/// The parameters of a connection string that hold no secret. Any other one, a misspelt one included,
/// is taken for a password.
const OPEN_PARAMETERS: [&str; 22] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "fallback_application_name",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "port",
    "sslcert",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

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

/// Registers whatever may be a password in a connection string, valid or not: all between the first
/// colon and the last `@`, and the value of every parameter that is not known to hold none.
pub(crate) fn register_url(url: &str) {
    if let Some((start, end)) = credentials(url) {
        register_pieces(&url[start..end]);
        // A reader that ends the password at an earlier `@` or `/` takes what follows for a place.
        for (at, _) in url[start..end].char_indices().filter(|(_, c)| CUTS.contains(c)) {
            register(&url[start + at + 1..end]);
            register(&url[start + at + 1..]);
        }
    }
    let mut from = 0;
    while let Some(at) = url[from..].find('=').map(|at| from + at) {
        from = at + 1;
        let key = parameter_key(&url[..at]);
        if key == "options" {
            from += value_length(&url[from..]);
        } else if !OPEN_PARAMETERS.contains(&key.as_str()) {
            let blanks = url[from..].len() - url[from..].trim_start().len();
            let start = from + blanks;
            let end = start + value_length(&url[start..]);
            register_pieces(&url[start..end]);
            register(&url[start..end].replace('\\', ""));
            register_pieces(&unquoted(&url[start..end]));
            register_rest(&url[end..]);
            from = end.max(from);
        }
    }
}

/// A text and each part of it that a reader may cut out.
fn register_pieces(text: &str) {
    register(text);
    for whole in [text.to_owned(), percent_decoded(text)] {
        whole.split(CUTS).for_each(register);
    }
}

/// A password with a blank in it that was not quoted goes on until the next known parameter.
fn register_rest(rest: &str) {
    if !rest.starts_with([' ', '\t', '\n']) {
        return;
    }
    for word in rest.split_whitespace() {
        let key = word.split('=').next().unwrap_or(word).to_ascii_lowercase();
        if OPEN_PARAMETERS.contains(&key.as_str()) {
            return;
        }
        register_pieces(word);
    }
}

/// From behind the first colon after the scheme up to the last `@`.
fn credentials(url: &str) -> Option<(usize, usize)> {
    let lower = url.to_ascii_lowercase();
    let scheme = ["postgresql:", "postgres:"].into_iter().find(|scheme| lower.starts_with(scheme));
    let after = url.find("://").map(|at| at + 3).or(scheme.map(str::len)).unwrap_or(0);
    let end = url.rfind('@').filter(|at| *at > after)?;
    let start = after + url[after..end].find(':')? + 1;
    (start < end).then_some((start, end))
}

/// The word before an equals sign, as a reader would understand it.
fn parameter_key(before: &str) -> String {
    let before = before.trim_end();
    let start = before
        .char_indices()
        .rfind(|(_, c)| c.is_whitespace() || "?&,;'".contains(*c))
        .map_or(0, |(at, c)| at + c.len_utf8());
    percent_decoded(&before[start..]).to_ascii_lowercase()
}

/// How long a parameter's value is: to its closing quote, or to the next blank or `&`; a backslash
/// keeps what follows it.
fn value_length(text: &str) -> usize {
    let quoted = text.starts_with('\'');
    let mut kept = false;
    for (at, c) in text.char_indices().skip(usize::from(quoted)) {
        let ends = if quoted { c == '\'' } else { c.is_whitespace() || c == '&' };
        if ends && !kept {
            return if quoted { at + 1 } else { at };
        }
        kept = c == '\\' && !kept;
    }
    text.len()
}

/// A parameter's value without its quotes and backslashes.
fn unquoted(text: &str) -> String {
    let inner = text.strip_prefix('\'').map_or(text, |rest| rest.strip_suffix('\'').unwrap_or(rest));
    let mut out = String::new();
    let mut letters = inner.chars();
    while let Some(c) = letters.next() {
        out.extend(if c == '\\' { letters.next() } else { Some(c) });
    }
    out
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

    /// However a password was written, no reader's idea of where it ends shows a part of it.
    #[test]
    fn no_part_of_a_password_is_shown_however_it_was_written() {
        for (url, parts) in [
            ("postgres://u:Wr0ngA@TailSecA/xA@127.0.0.1/db", &["Wr0ngA", "TailSecA", "xA@127.0.0.1/db"][..]),
            ("host=h password = canaryB1 user=u", &["canaryB1"]),
            ("host=h password\t=\tcanaryB2", &["canaryB2"]),
            (r"host=h password='qa\'canaryC' user=u", &["canaryC", r"qa\'canaryC", "qa'canaryC"]),
            (r"host=h password=qd\ canaryD user=u", &["canaryD", r"qd\ canaryD", "qd canaryD"]),
            ("host=h password=qe canaryE=1 user=u", &["canaryE"]),
            ("host=h passwd=canaryF", &["canaryF"]),
            ("host=h pasword=canaryG", &["canaryG"]),
            ("postgres://u@h/db?pass%77ord=canaryH", &["canaryH"]),
            ("postgres://u@h/db&password=canaryI", &["canaryI"]),
            ("u:canaryJ@h/db", &["canaryJ"]),
            ("postgres:/u:canaryK@h", &["canaryK"]),
            ("postgres://u:canaryL@h/db,postgres://u:canaryM@h/db", &["canaryL", "canaryM"]),
            ("postgres://u:canary%4eN@h/db", &["canary%4eN", "canaryNN"]),
        ] {
            register_url(url);
            for part in parts {
                let said = format!("<{part}>");
                assert_eq!(redact(&said), "<***>", "{part} of {url}");
            }
        }
    }

    #[test]
    fn what_is_no_password_is_not_masked() {
        register_url(
            "postgres://u:canaryO@openhost:5432/opendb?sslmode=disable&options=-csearch_path=openpath",
        );
        register_url("host=openhost2 dbname=opendb2 password=canaryP application_name=openname");
        for open in ["openhost:5432/opendb", "disable", "openpath", "openhost2/opendb2", "openname"] {
            assert_eq!(redact(open), open);
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

//! What the user says about a Postgres store: where it is, how it is reached, how long things may take.
//!
//! Authoritative: the values here; the server's and role's own timeouts are overridden inside our
//! transactions. Nothing in this file shows a password: not in `Debug`, not in an error.

use super::tls::{Roots, TlsMode};
use handstamp_core::{StoreError, StoreErrorKind};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};

/// The schema our objects live in: `[a-z_][a-z0-9_]{0,62}`, `handstamp` unless told otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SchemaName(String);

impl SchemaName {
    /// Checks a schema's name.
    ///
    /// # Errors
    /// `Config` when it does not match `[a-z_][a-z0-9_]{0,62}` or begins with `pg_`.
    pub fn new(name: &str) -> Result<Self, StoreError> {
        let mut chars = name.chars();
        let first = chars.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_');
        let rest = chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if first && rest && name.len() <= 63 && !name.starts_with("pg_") {
            return Ok(Self(name.to_owned()));
        }
        let shown: String = name.chars().take(80).collect();
        Err(StoreError::new(
            StoreErrorKind::Config,
            format!("{shown:?} is no schema name: use 1 to 63 of a-z 0-9 _, no digit first, not pg_"),
        ))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// SQL text with `{schema}` and `{guard}` filled in and comment lines left out.
    pub(crate) fn render(&self, sql: &str, guard: &str) -> String {
        let mut out = String::with_capacity(sql.len());
        for line in sql.lines().filter(|line| !line.trim_start().starts_with("--")) {
            out.push_str(line);
            out.push('\n');
        }
        out.replace("{schema}", &format!("\"{}\"", self.0)).replace("{guard}", guard)
    }
}

impl Default for SchemaName {
    fn default() -> Self {
        Self("handstamp".to_owned())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a Postgres store is and how long things may take.
#[derive(Clone)]
pub struct PostgresOptions {
    pub(crate) config: Config,
    pub(crate) tls: TlsMode,
    pub(crate) roots: Roots,
    /// The schema of our own tables.
    pub schema: SchemaName,
    /// Longest wait for one server address, TLS and log-in included.
    pub connect_timeout: Duration,
    /// Longest wait for a lock. Must be longer than the server's `deadlock_timeout` (1 s by default), so
    /// that a deadlock is told from a queue.
    pub lock_timeout: Duration,
    /// Longest run of one statement: the handler's time limit.
    pub statement_timeout: Duration,
    /// Longest pause between two statements of a transaction; longer than the handler's time limit.
    pub idle_in_transaction_timeout: Duration,
    /// Longest wait for the answer to COMMIT; after it the outcome is unknown and the batch runs again.
    pub commit_timeout: Duration,
    /// Longest wait for the answer to ROLLBACK; after it the connection is closed.
    pub rollback_timeout: Duration,
    /// Longest wait for each step of abandoning a transaction: cancel, rollback, close.
    pub abandon_timeout: Duration,
    /// Idle connections kept; more are closed when they come back.
    pub idle_connections_max: usize,
}

impl PostgresOptions {
    /// Reads a URL (`postgres://user:password@host:5432/database?sslmode=verify-full`) or a
    /// `key=value` string.
    ///
    /// `sslmode` is `disable`, `prefer` (default), `require`, `verify-ca` or `verify-full`;
    /// `sslrootcert` is a PEM file or `system` (default).
    ///
    /// # Errors
    /// `Config`, with the part that is wrong but never its secret.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        // A second @ belongs to a password that is not encoded: the driver would take its tail for a host,
        // and hosts are shown.
        if url.contains("://") && url.matches('@').count() > 1 {
            return Err(bad(
                "the Postgres URL has more than one @: percent-encode @ : / ? # % in the password (@ is %40)",
            ));
        }
        refuse_scheme(url)?;
        let (stripped, ssl) = take_ssl(url)?;
        let mut config = Config::from_str(&stripped).map_err(|_| {
            // The driver's text may quote a piece of the password: it is left out on purpose.
            mistake(&stripped).unwrap_or_else(|| bad("the Postgres URL cannot be read: write postgres://user:password@host:5432/database and percent-encode @ : / ? # % in the password"))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(bad("the Postgres URL names no host: write postgres://user@host:5432/database"));
        }
        let roots = match ssl.root_cert.as_deref() {
            None | Some("system") => Roots::System,
            Some(path) => Roots::File(PathBuf::from(path)),
        };
        let tls = match (ssl.mode, &ssl.root_cert) {
            // As libpq does: a root certificate that is given is used.
            (TlsMode::Require, Some(_)) => TlsMode::VerifyCa,
            (mode, _) => mode,
        };
        config.ssl_mode(match tls {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("handstamp");
        }
        let connect_timeout = config.get_connect_timeout().copied().unwrap_or(Duration::from_secs(10));
        config.connect_timeout(connect_timeout);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(30));
        }
        if !url.contains("keepalives") {
            config.keepalives_idle(Duration::from_secs(30));
            config.keepalives_interval(Duration::from_secs(10));
            config.keepalives_retries(3);
        }
        Ok(Self {
            config,
            tls,
            roots,
            schema: SchemaName::default(),
            connect_timeout,
            lock_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            idle_in_transaction_timeout: Duration::from_secs(60),
            commit_timeout: Duration::from_secs(30),
            rollback_timeout: Duration::from_secs(5),
            abandon_timeout: Duration::from_secs(1),
            idle_connections_max: 16,
        })
    }

    /// How the driver connects, and whether it hands us the bare socket. It does so only where it knows a
    /// host name: elsewhere it asks for TLS by itself.
    pub(crate) fn wired(&self) -> (Config, bool) {
        let hosts = self.config.get_hosts();
        let direct = !hosts.is_empty() && hosts.iter().all(|host| matches!(host, Host::Tcp(_)));
        let mut config = self.config.clone();
        if direct {
            config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        }
        (config, direct)
    }

    /// The same with the statement and idle limits that follow from the handler's time limit.
    #[must_use]
    pub fn with_handler_timeout(mut self, handler_timeout: Duration) -> Self {
        self.statement_timeout = handler_timeout;
        self.idle_in_transaction_timeout = handler_timeout.saturating_mul(2);
        self
    }

    /// The same with another schema for our tables.
    #[must_use]
    pub fn with_schema(mut self, schema: SchemaName) -> Self {
        self.schema = schema;
        self
    }

    /// Where this leads, without user or password: `host:port/database`.
    #[must_use]
    pub fn place(&self) -> String {
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let mut hosts: Vec<String> = Vec::new();
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            hosts.push(match host {
                Host::Tcp(name) => format!("{name}:{}", port(at)),
                #[cfg(unix)]
                Host::Unix(path) => format!("{}:{}", path.display(), port(at)),
            });
        }
        if hosts.is_empty() {
            let addresses = self.config.get_hostaddrs().iter().enumerate();
            hosts.extend(addresses.map(|(at, a)| format!("{a}:{}", port(at))));
        }
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("");
        format!("{}/{database}", hosts.join(","))
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("place", &self.place())
            .field("user", &self.config.get_user())
            .field("tls", &self.tls)
            .field("schema", &self.schema.as_str())
            .field("lock_timeout", &self.lock_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("idle_in_transaction_timeout", &self.idle_in_transaction_timeout)
            .field("commit_timeout", &self.commit_timeout)
            .finish_non_exhaustive()
    }
}

struct Ssl {
    mode: TlsMode,
    root_cert: Option<String>,
}

impl Ssl {
    /// Takes a pair that the driver does not know in all its values; false for any other pair.
    fn take(&mut self, key: &str, value: &str) -> Result<bool, StoreError> {
        match key {
            "sslmode" => {
                self.mode = match value {
                    "disable" => TlsMode::Disable,
                    "prefer" | "allow" => TlsMode::Prefer,
                    "require" => TlsMode::Require,
                    "verify-ca" => TlsMode::VerifyCa,
                    "verify-full" => TlsMode::VerifyFull,
                    _ => {
                        return Err(bad("sslmode is disable, prefer, require, verify-ca or verify-full"));
                    }
                };
                Ok(true)
            }
            "sslrootcert" => {
                self.root_cert = Some(percent_decoded(value));
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// The string without `sslmode` and `sslrootcert`, and what they said.
fn take_ssl(url: &str) -> Result<(String, Ssl), StoreError> {
    let mut ssl = Ssl { mode: TlsMode::Prefer, root_cert: None };
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let authority = url.find('@').unwrap_or(0);
        let Some(question) = url[authority..].find('?').map(|at| at + authority) else {
            return Ok((url.to_owned(), ssl));
        };
        let mut kept = Vec::new();
        for pair in url[question + 1..].split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !ssl.take(key, value)? {
                kept.push(pair);
            }
        }
        let mut out = url[..question].to_owned();
        if !kept.is_empty() {
            out.push('?');
            out.push_str(&kept.join("&"));
        }
        return Ok((out, ssl));
    }
    let mut kept = Vec::new();
    for word in words(url) {
        let (key, value) = word.split_once('=').unwrap_or((&word, ""));
        if !ssl.take(key.trim(), value.trim().trim_matches('\''))? {
            kept.push(word);
        }
    }
    Ok((kept.join(" "), ssl))
}

/// Splits `key=value key='a b'` at white space outside quotes.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quoted, mut escaped) = (String::new(), false, false);
    for c in text.chars() {
        if c.is_whitespace() && !quoted && !escaped {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        if c == '\'' && !escaped {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
        word.push(c);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// What may stand in a connection string, in a URL's query or as `key=value`.
const KEYS: [&str; 20] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "password",
    "port",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// A URL of another kind of database.
fn refuse_scheme(url: &str) -> Result<(), StoreError> {
    let Some((scheme, _)) = url.split_once("://") else { return Ok(()) };
    let is_scheme = !scheme.is_empty()
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-'));
    if !is_scheme || matches!(scheme, "postgres" | "postgresql") {
        return Ok(());
    }
    Err(bad(&format!("the URL begins with {scheme}://: write postgres://user:password@host:5432/database")))
}

/// Which key of a string that cannot be read is wrong. No value is named, nor a word that may be a piece of a
/// password: what does not look like a key, and what stands behind a password in plain sight.
fn mistake(stripped: &str) -> Option<StoreError> {
    let is_url = stripped.contains("://");
    let pairs: Vec<String> = if is_url {
        // Without an @ it may be the password that has the ? in it.
        let (_, behind) = stripped.split_once('@')?;
        behind.split_once('?')?.1.split('&').map(str::to_owned).collect()
    } else {
        words(stripped)
    };
    for pair in pairs {
        let (key, value) = pair.split_once('=').unwrap_or((&pair, ""));
        if !KEYS.contains(&key) {
            let is_key = key.starts_with(|c: char| c.is_ascii_lowercase())
                && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            return is_key.then(|| unknown_key(key));
        }
        if value.is_empty() {
            return Some(bad(&format!("the Postgres URL: `{key}` has no value")));
        }
        if key == "password" {
            return None;
        }
        let alone = if is_url { format!("postgres://h/?{pair}") } else { pair.clone() };
        if Config::from_str(&alone).is_err() {
            return Some(bad(&format!("the Postgres URL: the value of `{key}` cannot be")));
        }
    }
    None
}

fn unknown_key(key: &str) -> StoreError {
    let near = KEYS
        .iter()
        .map(|known| (strsim::damerau_levenshtein(key, known), *known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len().min(key.len()) / 3);
    let advice = match near {
        Some((_, known)) => format!("did you mean `{known}`?"),
        None => format!("known are {}", KEYS.join(", ")),
    };
    bad(&format!("the Postgres URL: unknown key `{key}`; {advice}"))
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).and_then(|h| u8::from_str_radix(h, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn bad(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4n4ry";

    #[test]
    fn every_sslmode_is_read_in_both_spellings() {
        for (word, mode) in [
            ("disable", TlsMode::Disable),
            ("prefer", TlsMode::Prefer),
            ("require", TlsMode::Require),
            ("verify-ca", TlsMode::VerifyCa),
            ("verify-full", TlsMode::VerifyFull),
        ] {
            let url = format!("postgres://u:p@127.0.0.1:5433/db?application_name=x&sslmode={word}");
            let options = PostgresOptions::parse(&url).unwrap();
            assert_eq!(options.tls, mode, "{url}");
            assert_eq!(options.config.get_application_name(), Some("x"));
            let pairs = format!("host=h user=u password='a b' sslmode={word} dbname=db");
            let options = PostgresOptions::parse(&pairs).unwrap();
            assert_eq!(options.tls, mode, "{pairs}");
            assert_eq!(options.config.get_password(), Some(&b"a b"[..]));
        }
    }

    #[test]
    fn a_root_certificate_raises_require_to_verify_ca() {
        let url = "postgres://u@h/db?sslmode=require&sslrootcert=%2Fa%20b%2Fca.pem";
        let options = PostgresOptions::parse(url).unwrap();
        assert_eq!(options.tls, TlsMode::VerifyCa);
        assert!(matches!(&options.roots, Roots::File(p) if p.to_str() == Some("/a b/ca.pem")));
    }

    #[test]
    fn no_password_is_shown_by_debug_or_by_an_error() {
        let good = format!("postgres://u:{CANARY}@h:1/db");
        assert!(!format!("{:?}", PostgresOptions::parse(&good).unwrap()).contains(CANARY));
        for bad in [
            format!("postgres://u:{CANARY}@h:port/db"),
            format!("postgres://u:x{CANARY}@h:1/db?{CANARY}=1"),
            format!("postgres://u:p/{CANARY}@h:1/db?sslmode={CANARY}"),
            format!("postgres://u:{CANARY}@/db"),
            format!("password={CANARY}"),
            format!("host=h {CANARY}"),
        ] {
            let error = PostgresOptions::parse(&bad).expect_err(&bad);
            assert_eq!(error.kind, StoreErrorKind::Config);
            assert!(!format!("{error:?} {error}").contains(CANARY), "{error:?}");
        }
    }

    #[test]
    fn schema_names_need_no_escaping() {
        assert!(SchemaName::new("handstamp").is_ok());
        assert!(SchemaName::new("user").is_ok(), "quoted everywhere");
        for bad in ["", "A", "a-b", "a\"b", "1a", "pg_x", &"x".repeat(64)] {
            assert!(SchemaName::new(bad).is_err(), "{bad}");
        }
    }
}

//! Logs to standard error, each line through the redaction, never in the middle of the live line.
//!
//! As text for people, or as JSON, one object a line: `time` (RFC 3339, UTC), `level`, `target`, `message` and `fields`.
//! In JSON the texts are redacted one by one, so that a password that looks like a number leaves an object one.

use crate::cli::LogFormat;
use crate::exit::CliError;
use crate::output::{json, live};
use crate::redact;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// How lines are written, once that is known.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Starts logging.
///
/// # Errors
/// The level or filter is none.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), CliError> {
    let format = *FORMAT.get_or_init(|| format);
    // Levels by target. Filters by span fields would bring regular expressions into every small build.
    let parsed: Targets = filter.parse().map_err(|_| {
        CliError::usage(format!("--log: {filter:?} is no level"))
            .hint("use off, error, warn, info, debug or trace")
    })?;
    let text = || {
        tracing_subscriber::fmt::layer()
            .with_writer(Stderr)
            .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    };
    let (text, objects) = match format {
        LogFormat::Text => (Some(text()), None),
        LogFormat::Json => (None, Some(Objects)),
    };
    tracing_subscriber::registry()
        .with(text)
        .with(objects)
        .with(parsed)
        .try_init()
        .map_err(|error| CliError::new(crate::exit::Exit::Unexpected, format!("logging: {error}")))
}

/// Whether every line on standard error is an object.
pub(crate) fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Writes one object.
pub(crate) fn write_json(level: Level, target: &str, message: &str, fields: Map<String, Value>) {
    live::write_above(&object(SystemTime::now(), level, target, message, fields));
}

/// What a line is, in this order.
#[derive(Serialize)]
struct Object<'a> {
    time: String,
    level: &'a str,
    target: &'a str,
    message: &'a str,
    fields: Value,
}

fn object(now: SystemTime, level: Level, target: &str, message: &str, fields: Map<String, Value>) -> String {
    let object = Object {
        time: humantime::format_rfc3339_micros(now).to_string(),
        level: level.as_str(),
        target,
        message: &redact::redact(message),
        fields: json::redacted(&Value::Object(fields)),
    };
    // Texts and numbers have no way to fail.
    serde_json::to_string(&object).map(|line| format!("{line}\n")).unwrap_or_default()
}

/// Writes each event as an object.
struct Objects;

impl<S: Subscriber> Layer<S> for Objects {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let about = event.metadata();
        write_json(*about.level(), about.target(), &fields.message, fields.others);
    }
}

/// The fields of an event, its message apart.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn keep(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.insert(field.name().to_owned(), value.into());
    }

    fn keep_text(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.keep(field, text);
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep_text(field, value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.keep_text(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep_text(field, format!("{value:?}"));
    }
}

struct Stderr;

impl<'w> MakeWriter<'w> for Stderr {
    type Writer = Line;

    fn make_writer(&'w self) -> Line {
        Line(Vec::new())
    }
}

/// One log line, written at its end: a secret must not slip through between two writes.
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        live::write_above(&redact::redact(&text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_is_one_object_in_its_order_whatever_its_texts_hold() {
        redact::register("80808080");
        let mut fields = Map::new();
        fields.insert("count".to_owned(), json!(80_808_080));
        fields.insert("url".to_owned(), json!("postgres://u:80808080@h"));
        let line = object(SystemTime::UNIX_EPOCH, Level::WARN, "handstamp", "a\n\"b\" 80808080", fields);
        assert_eq!(
            line,
            "{\"time\":\"1970-01-01T00:00:00.000000Z\",\"level\":\"WARN\",\"target\":\"handstamp\",\
             \"message\":\"a\\n\\\"b\\\" ***\",\"fields\":{\"count\":80808080,\"url\":\"postgres://u:***@h\"}}\n"
        );
    }
}

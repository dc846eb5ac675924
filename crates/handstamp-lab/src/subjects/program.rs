//! The ready-made program: `handstamp run pipeline.toml`. Its work is a first effect that sleeps, so it needs
//! a database that can sleep: Postgres.

use super::{CONSUMER, Setup};
use crate::error::{LabError, LabErrorKind, Result};
use std::path::PathBuf;

/// The environment variable that carries the connection string, so that no file holds a password.
pub const URL_VARIABLE: &str = "HANDSTAMP_LAB_DATABASE_URL";

/// Writes the pipeline of a run and returns where it lies.
///
/// # Errors
/// The ledger is not in Postgres, or the file cannot be written.
pub fn write_pipeline(setup: &Setup) -> Result<(PathBuf, String)> {
    let Some((url, schema)) = setup.database.postgres() else {
        return Err(LabError::usage(format!(
            "{} needs Postgres (--database): its work is an effect that sleeps",
            setup.subject
        )));
    };
    let path = setup.folder.join(format!("{}.toml", setup.topic));
    let text = pipeline(setup, &schema)?;
    std::fs::write(&path, text).map_err(|error| LabError::file("write", &path, error))?;
    Ok((path, url))
}

fn pipeline(setup: &Setup, schema: &str) -> Result<String> {
    let quoted = |text: &str| {
        serde_json::to_string(text)
            .map_err(|error| LabError::new(LabErrorKind::Other, "a name is no text").because(error))
    };
    let sleep = if setup.work_ms == 0 {
        String::new()
    } else {
        let seconds = format!("{}.{:03}", setup.work_ms / 1000, setup.work_ms % 1000);
        format!("[[effect]]\nsql = \"SELECT pg_sleep({seconds})\"\nexpect_rows = \"any\"\n\n")
    };
    Ok(format!(
        r#"name = "{CONSUMER}"

[consumer]
batch_max = {batch_max}

[source]
type = "kafka"
brokers = {brokers}
topics = [{topic}]
group = {group}

[source.options]
"session.timeout.ms" = "{session_timeout_ms}"
"heartbeat.interval.ms" = "{heartbeat_ms}"

[identity]
header = "event_id"

[store]
type = "postgres"
url = "${{{URL_VARIABLE}}}"
schema = "{schema}"

{sleep}[[effect]]
sql = "UPDATE accounts SET balance = balance + :amount WHERE id = :account_id"
expect_rows = 1

[[effect]]
sql = "INSERT INTO ledger (event_id, account_id, amount) VALUES (:message_id, :account_id, :amount)"
"#,
        batch_max = setup.batch_max,
        brokers = quoted(&setup.brokers)?,
        topic = quoted(&setup.topic)?,
        group = quoted(&setup.group)?,
        session_timeout_ms = setup.session_timeout_ms,
        heartbeat_ms = setup.session_timeout_ms / 3,
    ))
}

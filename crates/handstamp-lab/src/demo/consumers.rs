//! The processes that are killed: each reads the credits in order, keeps its position, and is written as one
//! finds it in the wild.
//!
//! A process that is held waits for the end of its standard input: killed by the supervisor, or ended with it.

use super::hold_after::HoldAfter;
use super::{HELD, Story, Told};
use crate::bent::BentStore;
use handstamp::file::{FileOptions, FileSource};
use handstamp::json::Pointer;
use handstamp::sqlite::{SqliteOptions, SqliteStore, Tx};
use handstamp::{Consumer, ConsumerName, ConsumerOptions, HandlerError, Identity, Message};
use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;
use std::error::Error;
use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

type Res<T> = Result<T, Box<dyn Error + Send + Sync>>;

const UPDATE: &str = "UPDATE accounts SET balance = balance + ?1 WHERE id = ?2";
const LEDGER: &str = "INSERT INTO ledger (event_id, account_id, amount) VALUES (?1, ?2, ?3)";
const LOOK_UP: &str = "SELECT 1 FROM processed_messages WHERE consumer = 'wallet' AND message_id = ?1";
const MARK: &str = "INSERT INTO processed_messages (consumer, message_id) VALUES ('wallet', ?1)";

#[derive(Deserialize)]
struct Event {
    event_id: String,
    account_id: i64,
    amount: i64,
}

/// The hidden command: reads what it is told from standard input and consumes the file.
///
/// # Errors
/// It was told nonsense, or a file or the database fails.
pub fn main() -> Res<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let told: Told = serde_json::from_str(&line)?;
    match told.story {
        Story::NoInbox => no_inbox(&Worker::open(told)?),
        Story::OffsetFirst => offset_first(&Worker::open(told)?),
        Story::LookUpFirst => look_up_first(&Worker::open(told)?),
        Story::Handstamp => handstamp(told),
    }
}

/// Database first, then the position.
fn no_inbox(worker: &Worker) -> Res<()> {
    for (at, event) in worker.rest()? {
        worker.credit(&event)?;
        worker.hold(&event.event_id)?;
        worker.save(at + 1)?;
    }
    Ok(())
}

/// The position first, then the database.
fn offset_first(worker: &Worker) -> Res<()> {
    for (at, event) in worker.rest()? {
        worker.save(at + 1)?;
        worker.hold(&event.event_id)?;
        worker.credit(&event)?;
    }
    Ok(())
}

/// Look up, act, mark, each by itself.
fn look_up_first(worker: &Worker) -> Res<()> {
    for (at, event) in worker.rest()? {
        let seen: Option<i64> =
            worker.database.query_row(LOOK_UP, [&event.event_id], |row| row.get(0)).optional()?;
        if seen.is_none() {
            worker.credit(&event)?;
            worker.hold(&event.event_id)?;
            worker.database.execute(MARK, [&event.event_id])?;
        }
        worker.save(at + 1)?;
    }
    Ok(())
}

/// The runtime: claim, effect and commit in one transaction, then the position.
fn handstamp(told: Told) -> Res<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let name = ConsumerName::new("wallet")?;
        let source =
            FileSource::new(FileOptions::new(&told.input, name.clone()).with_state_dir(&told.folder));
        let store = SqliteStore::open(SqliteOptions::new(&told.database)).await?;
        let consumer = Consumer::builder(name)
            .source(source, Identity::Field(Pointer::parse("/event_id")?))
            .store(BentStore::new(Arc::new(store), HoldAfter::new(told.hold)))
            .handler_fn(async |tx: &mut Tx, message: &Message| {
                let event: Event = serde_json::from_slice(message.value().unwrap_or_default())?;
                tx.execute(UPDATE, (event.amount, event.account_id))?;
                tx.execute(LEDGER, (&event.event_id, event.account_id, event.amount))?;
                Ok::<(), HandlerError>(())
            })
            .options(ConsumerOptions { batch_max: 1, ..ConsumerOptions::default() });
        Box::pin(consumer.run_local(std::future::pending())).await?;
        Ok(())
    })
}

/// Says that it waits, and waits until it is killed or the supervisor is gone.
pub(super) fn hold_here(id: &str) -> Res<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{HELD}{id}")?;
    out.flush()?;
    let mut rest = [0; 64];
    while std::io::stdin().lock().read(&mut rest)? > 0 {}
    std::process::exit(1);
}

/// What the consumers written by hand share: credits, database and position.
struct Worker {
    told: Told,
    database: Connection,
    position: PathBuf,
}

impl Worker {
    fn open(told: Told) -> Res<Self> {
        let database = Connection::open(&told.database)?;
        database.busy_timeout(Duration::from_secs(10))?;
        database.execute_batch("PRAGMA synchronous = FULL")?;
        let position = told.folder.join("position");
        Ok(Self { told, database, position })
    }

    /// The credits behind the position, with their numbers from 0.
    fn rest(&self) -> Res<Vec<(usize, Event)>> {
        let from = match std::fs::read_to_string(&self.position) {
            Ok(text) => text.trim().parse()?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        let text = std::fs::read_to_string(&self.told.input)?;
        let events = text.lines().enumerate().skip(from);
        events.map(|(at, line)| Ok((at, serde_json::from_str(line)?))).collect()
    }

    /// Keeps the position, as a commit of the offset does.
    fn save(&self, next: usize) -> Res<()> {
        let new = self.position.with_extension("new");
        std::fs::write(&new, next.to_string())?;
        std::fs::rename(&new, &self.position)?;
        Ok(())
    }

    /// The effect, in a transaction of its own.
    fn credit(&self, event: &Event) -> Res<()> {
        let tx = self.database.unchecked_transaction()?;
        tx.execute(UPDATE, (event.amount, event.account_id))?;
        tx.execute(LEDGER, (&event.event_id, event.account_id, event.amount))?;
        tx.commit()?;
        Ok(())
    }

    /// Waits to be killed, when this is the message to die with.
    fn hold(&self, id: &str) -> Res<()> {
        if self.told.hold.as_deref() == Some(id) { hold_here(id) } else { Ok(()) }
    }
}

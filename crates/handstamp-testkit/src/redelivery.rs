//! Redelivery in unit tests, without processes and without a broker: a handler gets its messages twice, again
//! from the beginning, out of order, and with a crash in every place it waits; the database must end as if each
//! had come once.
//!
//! ```text
//!  messages ─► database 0: each once ──────────────────────────► the state to compare with
//!      ├─────► database 1: each twice in a row ────────────────► same state?
//!      ├─────► database 2: all of them, then all again ────────► same state?
//!      ├─────► database 3: a crash after each effect, before it is settled ─► same state?
//!      ├─────► database 4: a crash wherever the handler waits ─► same state?
//!      └─────► databases 5 …: backwards and shuffled ──────────► same state?
//! ```
//!
//! Authoritative: what `observe` reads from the database. A crash drops the handler's future and the connection
//! and opens the database again, as a new process does. It cannot show what only a real process shows (a
//! statement that the server still runs, an offset that went astray): that is for `handstamp lab own`.
//!
//! A handler that adds is caught at once; so is one that looks up, acts and marks in separate transactions,
//! because it dies in between:
//!
//! ```
//! use handstamp_core::Message;
//! use handstamp_testkit::redelivery::{Redelivery, Way, message};
//! use rusqlite::Connection;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const TABLES: &str = "CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, balance INTEGER);
//!     INSERT OR IGNORE INTO accounts VALUES (1, 0);
//!     CREATE TABLE IF NOT EXISTS inbox (id BLOB PRIMARY KEY);";
//! const CREDIT: &str = "UPDATE accounts SET balance = balance + 100 WHERE id = 1";
//!
//! fn naive(database: &mut Connection, _: &Message) -> rusqlite::Result<()> {
//!     database.execute(CREDIT, []).map(drop)
//! }
//!
//! fn with_inbox(database: &mut Connection, message: &Message) -> rusqlite::Result<()> {
//!     let tx = database.transaction()?;
//!     let claim = "INSERT INTO inbox VALUES (?1) ON CONFLICT DO NOTHING";
//!     if tx.execute(claim, [message.id().as_bytes()])? == 1 {
//!         tx.execute(CREDIT, [])?;
//!     }
//!     tx.commit()
//! }
//!
//! let folder = std::env::temp_dir().join(format!("redelivery-{}", std::process::id()));
//! std::fs::create_dir_all(&folder)?;
//! let open = async |number: u32| {
//!     let database = Connection::open(folder.join(number.to_string()))?;
//!     database.execute_batch(TABLES)?;
//!     Ok::<_, rusqlite::Error>(database)
//! };
//! let balance = async |database: &mut Connection| {
//!     database.query_row("SELECT balance FROM accounts", [], |row| row.get::<_, i64>(0))
//! };
//! let redelivery = Redelivery::of([message("evt-1", "")?, message("evt-2", "")?]);
//!
//! let handler = async |database: &mut Connection, message: &Message| naive(database, message);
//! let caught = redelivery.check(&open, handler, balance).await.unwrap_err();
//! assert_eq!(caught.way, Way::Twice);
//! assert!(caught.to_string().contains("once it is 200, so it is 400"), "{caught}");
//!
//! # std::fs::remove_dir_all(&folder)?;
//! # std::fs::create_dir_all(&folder)?;
//! let handler = async |database: &mut Connection, message: &Message| with_inbox(database, message);
//! redelivery.check(&open, handler, balance).await?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;
use handstamp_core::{
    BoxError, Claim, ClaimRequest, ConsumerName, Fingerprint, Handler, Headers, Message, MessageId,
    MessageIdError, Origin, Record, Store,
};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Most crashes inside of the handling of one message.
const CRASHES_MAX: u32 = 64;
/// How many shuffled orders are tried.
const SHUFFLES: u64 = 3;

/// How messages were handed over when the database ended differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Way {
    /// Each message once, in order: what the others are compared with.
    Once,
    /// Each message twice in a row.
    Twice,
    /// All messages, then all of them again.
    AllAgain,
    /// After each message the process dies before it is settled; the message comes again.
    CrashBeforeSettle,
    /// The process dies in every place where the handler waits; the message comes again.
    CrashInside,
    /// Last to first.
    Backwards,
    /// In a shuffled order.
    Shuffled {
        /// Which one, from 1.
        number: u64,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once => f.write_str("handed over once"),
            Self::Twice => f.write_str("handed over twice in a row"),
            Self::AllAgain => f.write_str("all handed over again"),
            Self::CrashBeforeSettle => f.write_str("with a crash between effect and settle"),
            Self::CrashInside => f.write_str("with a crash wherever the handler waits"),
            Self::Backwards => f.write_str("handed over last to first"),
            Self::Shuffled { number } => write!(f, "handed over in shuffled order {number}"),
        }
    }
}

/// What a handler did not stand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{way}: {what}")]
#[non_exhaustive]
pub struct Caught {
    /// How messages were handed over.
    pub way: Way,
    /// What was different, or what failed.
    pub what: String,
}

/// The messages and the ways in which they are handed over.
#[derive(Debug, Clone)]
pub struct Redelivery {
    messages: Vec<Message>,
    any_order: bool,
}

impl Redelivery {
    /// These messages, in the order in which they come when nothing goes wrong.
    pub fn of(messages: impl IntoIterator<Item = Message>) -> Self {
        Self { messages: messages.into_iter().collect(), any_order: true }
    }

    /// Leaves out the other orders: for messages that one partition keeps in order.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { any_order: false, ..self }
    }

    /// Hands the messages to `handle` in every way, each in a database of its own, and compares what `observe`
    /// reads at the end.
    ///
    /// `open` connects to the database of a number, and makes it when it is not there; it is called again with
    /// the same number after a crash. No number may hold anything at first. A handler that answers an error
    /// would get the message again and again, so that is a finding too.
    ///
    /// # Errors
    /// [`Caught`], at the first way that ends differently; also for an error of `open`, `handle` or `observe`.
    pub async fn check<D, S, E>(
        &self,
        open: impl AsyncFn(u32) -> Result<D, E>,
        handle: impl AsyncFn(&mut D, &Message) -> Result<(), E>,
        observe: impl AsyncFn(&mut D) -> Result<S, E>,
    ) -> Result<(), Caught>
    where
        S: PartialEq + fmt::Debug,
        E: fmt::Display,
    {
        let mut once = None;
        for (number, way) in (0..).zip(self.ways()) {
            let failed = |what: &str, error: E| Caught { way, what: format!("{what}: {error}") };
            let mut database = open(number).await.map_err(|error| failed("opening", error))?;
            for message in self.order(way) {
                let id = message.id();
                let answered = match way {
                    Way::CrashInside => {
                        for waits in 1..=CRASHES_MAX {
                            if !cut_short(handle(&mut database, message), waits).await {
                                break;
                            }
                            drop(database);
                            database = open(number).await.map_err(|error| failed("opening again", error))?;
                        }
                        handle(&mut database, message).await
                    }
                    Way::CrashBeforeSettle => {
                        handle(&mut database, message)
                            .await
                            .map_err(|error| failed(&id.to_string(), error))?;
                        drop(database);
                        database = open(number).await.map_err(|error| failed("opening again", error))?;
                        handle(&mut database, message).await
                    }
                    _ => handle(&mut database, message).await,
                };
                answered.map_err(|error| failed(&format!("the handler answers an error for {id}"), error))?;
            }
            let state = observe(&mut database).await.map_err(|error| failed("observing", error))?;
            match &once {
                None => once = Some(state),
                Some(once) if *once != state => {
                    return Err(Caught { way, what: format!("once it is {once:?}, so it is {state:?}") });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn ways(&self) -> impl Iterator<Item = Way> + use<> {
        let always = [Way::Once, Way::Twice, Way::AllAgain, Way::CrashBeforeSettle, Way::CrashInside];
        let orders =
            [Way::Backwards].into_iter().chain((1..=SHUFFLES).map(|number| Way::Shuffled { number }));
        let orders = orders.take(if self.any_order { usize::MAX } else { 0 });
        always.into_iter().chain(orders)
    }

    fn order(&self, way: Way) -> Vec<&Message> {
        let all = self.messages.iter();
        match way {
            Way::Twice => all.flat_map(|message| [message, message]).collect(),
            Way::AllAgain => all.clone().chain(all).collect(),
            Way::Backwards => all.rev().collect(),
            Way::Shuffled { number } => {
                let mut keyed: Vec<_> = all.map(|message| (place(number, message.id()), message)).collect();
                keyed.sort_by_key(|(place, _)| *place);
                keyed.into_iter().map(|(_, message)| message).collect()
            }
            Way::Once | Way::CrashBeforeSettle | Way::CrashInside => all.collect(),
        }
    }
}

/// Where a message comes in a shuffled order: the same in every run of a test.
fn place(number: u64, id: &MessageId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(id.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Drops a future when it waits for the n-th time; whether it came to that.
async fn cut_short(future: impl Future, mut waits: u32) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        waits -= 1;
        if waits == 0 { Poll::Ready(true) } else { Poll::Pending }
    })
    .await
}

/// Waits once and goes on: a place to crash for handlers whose database calls do not wait, such as those on
/// SQLite. Put it between two transactions.
pub async fn crash_point() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A message with an id and a body, without key and headers.
///
/// # Errors
/// The id is empty or too long.
pub fn message(id: &str, body: &str) -> Result<Message, MessageIdError> {
    let record = Record {
        key: None,
        value: Some(Bytes::copy_from_slice(body.as_bytes())),
        headers: Headers::default(),
        origin: Origin { topic: "test".into(), partition: 0, offset: 0, line: None },
        timestamp: None,
    };
    Ok(Message::new(MessageId::try_from(id)?, record))
}

/// Hands one message to a [`Handler`] as the runtime does: claimed, handled and committed in one transaction, a
/// duplicate left out. It shows what a handler does outside of that transaction.
///
/// # Errors
/// The store's or the handler's.
pub async fn apply<S: Store>(
    store: &S,
    consumer: &ConsumerName,
    handler: &impl Handler<S::Tx>,
    message: &Message,
) -> Result<(), BoxError> {
    let key = store.register(consumer, &Fingerprint("test".into()), false).await?;
    let request = ClaimRequest { id: message.id().clone(), digest: Some(message.digest()) };
    let (mut tx, claims) = store.begin(&key, &[request]).await?;
    if !matches!(claims.first(), Some(Claim::First)) {
        return Ok(store.rollback(tx).await?);
    }
    match handler.handle(&mut tx, message).await {
        Ok(()) => Ok(store.commit(tx).await?),
        Err(error) => {
            store.rollback(tx).await?;
            Err(error.source)
        }
    }
}

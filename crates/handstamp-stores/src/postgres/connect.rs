//! Connections: slots of our own, each a client, the task that drives it and what is prepared on it.
//!
//! Authoritative: whether a transaction is open on a slot is known here (`open`), not asked of the
//! driver, which shows no transaction status. A slot goes back only after a clean end.
//!
//! ```text
//!  take ─► open (BEGIN sent) ─► clean end ─► put back ─► take …
//!             │                    └─ stale, closed, or too many: closed
//!             └─ dropped or abandoned: cancel, ROLLBACK, close; never used again
//! ```

use super::classify::{fault_of, store_error};
use super::config::PostgresOptions;
use super::inbox::{ClaimSql, GUARD, open_sql};
use super::migrate;
use super::pipeline::in_order;
use super::tls;
use super::wire::{Coalesce, Coalescing, ITS_OWN, Wire};
use super::{parked, starts};
use futures_util::future::{join, join5};
use handstamp_core::{StoreError, StoreErrorKind};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id as RuntimeId};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{Client, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Opens a transaction, deferrable so that the claim knows it.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, DEFERRABLE";
pub(crate) const COMMIT: &str = "COMMIT";

/// How soon the server misses a client that has vanished without a word. Its own default is two hours, and a
/// backend that waits for the rest of a flight (behind a Bind, before the Sync) is under none of the time
/// limits of a transaction: until it misses its client, nobody gets the locks it holds.
const KEEPALIVES: &str =
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3";

/// Statements that every connection prepares once.
pub(crate) struct Prepared {
    pub(crate) insert_one: Statement,
    pub(crate) claim_many: Statement,
    pub(crate) claim_known: Statement,
    pub(crate) known: Statement,
    pub(crate) begin: Statement,
    /// Opens a transaction that claims nothing: the lock's key, and whether it is taken alone.
    pub(crate) open: Statement,
    /// Asked in front of COMMIT.
    pub(crate) guard: Statement,
    pub(crate) commit: Statement,
    /// The start record, in front of BEGIN.
    pub(crate) start: Statement,
    /// The same inside of a transaction, in front of COMMIT.
    pub(crate) start_next: Statement,
}

/// One connection.
pub(crate) struct Slot {
    client: Client,
    task: Option<JoinHandle<()>>,
    runtime: RuntimeId,
    wire: Wire,
    limit: Duration,
    ended_by: Arc<OnceLock<String>>,
    open: bool,
    stale: AtomicBool,
    pub(crate) prepared: Prepared,
    /// Statements of declared effects, by the number of their set.
    pub(crate) effects: Mutex<HashMap<u64, Arc<[Statement]>>>,
    /// Statements for parked messages, from their first use on.
    pub(crate) parked: OnceLock<parked::Statements>,
    /// Statements for start records, from their first use on.
    pub(crate) starts: OnceLock<starts::Statements>,
    /// Raises marks of versions, from its first use on.
    pub(crate) raise_marks: OnceLock<Statement>,
}

impl Slot {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Statements sent until the guard is dropped are a flight of ours: answered in one packet.
    pub(crate) fn coalesce(&self) -> Coalescing<'_> {
        self.wire.coalesce.start()
    }

    /// From now on the slot is closed when dropped, unless `ended` says that all is clean.
    pub(crate) fn opened(&mut self) {
        self.open = true;
    }

    pub(crate) fn ended(&mut self) {
        self.open = false;
    }

    /// Statements on this connection may no longer fit the schema: it is not put back.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The SQLSTATE that the server gave when it closed the connection by itself.
    pub(crate) fn ended_by(&self) -> Option<&str> {
        self.ended_by.get().map(String::as_str)
    }

    /// Cancels what runs, rolls back and closes; each step within its limit.
    pub(crate) async fn abandon(mut self) {
        self.open = false;
        let token = self.client.cancel_token();
        if !self.client.is_closed() {
            // A cancel that cannot be delivered changes nothing: the connection is closed below.
            let _ = timeout(self.limit, token.cancel_query(self.wire.clone())).await;
            let _ = timeout(self.limit, self.client.batch_execute("ROLLBACK")).await;
        }
        let (task, limit) = (self.task.take(), self.limit);
        drop(self);
        end_task(task, limit).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (token, wire, limit, task) =
            (self.client.cancel_token(), self.wire.clone(), self.limit, self.task.take());
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    let _ = timeout(limit, token.cancel_query(wire)).await;
                    end_task(task, limit).await;
                });
            }
            Err(_) => {
                if let Some(task) = task {
                    task.abort();
                }
            }
        }
    }
}

/// Waits for a connection's task, whose client is gone, and ends it when it does not end by itself (an
/// unread row stream keeps it waiting).
async fn end_task(task: Option<JoinHandle<()>>, limit: Duration) {
    if let Some(mut task) = task
        && timeout(limit, &mut task).await.is_err()
    {
        task.abort();
    }
}

/// A new connection and what drives it.
struct Connected {
    client: Client,
    task: JoinHandle<()>,
    ended_by: Arc<OnceLock<String>>,
    wire: Wire,
}

/// The idle connections of a store, and how new ones are made.
pub(crate) struct Slots {
    pub(crate) options: PostgresOptions,
    tls: MakeRustlsConnect,
    claim: ClaimSql,
    idle: Mutex<Vec<Slot>>,
}

impl Slots {
    pub(crate) fn new(options: PostgresOptions) -> Result<Self, StoreError> {
        let tls = tls::connector(options.tls, &options.roots)?;
        let claim = ClaimSql::opening(&options);
        Ok(Self { options, tls, claim, idle: Mutex::new(Vec::new()) })
    }

    /// An idle connection of this runtime, or a new one whose schema was checked.
    pub(crate) async fn take(&self) -> Result<Slot, StoreError> {
        let runtime = runtime()?;
        if let Some(slot) = self.take_idle(runtime.id()) {
            return Ok(slot);
        }
        let Connected { client, task, ended_by, wire } = self.connect(&runtime).await?;
        let version = migrate::installed_version(&client, &self.options.schema);
        let one = client.prepare(&self.claim.insert_one);
        let many = client.prepare(&self.claim.many);
        let known = client.prepare(&self.claim.known);
        let guard = self.options.schema.render(include_str!("sql/guard.sql"), GUARD);
        let open = format!("SELECT {}", open_sql(&self.options, "$1::int8", "$2::bool"));
        let start = self.options.schema.render(include_str!("sql/start.sql"), "true");
        let first = format!("{ITS_OWN}{start}");
        let known_first = self.claim.many_known.clone();
        let own = [BEGIN.into(), open, guard, COMMIT.into(), known_first, first, start];
        let own = in_order(own.iter().map(|sql| client.prepare(sql)).collect());
        // A server that takes no such setting keeps its own.
        let flight = join(join5(version, one, many, known, own), client.batch_execute(KEEPALIVES));
        let ((version, one, many, known, own), _) = timeout(self.options.connect_timeout, flight)
            .await
            .map_err(|_| self.away("did not answer in time after log-in"))?;
        migrate::check_version(version?, &self.options.schema)?;
        let failed = |e| migrate::prepare_error(&self.options.schema, e);
        let own: Vec<Statement> = own.into_iter().collect::<Result<_, _>>().map_err(failed)?;
        let [begin, open, guard, commit, claim_known, start, start_next] = <[Statement; 7]>::try_from(own)
            .map_err(|_| {
                let message = "Postgres did not answer every statement to prepare";
                StoreError::new(StoreErrorKind::Unavailable, message)
            })?;
        Ok(Slot {
            client,
            task: Some(task),
            runtime: runtime.id(),
            wire,
            limit: self.options.abandon_timeout,
            ended_by,
            open: false,
            stale: AtomicBool::new(false),
            prepared: Prepared {
                insert_one: one.map_err(failed)?,
                claim_many: many.map_err(failed)?,
                claim_known,
                known: known.map_err(failed)?,
                begin,
                open,
                guard,
                commit,
                start,
                start_next,
            },
            effects: Mutex::new(HashMap::new()),
            parked: OnceLock::new(),
            starts: OnceLock::new(),
            raise_marks: OnceLock::new(),
        })
    }

    /// A client outside of the slots, its schema not checked: for `migrate` and `check`.
    pub(crate) async fn connect_bare(&self) -> Result<Client, StoreError> {
        Ok(self.connect(&runtime()?).await?.client)
    }

    /// Keeps a connection on which nothing is open.
    pub(crate) fn put_back(&self, slot: Slot) {
        if slot.open || slot.is_stale() || slot.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.options.idle_connections_max {
            idle.push(slot);
        }
    }

    fn take_idle(&self, runtime: RuntimeId) -> Option<Slot> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|slot| !slot.is_closed());
        // A connection is driven by the runtime that made it: one of another runtime may stand still.
        let at = idle.iter().rposition(|slot| slot.runtime == runtime)?;
        Some(idle.swap_remove(at))
    }

    async fn connect(&self, runtime: &Handle) -> Result<Connected, StoreError> {
        let (config, direct) = self.options.wired();
        let wire =
            Wire { tls: self.tls.clone(), mode: self.options.tls, direct, coalesce: Coalesce::default() };
        let hosts = self.options.config.get_hosts().len().max(self.options.config.get_hostaddrs().len());
        let limit = self.options.connect_timeout.saturating_mul(u32::try_from(hosts).unwrap_or(u32::MAX));
        let (client, connection) = timeout(limit, config.connect(wire.clone()))
            .await
            .map_err(|_| self.away("did not answer in time"))?
            .map_err(|e| {
                let mut error = store_error(&format!("connecting to {}", self.options.place()), e);
                // Whatever keeps a log-in from working (a password being rotated, a database not yet
                // made, a certificate) is no message's fault: it is waited for.
                error.kind = StoreErrorKind::Unavailable;
                error
            })?;
        let ended_by = Arc::new(OnceLock::new());
        let reason = ended_by.clone();
        let task = runtime.spawn(async move {
            if let Err(error) = connection.await
                && let Some(code) = fault_of(&error).and_then(|fault| fault.code)
            {
                let _ = reason.set(code);
            }
        });
        Ok(Connected { client, task, ended_by, wire })
    }

    fn away(&self, what: &str) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, format!("Postgres at {} {what}", self.options.place()))
    }
}

fn runtime() -> Result<Handle, StoreError> {
    Handle::try_current().map_err(|_| {
        StoreError::new(StoreErrorKind::Config, "the Postgres store needs a running Tokio runtime")
    })
}

//! SQLite: inbox, dead letters and the user's own tables in one file.
//!
//! Authoritative: the primary key (id, consumer) of `handstamp_inbox`. One connection writes at a time
//! (SQLite's own rule), in this process and in all others that use the file. The file is in WAL mode with
//! `synchronous = FULL`: a commit that returned survives a power cut. Start records alone are written at NORMAL, in
//! transactions of their own: they survive the process.
//!
//! ```text
//!  slot ─► start record ─► BEGIN IMMEDIATE ─► claim ─► Tx (handlers write) ─► record ─► COMMIT ─► slot
//!    │                       └─ busy: short waits, up to lock_timeout ─► Conflict         │
//!    └─ a Tx that is dropped closes its connection: SQLite rolls back ────────────────────┘
//! ```
//!
//! Level 0 needs only [`migrate`], [`ConsumerName::register`] and [`claim`]:
//!
//! ```
//! use handstamp_core::{Claim, MessageId};
//! use handstamp_stores::sqlite::{self, ConsumerName};
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut connection = Connection::open_in_memory()?;
//! sqlite::migrate(&connection)?;
//! let wallet = ConsumerName::register(&connection, "wallet")?;
//! let id = MessageId::try_from("0193f5a0-7c3e-7b1a-8000-0123456789ab")?;
//! let mut tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! if let Claim::First = sqlite::claim(&mut tx, &wallet, &id)? {
//!     // write the message's effect through `tx`
//! }
//! tx.commit()?;
//! # Ok(())
//! # }
//! ```

mod backlog;
mod classify;
mod config;
mod connect;
mod dry_run;
mod effect;
mod failure;
mod import;
mod inbox;
mod migrate;
mod own_table;
mod parked;
mod prune;
mod redrive;
mod rehearse;
mod set;
mod slot;
mod start_rows;
mod starts;
mod store;
mod unpark;
mod versions;

pub use config::{Setup, SqliteOptions};
pub use dry_run::DryStore;
pub use effect::{EffectFailure, EffectFault, SqlEffects};
pub use inbox::{ConsumerName, claim, claim_many, claim_with_digest};
pub use migrate::{Migrated, migrate, show_sql};
pub use own_table::claim_own;
pub use rehearse::Rehearsed;
pub use store::{SqliteStore, Tx};

//! Postgres 15 and newer.
//!
//! Authoritative: the server's primary key (id, consumer) of `inbox`. A claim, the user's effects and a
//! dead letter are one transaction; what is not committed never was.
//!
//! ```text
//!  message id ─► claim ─► First ─────► effects ─► commit ─► applied ('a')
//!                  │                      ├─ fails: parked row ─► commit ─► parked ('p') ─► due ─► effects …
//!                  │                      └─ given up: dead letter ─► commit ─► dead ('d') ─► redrive ─► parked
//!                  ├───► Duplicate: the outcome is durable, settle
//!                  └───► IdReused: the same id with another body
//! ```
//!
//! Level 0, inside a transaction of your own:
//!
//! ```no_run
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use handstamp_core::{Claim, MessageId};
//! use handstamp_stores::postgres::{self, ConsumerName};
//!
//! postgres::migrate(client).await?;
//! let consumer = ConsumerName::register(client, "wallet").await?;
//! let tx = client.transaction().await?;
//! if postgres::claim(&tx, &consumer, &MessageId::try_from("payment-17")?).await? == Claim::First {
//!     tx.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 7", &[]).await?;
//! }
//! tx.commit().await?;
//! # Ok(()) }
//! ```

mod array;
mod backlog;
mod binding;
mod classify;
mod config;
mod connect;
mod dry_run;
mod effect;
mod facts;
mod failure;
mod flight;
mod import;
mod inbox;
mod migrate;
mod own_table;
mod parked;
mod pipeline;
mod prune;
mod redrive;
mod rehearse;
mod set;
mod starts;
mod store;
mod tls;
mod unpark;
mod versions;
mod wire;

pub use classify::{fault_of, kind_of_code};
pub use config::{PostgresOptions, SchemaName};
pub use effect::SqlEffects;
pub use facts::ServerFacts;
pub use inbox::{ConsumerName, claim, claim_many, claim_with_digest};
pub use migrate::{
    MigrateOptions, Migrated, SCHEMA_VERSION, Setup, migrate, migrate_with, show_grants, show_sql,
};
pub use own_table::claim_own;
pub use store::{PostgresStore, Tx};

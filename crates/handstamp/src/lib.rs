//! Handstamp: whatever a broker redelivers and whoever crashes, each message's effect is committed once.
//!
//! At-least-once delivery, effectively-once database effects. Three levels of use, each needing only
//! the one above it:
//!
//! * **Level 0** claims a message id inside a transaction you already have:
//!   `postgres::claim`, `sqlite::claim` and `sqlx::claim` (features `postgres`, `sqlite`, `sqlx`).
//! * **Level 1** is [`Consumer`] with a [`Handler`]: the runtime polls, claims in batches, runs the
//!   handler inside the transaction, commits, then settles.
//! * **Level 2** is the program `handstamp run pipeline.toml`; no Rust needed.
//!
//! A consumer is named twice: [`ConsumerName`] is the checked name that level 1 takes; the `ConsumerName` of
//! `postgres` and of `sqlite` is that name registered in one database, which level 0's `claim` takes.
//!
//! Nothing here is this crate's own: it re-exports `handstamp-core` and, by feature, the sources
//! (`file`, `kafka`) and the stores (`postgres`, `sqlite`; `sqlx` for level 0 alone).

pub use handstamp_core::*;

#[cfg(feature = "file")]
pub use handstamp_sources::file;
#[cfg(feature = "kafka")]
pub use handstamp_sources::kafka;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "sqlx"))]
pub use handstamp_stores::own_table;
#[cfg(feature = "postgres")]
pub use handstamp_stores::postgres;
#[cfg(feature = "sqlite")]
pub use handstamp_stores::sqlite;
#[cfg(feature = "sqlx")]
pub use handstamp_stores::sqlx;

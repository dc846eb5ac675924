//! Stores for Handstamp: one folder per database, the same file names in each.
//!
//! Shared by all: [`effect`] (declared SQL effects), [`headers`] (the headers' one encoding) and
//! [`rows`] (what is read back for people).

pub mod effect;
pub mod headers;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod rehearsal;
pub mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;

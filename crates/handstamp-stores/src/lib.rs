//! Stores for Handstamp: one folder per database, the same file names in each.
//!
//! Shared by all: [`effect`] (declared SQL effects), [`headers`] (the headers' one encoding), [`rows`] (what
//! is read back for people) and [`redrive`] (what operators do with dead letters).

pub mod effect;
pub mod headers;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "sqlx"))]
pub mod own_table;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod redrive;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod rehearsal;
pub mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlx"))]
mod sqlstate;
#[cfg(feature = "sqlx")]
pub mod sqlx;

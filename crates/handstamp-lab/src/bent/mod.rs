//! Stores and sources around real ones that do one thing otherwise: consumers broken on purpose, held at a
//! line, or timed.
//!
//! Everything that is not bent is passed on here, once, for the lab, the end-to-end tests and the benches.
//! The store and the source inside stay authoritative for all they are asked.
//!
//! | file | owns |
//! |---|---|
//! | `store` | a store whose `begin` or `commit` is bent |
//! | `source` | a source whose settles come too early or get lost |

mod source;
mod store;

pub use source::{BentSource, SettleBend};
pub use store::{BentStore, StoreBend, begin, begin_without_inbox};

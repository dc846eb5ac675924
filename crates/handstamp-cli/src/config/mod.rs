//! The pipeline's TOML file: read, checked, defaults filled in, shown again.
//!
//! | file | owns |
//! |---|---|
//! | `parse` | types, units, unknown keys, lines |
//! | `env` | `${VAR}` |
//! | `model` | the checked configuration |
//! | `load` | sections of the file → model |
//! | `defaults` | defaults that are not the engine's, with their reasons |
//! | `print` | the effective configuration as TOML |

mod defaults;
mod env;
mod load;
mod model;
mod parse;
mod print;

pub(crate) use load::load;
#[cfg(feature = "file")]
pub(crate) use model::FileSection;
#[cfg(feature = "kafka")]
pub(crate) use model::KafkaSection;
#[cfg(feature = "postgres")]
pub(crate) use model::PostgresSection;
#[cfg(feature = "sqlite")]
pub(crate) use model::SqliteSection;
pub(crate) use model::{Config, SourceSection, StoreSection};
pub(crate) use parse::TIME_MAX;
pub(crate) use print::effective;

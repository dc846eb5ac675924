//! The pipeline's TOML file: read, checked, defaults filled in, shown again.
//!
//! | file | owns |
//! |---|---|
//! | `parse` | types, units, unknown keys, lines |
//! | `env` | `${VAR}` |
//! | `model` | the checked configuration |
//! | `keys` | every key with its type, its default and its meaning; the JSON Schema |
//! | `load` | sections of the file → model |
//! | `uses` | which parts a command uses: the variables of the others need not be set |
//! | `codes` | what a database calls a failure |
//! | `retention` | for how long ids are kept |
//! | `dead_letter` | the topic for copies of dead letters |
//! | `effects` | `[[effect]]` |
//! | `identity` | where the ids are, and what must be equal where one comes again |
//! | `versions` | the keys of a version guard and of a consumer without an inbox |
//! | `defaults` | defaults that are not the engine's, with their reasons |
//! | `watch` | where probes and scrapers are answered |
//! | `lab` | the file of `lab own` |
//! | `sets` | `set` of an effect, and what belongs to it |
//! | `print` | the effective configuration as TOML |

mod codes;
mod dead_letter;
mod defaults;
mod effects;
mod env;
mod identity;
pub(crate) mod keys;
#[cfg(all(feature = "lab", feature = "kafka"))]
mod lab;
mod load;
mod model;
mod parse;
mod print;
mod retention;
mod sets;
mod uses;
mod versions;
mod watch;

#[cfg(all(feature = "lab", feature = "kafka"))]
pub(crate) use lab::load_lab;
pub(crate) use load::load;
#[cfg(test)]
pub(crate) use load::parsed;
#[cfg(feature = "file")]
pub(crate) use model::FileSection;
#[cfg(feature = "kafka")]
pub(crate) use model::KafkaSection;
#[cfg(feature = "postgres")]
pub(crate) use model::PostgresSection;
#[cfg(feature = "sqlite")]
pub(crate) use model::SqliteSection;
pub(crate) use model::{Config, EffectSection, SourceSection, StoreSection};
pub(crate) use parse::{TIME_MAX, Text, nearest};
pub(crate) use print::effective;
pub(crate) use uses::Uses;
pub(crate) use watch::address;

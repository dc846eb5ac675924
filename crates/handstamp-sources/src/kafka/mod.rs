//! Kafka consumer groups as a source, and topics as a sink.
//!
//! One thread owns the client ([`KafkaSource`]); it polls, hands over, commits and answers rebalances, and
//! never processes a message. Authoritative is the broker, for what is ours and what is committed; a
//! position is only committed after the engine said that its outcome is durable.
//!
//! | file | owns |
//! |---|---|
//! | `config`, `settings` | what users may say, what is refused and why |
//! | `source`, `thread`, `session` | the thread, its loop, its bounded end |
//! | `trouble` | what an error means, and that it is said once |
//! | `waits` | how long the library waits before it tries again |
//! | `start` | waiting for brokers and topics |
//! | `assignment`, `rebalance` | lanes, epochs, partitions that come and go |
//! | `deliver`, `records`, `outbox` | from a partition's queue to the engine |
//! | `settle`, `commit` | from settled deliveries to committed offsets |
//! | `sink`, `admin` | publishing; questions for `check` |
//! | `windows` | for how long a topic's records can be delivered again |
//! | `peek` | the next records, looked at without joining the group |
//! | `mock` | a broker inside this process, for the crash lab (feature `kafka-mock`) |
//! | `context`, `wake`, `ffi` | callbacks, waking, everything that needs `unsafe` |
//! | `hooks` | for tests: what cannot be provoked or seen from outside |

pub mod admin;
mod assignment;
mod commit;
mod config;
mod context;
mod deliver;
mod ffi;
#[doc(hidden)]
pub mod hooks;
#[cfg(feature = "kafka-mock")]
pub mod mock;
mod outbox;
pub mod peek;
mod rebalance;
mod records;
mod session;
mod settings;
mod settle;
mod sink;
mod source;
mod start;
mod thread;
mod trouble;
mod waits;
mod wake;
mod windows;

pub use config::{KafkaOptions, Problem};
pub use settings::Severity;
pub use sink::{KafkaSink, record_for};
pub use source::KafkaSource;
pub use windows::windows;

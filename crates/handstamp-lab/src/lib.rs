//! The crash lab: consumers are killed on purpose, and the database is asked how many effects were doubled
//! or lost.
//!
//! ```text
//!            seed ─► schedule ──────────────┐
//!  plan ─► broker (topic, group of the run) │        child process, killed and started again
//!    │        └──────── messages ──────► supervisor ─► subject ─► ledger (schema or file of the run)
//!    └─► sent.jsonl                          │                        │
//!           │                             history ◄── end state ──────┘
//!           └──────────────► checker ◄───────┘
//! ```
//!
//! The verdict comes from the producer's own log and the database alone (`checker`); what subjects say of
//! themselves is kept as evidence. Everything random comes from one seed. The library reads no environment
//! and writes to no terminal; progress is handed to the caller.
//!
//! | module | owns |
//! |---|---|
//! | `workload` | the credits of a run, and the producer's log of what was sent |
//! | `schedule` | when to kill, from a seed (pure) |
//! | `history` | what happened, as JSON lines |
//! | `checker` | the verdict (pure) |
//! | `supervisor` | child processes: started, watched, ended by pid |
//! | `ledger` | accounts and ledger of one run, Postgres or SQLite |
//! | `broker` | topic and group of one run, on a real broker or on the mock cluster inside |
//! | `subjects` | the consumers that are killed |
//! | `kill` | `lab kill` |
//! | `zombie` | `lab zombie`: consumers that the group has given up on and that write all the same |
//! | `bent` | stores and sources around real ones that do one thing otherwise |
//! | `demo` | `lab demo` |
//! | `own` | `lab own` |
//! | `throughput`, `storage` | `lab throughput`, `lab storage` |
//! | `report` | what a run came to, for people: Markdown, JSON and charts |
//! | `reference` | figures of a published lab, shown beside ours |
//! | `proxy` | a TCP proxy that does to connections what networks do |
//! | `faults` | `lab faults` |
//! | `crash`, `matrix` | `lab matrix` (running it: feature `crash-points`): a process that dies at a named point, and all of them |
//! | `json_file` | small files of a run's folder |
//! | `names`, `clean` | names of what runs make on servers; `lab clean`: what killed labs left there |
//! | `error`, `cancel` | why the lab could not go on; being told to stop |

pub mod bent;
#[cfg(feature = "kafka")]
pub mod broker;
pub mod cancel;
pub mod checker;
#[cfg(all(feature = "kafka", feature = "postgres"))]
pub mod clean;
#[cfg(feature = "crash-points")]
pub mod crash;
pub mod demo;
pub mod error;
#[cfg(all(feature = "kafka", feature = "postgres"))]
pub mod faults;
pub mod history;
mod json_file;
#[cfg(feature = "kafka")]
pub mod kill;
pub mod ledger;
pub mod matrix;
pub mod names;
#[cfg(feature = "kafka")]
pub mod own;
pub mod proxy;
pub mod reference;
#[cfg(feature = "kafka")]
pub mod report;
pub mod schedule;
#[cfg(feature = "postgres")]
pub mod storage;
pub mod subjects;
pub mod supervisor;
#[cfg(feature = "kafka")]
pub mod throughput;
pub mod workload;
#[cfg(feature = "kafka")]
pub mod zombie;

pub use cancel::Cancel;
pub use error::{LabError, LabErrorKind, Result};

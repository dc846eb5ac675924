//! `lab matrix`: the program dies once at every crash point, with every source and every store, and is
//! started again; afterwards each good message has one effect and each bad one is a dead letter.
//!
//! ```text
//!  cell = point × source × store
//!  filled ─► run, armed ─► killed by itself (SIGKILL, mark read) ─► run until idle ─► history ─► judged
//!                 └─ ended otherwise: the point was not hit, the cell proves nothing
//! ```
//!
//! A point of the operator's commands has dead letters to work on: a consumer runs first and gives messages up,
//! the cause goes away, the armed process is `dlq redrive` or `dlq discard`, and the same command goes on with
//! the rest. Then the messages are delivered once more, and the consumer runs until nothing is left.
//!
//! The program is a black box: what it is told is its pipeline's file, what it did is read from the
//! database. So that the matrix is known to be able to fail, the same cells run with a consumer broken on
//! purpose: without an inbox it must double behind the commit, settling first it must lose before it, and writing a retry
//! as done before it has run must lose what was taken.
//!
//! What a cell leaves behind is its history and what was sent (`record`); topics, schemas and files are gone.
//!
//! | file | owns |
//! |---|---|
//! | `outcome` | what became of a cell, and what it shows (pure) |
//! | `record` | the folder of a matrix, and what it proves |
//! | `run` | cells side by side |
//! | `plan` | which cells there are, and what each must show (pure) |
//! | `cell` | one cell, from its files to its verdict |
//! | `operate` | what an operator does in a cell |
//! | `pipeline` | the files of a cell |
//! | `tables` | what a cell's database holds |
//! | `broken` | the consumer broken on purpose |

pub mod broken;
#[cfg(feature = "crash-points")]
mod cell;
#[cfg(feature = "crash-points")]
mod operate;
mod outcome;
#[cfg(feature = "crash-points")]
mod pipeline;
#[cfg(feature = "crash-points")]
mod plan;
pub mod record;
#[cfg(feature = "crash-points")]
mod run;
#[cfg(feature = "crash-points")]
mod tables;

pub use broken::Broken;
pub use outcome::{AtCrash, Named, Operated, Outcome, Shows, SourceKind, StoreKind};
#[cfg(feature = "crash-points")]
pub use plan::{Cell, cells, controls};
#[cfg(feature = "crash-points")]
pub use run::{Options, run};

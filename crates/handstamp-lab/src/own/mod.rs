//! `lab own`: the user's consumer, in any language, killed, stopped and cut, its effects counted by the
//! user's own query.
//!
//! ```text
//!  settings, seed ─► records ─► topic          database (made, set up) ◄── effects ─┐
//!        │                        └──► copies of the program ──────────────┘        │
//!        └─► schedule: kill, stop, cut ──┘                                     outcome: kept | violated |
//!                                                                                       inconclusive
//! ```
//!
//! Authoritative: the producer's log and what the query answers. Topic, group and database are the run's own
//! and gone at the end.
//!
//! | file | owns |
//! |---|---|
//! | `settings` | what is asked for |
//! | `messages` | the records (pure) |
//! | `plan` | the schedule (pure) |
//! | `send` | publishing |
//! | `home` | the run's database, and counting effects |
//! | `copies` | the processes |
//! | `run` | the run |
//! | `outcome` | what it proves (pure) |

mod copies;
mod home;
mod messages;
mod outcome;
mod plan;
mod run;
mod send;
mod settings;

pub use outcome::{Conclusion, Done, Outcome};
pub use plan::{Fault, Step};
pub use run::{Stage, run};
pub use settings::{CountedBy, Faults, MESSAGE_WORDS, Messages, PROGRAM_WORDS, Settings, words};

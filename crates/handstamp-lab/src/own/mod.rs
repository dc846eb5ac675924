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
//! | `ways` | what the copies connect to: servers, or proxies before them |
//! | `copies` | the processes |
//! | `run` | the run |
//! | `sightings` | when effects were seen, for the time line |
//! | `record` | the folder of a run, and what it proves |
//! | `outcome` | what it proves (pure) |

mod copies;
mod home;
mod messages;
mod outcome;
mod plan;
pub mod record;
mod run;
mod send;
mod settings;
mod sightings;
mod ways;

pub use outcome::{Conclusion, Done, Outcome, Through, Trace};
pub use plan::{Fault, Step};
pub use record::{Asked, SETTINGS_FILE, recompute};
pub use run::{Ground, Stage, run};
pub use settings::{
    BrokerSettings, CountedBy, Faults, MESSAGE_WORDS, Messages, PROGRAM_WORDS, Settings, words,
};

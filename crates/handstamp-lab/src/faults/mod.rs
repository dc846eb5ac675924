//! `lab faults`: connections and servers fail, processes do not.
//!
//! ```text
//!  settings ─► rows ─► histories, producers' logs ─► outcome ─► kept | violated | inconclusive
//!                        (proxies, servers of the run's own)
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `commit` | connections cut at every byte of the COMMIT exchange |
//! | `outage` | a server goes away and comes back |
//! | `partition` | a member is cut off from the broker, a broker's leader is killed |
//! | `settings` | what is asked for, and the rows that it makes |
//! | `record` | what histories of these commands hold beside what all hold |
//! | `outcome` | what a folder proves, recomputed from its files; also `lab verify` |
//! | `report` | what a row came to |
//! | `lanes` | rows side by side, each lane with servers of its own |
//! | `fault` | the servers of an outage, and what is done to them |
//! | `group` | members of a consumer group over a backlog |
//! | `watch` | how far their effects are |
//! | `through` | connections led through proxies |
//! | `servers` | servers of a run's own, which it may stop |

pub mod commit;
mod fault;
mod group;
mod lanes;
pub mod outage;
mod outcome;
pub mod partition;
#[cfg(test)]
pub(crate) mod planted;
pub mod record;
pub mod report;
mod servers;
mod settings;
pub(crate) mod through;
mod watch;

use crate::error::Result;

/// Goes on with what `lab faults outage` or `partition`, whose name this is, left undone in its folder, by its own
/// settings; how many rows go on at a time may be said anew.
///
/// # Errors
/// `Usage` when the folder holds no run of this command; a server does not start or answer, a member ends by
/// itself, `Cancelled`.
pub fn resume(around: &Around<'_>, command: &str, side_by_side: Option<usize>) -> Result<Outcome> {
    let settings = Settings::load(around.folder)?;
    let around = Around { seed: settings.seed, ..*around };
    let side_by_side = side_by_side.unwrap_or(settings.side_by_side);
    match settings.command {
        Command::Outage { .. } if command == settings.command_name() => {
            outage::work(&around, &settings, side_by_side)
        }
        Command::Partition { .. } if command == settings.command_name() => {
            partition::work(&around, &settings, side_by_side)
        }
        _ => Err(settings.other_than(command, around.folder)),
    }
}

pub use fault::Fault;
pub use group::{Around, Ended};
pub use outcome::{Measured, Outcome, Told, recompute};
pub use settings::{Command, RowKey, Settings};
pub use through::Through;

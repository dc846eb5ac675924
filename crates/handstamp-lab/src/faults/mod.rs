//! `lab faults`: connections and servers fail, processes do not.
//!
//! | module | owns |
//! |---|---|
//! | `commit` | connections cut at every byte of the COMMIT exchange |
//! | `outage` | a server goes away and comes back |
//! | `partition` | a member is cut off from the broker, a broker's leader is killed |
//! | `fault` | the servers of an outage, and what is done to them |
//! | `group` | members of a consumer group over a backlog |
//! | `watch` | how far their effects are |
//! | `through` | connections led through proxies |
//! | `servers` | servers of a run's own, which it may stop |
//! | `report` | what a row came to |

pub mod commit;
#[cfg(feature = "kafka")]
mod fault;
#[cfg(feature = "kafka")]
mod group;
#[cfg(feature = "kafka")]
pub mod outage;
#[cfg(feature = "kafka")]
pub mod partition;
pub mod report;
#[cfg(feature = "kafka")]
mod servers;
mod through;
#[cfg(feature = "kafka")]
mod watch;

#[cfg(feature = "kafka")]
pub use fault::Fault;
#[cfg(feature = "kafka")]
pub use group::{Around, Ended};
pub use through::Through;

//! What `dlq` decides without asking anybody (pure): which dead letters are meant, which fail alike, how many
//! may go now.
//!
//! | file | owns |
//! |---|---|
//! | `shape` | a reason without what differs from message to message |
//! | `groups` | dead letters with the same class, code and shape, counted |
//! | `pace` | `--rate`: how many may go now |
//! | `time` | `--since`, `--until`: a moment, or how long ago |

pub(crate) mod groups;
pub(crate) mod pace;
pub(crate) mod shape;
pub(crate) mod time;

//! `lab faults`: connections and servers fail, processes do not.
//!
//! | module | owns |
//! |---|---|
//! | `commit` | connections cut at every byte of the COMMIT exchange |
//! | `report` | what a row came to |

pub mod commit;
pub mod report;

//! `lab clean`: what labs left on servers that were killed, and so removed nothing.
//!
//! Authoritative: the servers, for what is there; its name, for whose it is ([`crate::names`]). Nothing without
//! such a name is touched.

use crate::broker::Broker;
use crate::error::{LabError, LabErrorKind, Result};
use crate::ledger::session::Session;
use crate::names::{LAB, Mark, OWN, mark};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// What kind of thing it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A topic, its group, or both.
    Topic,
    /// A schema.
    Schema,
    /// A database.
    Database,
}

impl What {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Topic => "topic and group",
            Self::Schema => "schema",
            Self::Database => "database",
        }
    }
}

/// Something that a run made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// What it is.
    pub what: What,
    /// Its name.
    pub name: String,
    /// When and by whom.
    pub mark: Mark,
}

impl Left {
    fn of(what: What, name: &str) -> Option<Self> {
        Some(Self { what, name: name.to_owned(), mark: mark(name)? })
    }

    /// Whether the run is over for all that can be known: no process of its number runs here, and it is as
    /// old as asked for.
    #[must_use]
    pub fn is_dead(&self, older_than: Duration) -> bool {
        let age = SystemTime::now().duration_since(self.mark.begun).unwrap_or_default();
        age >= older_than && !self.mark.may_run_here()
    }
}

/// Finds what runs of any lab made and what is still there, on the servers that are named.
///
/// # Errors
/// A server does not answer.
pub fn found(broker: Option<&Broker>, database: Option<&str>) -> Result<Vec<Left>> {
    let mut left = Vec::new();
    if let Some(broker) = broker {
        left.extend(broker.names()?.iter().filter_map(|name| Left::of(What::Topic, name)));
    }
    if let Some(url) = database {
        let session = Session::open(url)?;
        for (what, sql) in [
            (What::Schema, "SELECT nspname FROM pg_namespace ORDER BY nspname"),
            (What::Database, "SELECT datname FROM pg_database ORDER BY datname"),
        ] {
            left.extend(session.first_texts(sql)?.iter().filter_map(|name| Left::of(what, name)));
        }
    }
    Ok(left)
}

/// Removes them.
///
/// # Errors
/// The first that a server does not remove; those before it are gone.
pub fn remove(left: &[&Left], broker: Option<&Broker>, database: Option<&str>) -> Result<()> {
    let session = database.map(Session::open).transpose()?;
    for one in left {
        let Left { name, .. } = one;
        // Only letters, digits and `_` can be in it, or it would have no mark that is ours.
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(LabError::new(LabErrorKind::Other, format!("{name:?} is no name of the lab")));
        }
        let done = match (one.what, broker, &session) {
            (What::Topic, Some(broker), _) => broker.remove(name),
            (What::Schema, _, Some(session)) => {
                session.run(&format!("SET lock_timeout = '10s'; DROP SCHEMA IF EXISTS {name} CASCADE"))
            }
            (What::Database, _, Some(session)) => {
                session.run(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            }
            _ => Ok(()),
        };
        done.map_err(|error| {
            LabError::new(error.kind, format!("{} {name} is not removed", one.what.word())).because(error)
        })?;
    }
    Ok(())
}

/// Names without the ending of a group, each once.
pub(crate) fn of_topics_and_groups(
    topics: impl Iterator<Item = String>,
    groups: impl Iterator<Item = String>,
) -> BTreeSet<String> {
    let ours = |name: &String| name.starts_with(LAB) || name.starts_with(OWN);
    let groups = groups.filter_map(|name| name.strip_suffix(crate::broker::GROUP_END).map(str::to_owned));
    topics.chain(groups).filter(ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_dead_when_it_is_old_and_its_process_is_gone() {
        let mut child = std::process::Command::new("true").spawn().expect("started");
        let gone = child.id();
        child.wait().expect("ended");
        let day = Duration::from_secs(86_400);
        let of = |pid, age: Duration| Left {
            what: What::Schema,
            name: String::new(),
            mark: Mark { begun: SystemTime::now() - age, pid },
        };
        assert!(of(gone, day * 2).is_dead(day));
        assert!(!of(gone, day / 2).is_dead(day));
        assert!(!of(std::process::id(), day * 2).is_dead(day));
    }

    #[test]
    fn a_group_whose_topic_is_gone_is_found_and_a_strangers_is_not() {
        let text =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>().into_iter();
        let topics = text(&["hs_lab_a", "orders", "hs_own_b"]);
        let groups = text(&["hs_lab_a_group", "hs_lab_c_group", "orders_group", "wallet"]);
        let found = of_topics_and_groups(topics, groups);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["hs_lab_a", "hs_lab_c", "hs_own_b"]);
    }
}

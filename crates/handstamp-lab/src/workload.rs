//! The credits of a run, from a seed, and the producer's own log of what was sent.
//!
//! The log is what the verdict is measured against: one JSON line for each record that the broker
//! acknowledged, written by the producer and by nobody else.

use crate::error::{LabError, LabErrorKind, Result};
use crate::schedule::Random;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use uuid::Builder;

/// One credit: add `amount` to `account`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    /// The producer's event id.
    pub id: String,
    /// Whose balance.
    pub account: i64,
    /// How much.
    pub amount: i64,
}

impl Credit {
    /// The message's body.
    #[must_use]
    pub fn body(&self) -> String {
        format!(r#"{{"account_id":{},"amount":{}}}"#, self.account, self.amount)
    }
}

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Decides ids, accounts, amounts and which are sent again.
    pub seed: u64,
    /// Different credits.
    pub messages: u64,
    /// Accounts, numbered from 1.
    pub accounts: u64,
    /// How many of the credits are sent a second time, at a new offset.
    pub resends: u64,
}

/// The time of the first id, so that a seed gives the same ids at any time: 2026-01-01.
const FIRST_ID_MS: u64 = 1_767_225_600_000;

impl Plan {
    /// The n-th credit.
    #[must_use]
    pub fn credit(&self, n: u64) -> Credit {
        let mut random = Random::new(self.seed, 1_000_000 + n);
        let mut tail = [0; 10];
        tail[..8].copy_from_slice(&random.next_u64().to_be_bytes());
        tail[8..].copy_from_slice(&random.next_u64().to_be_bytes()[..2]);
        let id = Builder::from_unix_timestamp_millis(FIRST_ID_MS + n, &tail).into_uuid();
        let account = 1 + random.below(self.accounts);
        let amount = 1 + random.below(100);
        Credit {
            id: id.to_string(),
            account: i64::try_from(account).unwrap_or(i64::MAX),
            amount: i64::try_from(amount).unwrap_or(i64::MAX),
        }
    }

    /// Every record in the order it is sent: the numbers of the credits. A resend follows the last first
    /// sending, as a relay's would after its restart.
    pub fn order(&self) -> impl Iterator<Item = u64> + use<> {
        let mut random = Random::new(self.seed, 999_999);
        let messages = self.messages;
        let resends = if messages == 0 { 0 } else { self.resends };
        // Each of `resends` equal stretches gives one credit: spread over the run, none more than twice.
        let again: Vec<u64> = (0..resends.min(messages))
            .map(|at| {
                let (from, to) = (at * messages / resends, (at + 1) * messages / resends);
                from + random.below((to - from).max(1))
            })
            .collect();
        (0..messages).chain(again)
    }
}

/// The producer's log, being written.
#[derive(Debug)]
pub struct SentLog {
    file: BufWriter<File>,
    path: std::path::PathBuf,
}

impl SentLog {
    /// A new log; an old one of that name is replaced.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| LabError::file("write", path, error))?;
        Ok(Self { file: BufWriter::new(file), path: path.to_owned() })
    }

    /// Notes a record that was sent.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note(&mut self, credit: &Credit) -> Result<()> {
        let line = serde_json::to_string(credit)
            .map_err(|error| LabError::new(LabErrorKind::Other, "a credit is no JSON").because(error))?;
        writeln!(self.file, "{line}").map_err(|error| LabError::file("write", &self.path, error))
    }

    /// Writes it out.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|error| LabError::file("write", &self.path, error))
    }
}

/// Reads a producer's log: every record in the order sent, resends included.
///
/// # Errors
/// The file cannot be read, or a line is no credit.
pub fn read_sent(path: &Path) -> Result<Vec<Credit>> {
    let file = File::open(path).map_err(|error| LabError::file("read", path, error))?;
    let mut sent = Vec::new();
    for (at, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| LabError::file("read", path, error))?;
        sent.push(serde_json::from_str(&line).map_err(|error| {
            LabError::usage(format!("{}, line {}: no credit", path.display(), at + 1)).because(error)
        })?);
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn plan() -> Plan {
        Plan { seed: 5, messages: 1000, accounts: 10, resends: 50 }
    }

    #[test]
    fn the_same_seed_gives_the_same_credits_with_distinct_ids() {
        let all = |plan: &Plan| (0..plan.messages).map(|n| plan.credit(n)).collect::<Vec<_>>();
        assert_eq!(all(&plan()), all(&plan()));
        let ids: std::collections::BTreeSet<_> = all(&plan()).into_iter().map(|credit| credit.id).collect();
        assert_eq!(ids.len(), 1000);
        assert!(!all(&Plan { seed: 6, ..plan() }).iter().any(|credit| ids.contains(&credit.id)));
        assert!(all(&plan()).iter().all(|c| (1..=10).contains(&c.account) && (1..=100).contains(&c.amount)));
    }

    #[test]
    fn resends_are_exactly_as_many_as_asked_and_come_after_their_first() {
        let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
        for n in plan().order() {
            *seen.entry(n).or_default() += 1;
        }
        assert_eq!(seen.len(), 1000);
        assert_eq!(seen.values().filter(|times| **times == 2).count(), 50);
        assert!(seen.values().all(|times| *times <= 2));
        assert_eq!(Plan { messages: 0, ..plan() }.order().count(), 0);
        assert_eq!(Plan { messages: 3, resends: 9, ..plan() }.order().count(), 6);
    }

    #[test]
    fn the_log_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sent.jsonl");
        let mut log = SentLog::create(&path).expect("a log");
        let sent: Vec<Credit> = plan().order().map(|n| plan().credit(n)).collect();
        for credit in &sent {
            log.note(credit).expect("written");
        }
        log.finish().expect("written");
        assert_eq!(read_sent(&path).expect("read"), sent);
        std::fs::write(&path, "{}\n").expect("written");
        assert!(read_sent(&path).expect_err("no credit").to_string().contains("line 1"));
    }
}

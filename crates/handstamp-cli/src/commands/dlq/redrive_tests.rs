//! The loop of `dlq redrive` on a store in memory and a paused clock.

use super::*;
use crate::cli::{Cli, Command, dlq::DlqCommand};
use crate::dlq::groups::tests::letter;
use clap::Parser as _;
use handstamp_core::parked::FailedAttempt;
use handstamp_core::version::{Version, VersionKey};
use handstamp_core::{ConsumerName, Timestamp};
use handstamp_stores::redrive::{AuditRow, Backlog, DeadLetterFilter, ParkedRow, ParkedSummary, Unparked};
use handstamp_stores::rows::{DeadLetterCursor, DeadLetterRow, InboxRow};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

const PIPELINE: &str = "name = \"w\"\nsource = { type = \"file\", path = \"-\" }\nidentity = { field = \"/id\" }\n\
                        store = { type = \"sqlite\", path = \"w.db\" }\n[[effect]]\nsql = \"SELECT 1\"\n";

/// Dead letters by number, and when which were sent back.
#[derive(Default)]
struct Fake {
    letters: RefCell<BTreeMap<u64, DeadLetterSummary>>,
    sent: RefCell<Vec<(Duration, u64)>>,
    began: Option<tokio::time::Instant>,
    /// What is sent back comes again at once, given up a moment later.
    comes_again: bool,
    conflicts: RefCell<u32>,
    away: Option<Away>,
}

/// How a store is away.
#[derive(Clone, Copy)]
enum Away {
    Refuses,
    Hangs,
}

impl Fake {
    fn with(count: u64) -> Self {
        let letters = (0..count).map(|number| (number, numbered(number))).collect();
        Self { letters: RefCell::new(letters), began: Some(tokio::time::Instant::now()), ..Self::default() }
    }

    fn sent(&self) -> u64 {
        self.sent.borrow().iter().map(|(_, count)| count).sum()
    }
}

fn key(number: u64) -> DeadLetterKey {
    DeadLetterKey(u128::from(number).to_be_bytes())
}

fn number(key: DeadLetterKey) -> u64 {
    u64::try_from(u128::from_be_bytes(key.0)).unwrap()
}

fn numbered(number: u64) -> DeadLetterSummary {
    let at = i64::try_from(number).unwrap();
    let id = MessageId::try_from(format!("id-{number}").as_str()).unwrap();
    DeadLetterSummary { key: key(number), id: Some(id), ..letter(0, at, None, "no account") }
}

impl Operations for Fake {
    async fn inbox_row(&self, _: &ConsumerName, _: &MessageId) -> Result<Option<InboxRow>, StoreError> {
        Ok(None)
    }

    async fn letters(
        &self,
        _: &ConsumerName,
        _: &DeadLetterFilter,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<Vec<DeadLetterSummary>, StoreError> {
        let behind = |letter: &&DeadLetterSummary| {
            after.as_ref().is_none_or(|after| (letter.failed_at, letter.key) > (after.failed_at, after.key))
        };
        let letters = self.letters.borrow();
        let mut found: Vec<DeadLetterSummary> = letters.values().filter(behind).cloned().collect();
        found.sort_by_key(|letter| (letter.failed_at, letter.key));
        found.truncate(limit as usize);
        Ok(found)
    }

    async fn letter(&self, _: &ConsumerName, _: DeadLetterKey) -> Result<Option<DeadLetterRow>, StoreError> {
        Ok(None)
    }

    async fn redrive(
        &self,
        _: &ConsumerName,
        asked: &[Redrive],
        _: &Operation,
    ) -> Result<Vec<Redriven>, StoreError> {
        if *self.conflicts.borrow() > 0 {
            *self.conflicts.borrow_mut() -= 1;
            return Err(StoreError::new(StoreErrorKind::Conflict, "another one was first"));
        }
        self.sent.borrow_mut().push((self.began.unwrap().elapsed(), asked.len() as u64));
        let mut letters = self.letters.borrow_mut();
        let answers = asked.iter().map(|redrive| match letters.remove(&number(redrive.dead_letter)) {
            Some(letter) if self.comes_again => {
                let failed_at = Timestamp(letter.failed_at.0 + 1_000_000);
                letters.insert(number(letter.key), DeadLetterSummary { failed_at, ..letter });
                Redriven::Parked
            }
            Some(_) => Redriven::Parked,
            None => Redriven::Missing,
        });
        Ok(answers.collect())
    }

    async fn discard(
        &self,
        _: &ConsumerName,
        keys: &[DeadLetterKey],
        _: &Operation,
    ) -> Result<Vec<bool>, StoreError> {
        let mut letters = self.letters.borrow_mut();
        Ok(keys.iter().map(|key| letters.remove(&number(*key)).is_some()).collect())
    }

    async fn failed_attempts(
        &self,
        _: &ConsumerName,
        _: DeadLetterKey,
    ) -> Result<Vec<FailedAttempt>, StoreError> {
        Ok(Vec::new())
    }

    async fn audit_where(
        &self,
        _: &ConsumerName,
        _: &AuditFilter,
        _: Option<i64>,
        _: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn parked_one(&self, _: &ConsumerName, _: DeadLetterKey) -> Result<Option<ParkedRow>, StoreError> {
        Ok(None)
    }

    async fn send_now(
        &self,
        _: &ConsumerName,
        keys: &[DeadLetterKey],
        _: &Operation,
    ) -> Result<Vec<Unparked>, StoreError> {
        Ok(vec![Unparked::Missing; keys.len()])
    }

    async fn discard_parked(
        &self,
        _: &ConsumerName,
        keys: &[DeadLetterKey],
        _: &Operation,
    ) -> Result<Vec<Unparked>, StoreError> {
        Ok(vec![Unparked::Missing; keys.len()])
    }

    async fn mark(&self, _: &ConsumerName, _: &VersionKey) -> Result<Option<Version>, StoreError> {
        Ok(None)
    }

    async fn backlog(&self, _: &ConsumerName) -> Result<Backlog, StoreError> {
        match self.away {
            None => Ok(Backlog::default()),
            Some(Away::Refuses) => Err(StoreError::new(StoreErrorKind::Unavailable, "away")),
            Some(Away::Hangs) => std::future::pending().await,
        }
    }

    async fn parked_unordered(&self, _: &ConsumerName) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn parked_page(
        &self,
        _: &ConsumerName,
        _: Option<i64>,
        _: u32,
    ) -> Result<Vec<ParkedSummary>, StoreError> {
        Ok(Vec::new())
    }
}

/// Runs `dlq redrive` with these words on a store, until it ends or is stopped.
async fn redriven(
    store: &Fake,
    words: &[&str],
    stop: impl Future<Output = ()>,
) -> Result<Verdicts, CliError> {
    let line = [&["handstamp", "dlq", "redrive", "w.toml"], words].concat();
    let Command::Dlq(DlqCommand::Redrive(args)) = Cli::try_parse_from(line).unwrap().command else {
        panic!("another command")
    };
    let config = crate::config::parsed(Path::new("w.toml"), PIPELINE);
    let operation = operation(&args.selection, args.why.as_deref().unwrap_or_default());
    let (selection, as_id, rate) = (&args.selection, args.as_id.as_ref(), args.rate);
    let job = Job { config: &config, selection, action: Action::Redrive, operation, as_id, rate };
    work(store, &job, stop).await
}

async fn never() {
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_at_500_a_second_take_twenty_seconds_and_no_second_has_more() {
    let store = Fake::with(10_000);
    let verdicts = redriven(&store, &["--all", "--rate", "500/s"], never()).await.unwrap();
    assert_eq!((verdicts.done, verdicts.exit(), store.sent()), (10_000, Exit::Ok, 10_000));
    let took = store.began.unwrap().elapsed();
    assert!((Duration::from_millis(19_800)..Duration::from_millis(20_200)).contains(&took), "{took:?}");
    let sent = store.sent.borrow();
    for (at, _) in sent.iter() {
        let within = sent.iter().filter(|(then, _)| then >= at && *then < *at + Duration::from_secs(1));
        let count: u64 = within.map(|(_, count)| count).sum();
        assert!(count <= 550, "{count} in the second from {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_rate_nothing_waits() {
    let store = Fake::with(1_001);
    let verdicts = redriven(&store, &["--all"], never()).await.unwrap();
    assert_eq!((verdicts.done, store.began.unwrap().elapsed()), (1_001, Duration::ZERO));
}

/// What fails again is a dead letter again, later: it must not be sent back a second time by the same command.
#[tokio::test(start_paused = true)]
async fn what_comes_again_meanwhile_is_not_met_twice() {
    let store = Fake { comes_again: true, ..Fake::with(1_300) };
    let verdicts = redriven(&store, &["--all"], never()).await.unwrap();
    assert_eq!((verdicts.done, store.sent()), (1_300, 1_300));
    assert_eq!(store.letters.borrow().len(), 1_300);
}

#[tokio::test(start_paused = true)]
async fn stopped_it_has_done_what_it_says_and_the_same_command_does_the_rest() {
    let store = Fake::with(1_000);
    let words = ["--all", "--rate", "100/s"];
    let stop = tokio::time::sleep(Duration::from_millis(2_510));
    let first = redriven(&store, &words, stop).await.unwrap();
    assert!(first.stopped && first.exit() == Exit::Unfinished);
    assert_eq!((first.done, store.letters.borrow().len() as u64), (store.sent(), 1_000 - store.sent()));
    assert!((240..=260).contains(&first.done), "{}", first.done);
    let second = redriven(&store, &words, never()).await.unwrap();
    assert_eq!((second.done, store.letters.borrow().len()), (1_000 - first.done, 0));
}

#[tokio::test(start_paused = true)]
async fn a_limit_a_dry_run_and_a_lost_race_do_what_they_say() {
    let store = Fake::with(700);
    let dry = redriven(&store, &["--all", "--dry-run", "--rate", "1/h"], never()).await.unwrap();
    assert_eq!((dry.done, store.sent()), (700, 0));
    let some = redriven(&store, &["--class", "sql", "--limit", "3"], never()).await.unwrap();
    assert_eq!((some.done, store.sent()), (3, 3));
    *store.conflicts.borrow_mut() = 4;
    let rest = redriven(&store, &["--all"], never()).await.unwrap();
    assert_eq!(rest.done, 697);
    *store.conflicts.borrow_mut() = 1_000;
    store.letters.borrow_mut().insert(1, numbered(1));
    let error = redriven(&store, &["--all"], never()).await.unwrap_err();
    assert_eq!(error.exit, Exit::Unreachable);
    assert_eq!(error.object.unwrap()["done"], 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_named_is_nothing_meant() {
    let store = Fake::with(3);
    let error = redriven(&store, &[], never()).await.unwrap_err();
    assert_eq!((error.exit, store.sent()), (Exit::Usage, 0));
    let named = redriven(&store, &[&key(9).to_string()], never()).await.unwrap();
    assert_eq!((named.done, named.exit()), (0, Exit::CheckFailed));
}

/// A store that is away when a run has ended takes nothing from its report.
#[tokio::test(start_paused = true)]
async fn what_is_left_is_left_out_where_the_store_does_not_answer() {
    let config = crate::config::parsed(Path::new("w.toml"), PIPELINE);
    for away in [Away::Refuses, Away::Hangs] {
        let store = Fake { away: Some(away), ..Fake::with(1) };
        assert_eq!(crate::commands::left::ask(&store, &config).await, None);
    }
    assert_eq!(crate::commands::left::ask(&Fake::with(1), &config).await, Some(Backlog::default()));
}

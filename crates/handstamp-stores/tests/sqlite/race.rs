//! Many writers on one file, in threads and in processes: every id is applied once.

use crate::support::{SCHEMA, beside, message, number, requests};
use handstamp_core::{BatchHandler, Claim, ConsumerName, Fingerprint, Message, Store, StoreErrorKind};
use handstamp_stores::effect::{CompiledEffect, EffectSpec, ExpectRows};
use handstamp_stores::sqlite::{SqlEffects, SqliteOptions, SqliteStore};
use rusqlite::Connection;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const IDS: usize = 400;
const BATCH: usize = 10;
const PATH: &str = "HANDSTAMP_TEST_SQLITE_RACE_FILE";
const SEED: &str = "HANDSTAMP_TEST_SQLITE_RACE_SEED";

/// Applies every id, in an order of its own; the number of ids that were First here.
async fn apply_all(path: &Path, seed: usize) -> usize {
    let setup = handstamp_stores::sqlite::Setup { name: "schema.sql".into(), sql: SCHEMA.into() };
    let options = SqliteOptions { setup: Some(setup), ..SqliteOptions::new(path) };
    let store = SqliteStore::open(options).await.unwrap();
    let name = ConsumerName::new("wallet").unwrap();
    let consumer = store.register(&name, &Fingerprint("race".into()), false).await.unwrap();
    let spec = EffectSpec {
        expect_rows: Some(ExpectRows::Exactly(1)),
        ..EffectSpec::new("UPDATE accounts SET balance = balance + 1 WHERE id = 7")
    };
    let ledger = EffectSpec::new("INSERT INTO ledger VALUES (:message_id, 1)");
    let compile = |spec| CompiledEffect::compile(spec).unwrap();
    let effects = SqlEffects::new(vec![compile(&spec), compile(&ledger)]);
    // 7 has no factor in common with the number of ids: each writer meets the others everywhere.
    let order: Vec<usize> = (0..IDS).map(|n| (n * 7 + seed * 131) % IDS).collect();
    let mut applied = 0;
    for chunk in order.chunks(BATCH) {
        let batch: Vec<Message> = chunk.iter().map(|n| message(&format!("id-{n}"), "{}")).collect();
        loop {
            let ids = requests(batch.iter().map(|m| m.id().as_bytes().to_vec()));
            let (mut tx, claims) = match store.begin(&consumer, &ids).await {
                Ok(begun) => begun,
                Err(error) if error.kind == StoreErrorKind::Conflict => continue,
                Err(error) => panic!("{error}"),
            };
            let first: Vec<Message> = batch
                .iter()
                .zip(&claims)
                .filter(|(_, claim)| **claim == Claim::First)
                .map(|(message, _)| message.clone())
                .collect();
            effects.handle_batch(&mut tx, &first).await.unwrap();
            store.commit(tx).await.unwrap();
            applied += first.len();
            break;
        }
    }
    applied
}

fn run(path: &Path, seed: usize) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(apply_all(path, seed))
}

fn each_id_once(eyes: &Connection) {
    let ids = i64::try_from(IDS).unwrap();
    assert_eq!(number(eyes, "SELECT balance FROM accounts WHERE id = 7"), ids);
    assert_eq!(number(eyes, "SELECT count(*) FROM ledger"), ids);
    assert_eq!(number(eyes, "SELECT count(DISTINCT event_id) FROM ledger"), ids);
    assert_eq!(number(eyes, "SELECT count(*) FROM handstamp_inbox"), ids);
    assert_eq!(number(eyes, "SELECT count(*) FROM handstamp_consumers"), 1);
}

#[test]
fn racing_threads_apply_each_id_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    let racers: Vec<_> = (0..4)
        .map(|seed| {
            let path = path.clone();
            std::thread::spawn(move || run(&path, seed))
        })
        .collect();
    let applied: Vec<usize> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
    assert_eq!(applied.iter().sum::<usize>(), IDS, "{applied:?}");
    each_id_once(&beside(&folder));
}

#[test]
fn racing_processes_apply_each_id_once() {
    // In a process that this test started, it is one of the racers.
    if let Some(path) = std::env::var_os(PATH) {
        let seed = std::env::var(SEED).unwrap().parse().unwrap();
        run(Path::new(&path), seed);
        return;
    }
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    let children: Vec<_> = (0..3)
        .map(|seed| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "race::racing_processes_apply_each_id_once", "--nocapture"])
                .env(PATH, &path)
                .env(SEED, seed.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
    each_id_once(&beside(&folder));
}

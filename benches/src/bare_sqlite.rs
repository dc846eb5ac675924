//! A file of JSON lines into SQLite: the hand-written loop, and the program that compares.

use crate::credits::{Credits, Plan, Sent};
use crate::harness::{Bar, Figure, Options, Program, Res, Sample, Side, float};
use crate::wrap::Marks;
use crate::{ours, process};
use rusqlite::{Connection, TransactionBehavior};
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const ACCOUNTS: u64 = 1_000;
/// Messages in one transaction.
pub(crate) const BATCH_MAX: usize = 1_000;
/// How often the position in the file is written, on both sides.
const POSITION_EVERY: Duration = Duration::from_millis(200);

/// The user's own tables.
const TABLES: &str = "
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT;
CREATE TABLE ledger (id INTEGER PRIMARY KEY, event_id TEXT NOT NULL, account_id INTEGER NOT NULL,
    amount INTEGER NOT NULL) STRICT;";
const UPDATE: &str = "UPDATE accounts SET balance = balance + ?1 WHERE id = ?2";
const INSERT: &str = "INSERT INTO ledger (event_id, account_id, amount) VALUES (?1, ?2, ?3)";
const CLAIM: &str = "INSERT INTO handstamp_inbox (id, consumer, digest, seen_at, state)
    VALUES (?1, 1, ?2, unixepoch() - 1577836800, 'a') ON CONFLICT DO NOTHING";

/// The program.
pub(crate) fn program(options: &Options) -> Program {
    let count = options.count(200_000, 5_000);
    Program {
        name: "sqlite",
        title: "A file of JSON lines to SQLite, two statements a message, 1,000 messages a transaction",
        about: "WAL, synchronous = FULL on both sides; the position in the file is written durably every 200 ms \
                on both sides.",
        settings: vec![
            ("effects", format!("{UPDATE}; {INSERT}")),
            ("batch_max", BATCH_MAX.to_string()),
            ("messages", count.to_string()),
        ],
        sides: vec![
            Side::new("ours", move || {
                run(count, |folder, marks| ours::run_sqlite(folder, BATCH_MAX, true, marks))
            }),
            Side::new("bare", move || run(count, |folder, marks| bare(folder, BATCH_MAX, false, marks))),
        ],
        figures: vec![Figure::ratio(
            "file to SQLite, batch of 1,000: ours / bare",
            "ours",
            "bare",
            Bar::AtLeast(0.9),
        )],
    }
}

/// The lines to read.
pub(crate) const LINES: &str = "credits.jsonl";
/// The database.
pub(crate) const DATABASE: &str = "wallet.db";

/// One run over a file of its own; its data is checked.
pub(crate) fn run(count: u64, side: impl Fn(&Path, &Arc<Marks>) -> Res<()>) -> Res<Sample> {
    let folder = tempfile::Builder::new().prefix("handstamp-bench").tempdir()?;
    let mut credits = Credits::new(&Plan::new(count, ACCOUNTS));
    let mut lines = BufWriter::new(File::create(folder.path().join(LINES))?);
    for credit in &mut credits {
        // The body's first brace makes room for the id.
        writeln!(lines, "{{\"id\":\"{}\",{}", credit.id, &credit.body[1..])?;
    }
    lines.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    let path = folder.path().join(DATABASE);
    {
        let connection = open(&path)?;
        handstamp::sqlite::migrate(&connection)?;
        connection.execute_batch(TABLES)?;
        let mut insert = connection.prepare("INSERT INTO accounts VALUES (?1, 0)")?;
        for account in 0..i64::try_from(ACCOUNTS)? {
            insert.execute([account])?;
        }
    }
    let marks = Arc::new(Marks::default());
    let (cpu, written) = (process::cpu_seconds(), process::written_bytes());
    side(folder.path(), &marks)?;
    let (cpu, written) = (process::cpu_seconds() - cpu, process::written_bytes() - written);
    let mut sample = Sample::timed(count, marks.seconds().ok_or("nothing was committed")?);
    sample.set("transactions_per_message", float(marks.commits()) / float(count));
    sample.set("cpu_us_per_message", cpu * 1e6 / float(count));
    sample.set("written_bytes_per_message", written / float(count));
    check(&path, &credits.sent())?;
    Ok(sample)
}

fn open(path: &Path) -> Res<Connection> {
    let connection = Connection::open(path)?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(connection)
}

fn check(path: &Path, sent: &Sent) -> Res<()> {
    let connection = open(path)?;
    let sql = "SELECT count(*), count(DISTINCT event_id), coalesce(sum(amount), 0),
        (SELECT sum(balance) FROM accounts),
        (SELECT count(*) FROM accounts AS a LEFT JOIN
            (SELECT account_id, sum(amount) AS total FROM ledger GROUP BY 1) AS l ON l.account_id = a.id
         WHERE a.balance <> coalesce(l.total, 0)),
        (SELECT count(*) FROM handstamp_inbox)
        FROM ledger";
    let found: [i64; 6] = connection.query_row(sql, [], |row| {
        Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?])
    })?;
    let count = i64::try_from(sent.count)?;
    let mut id_sum = 0_i128;
    let mut ids = connection.prepare("SELECT event_id FROM ledger")?;
    let mut rows = ids.query([])?;
    while let Some(row) = rows.next()? {
        let id = Uuid::try_parse(row.get_ref(0)?.as_str()?)?;
        id_sum += i128::try_from(id.as_u128() & 0xffff_ffff_ffff)?;
    }
    if found != [count, count, sent.amount, sent.amount, 0, count] || id_sum != sent.id_sum {
        let what = "ledger rows, distinct ids, amounts, balances, wrong accounts, inbox rows";
        return Err(format!("{what}: {found:?}, sent {sent:?}, ids {id_sum}").into());
    }
    Ok(())
}

#[derive(Deserialize)]
struct Line<'a> {
    id: &'a str,
    account_id: i64,
    amount: i64,
}

/// The loop as a careful engineer writes it: one thread, cached statements, row counts checked.
/// `set`: the effects run once a batch.
pub(crate) fn bare(folder: &Path, batch_max: usize, set: bool, marks: &Arc<Marks>) -> Res<()> {
    let mut connection = open(&folder.join(DATABASE))?;
    let mut lines = BufReader::with_capacity(64 * 1024, File::open(folder.join(LINES))?);
    if set {
        connection.execute_batch(crate::set::TABLE)?;
    }
    let mut position = 0;
    let mut written = Instant::now();
    let mut batch: Vec<String> = vec![];
    loop {
        batch.clear();
        while batch.len() < batch_max {
            let mut line = String::new();
            let read = lines.read_line(&mut line)?;
            if read == 0 {
                break;
            }
            position += read;
            batch.push(line);
        }
        if batch.is_empty() {
            write_position(folder, position)?;
            return Ok(());
        }
        marks.begun();
        apply(&mut connection, &batch, set)?;
        marks.committed();
        if written.elapsed() >= POSITION_EVERY {
            write_position(folder, position)?;
            written = Instant::now();
        }
    }
}

fn apply(connection: &mut Connection, batch: &[String], set: bool) -> Res<()> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut claim = tx.prepare_cached(CLAIM)?;
        let mut update = tx.prepare_cached(UPDATE)?;
        let mut insert = tx.prepare_cached(INSERT)?;
        let mut rows = vec![];
        for text in batch {
            let text = text.trim_end();
            let line: Line<'_> = serde_json::from_str(text)?;
            let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(text.as_bytes()).as_bytes();
            let digest = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
            let id = Uuid::try_parse(line.id)?;
            if claim.execute((id.as_bytes().as_slice(), digest))? == 0 {
                continue;
            }
            if set {
                rows.push((line.id.to_owned(), line.account_id, line.amount));
                continue;
            }
            let updated = update.execute((line.amount, line.account_id))?;
            let inserted = insert.execute((line.id, line.account_id, line.amount))?;
            if updated != 1 || inserted != 1 {
                return Err(format!("message {} touched {updated} and {inserted} rows", line.id).into());
            }
        }
        if set {
            crate::set::apply_sqlite(&tx, &rows)?;
        }
    }
    tx.commit()?;
    Ok(())
}

fn write_position(folder: &Path, position: usize) -> Res<()> {
    let new = folder.join("position.new");
    let mut file = File::create(&new)?;
    file.write_all(position.to_string().as_bytes())?;
    file.sync_data()?;
    std::fs::rename(new, folder.join("position"))?;
    Ok(())
}

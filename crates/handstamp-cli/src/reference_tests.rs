//! The reference pages that are made from the program: each is compared, and `HANDSTAMP_UPDATE=1` writes it anew.

// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::expect_used)]

use crate::exit::{Exit, source_exit, store_exit};
use handstamp_core::source::{DeliveryCount, SettleKind};
use handstamp_core::{Capabilities, FailureClass, SourceErrorKind, Store, StoreCapabilities, StoreErrorKind};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a root").to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

#[track_caller]
fn is_page(path: &str, wanted: &str) {
    if std::env::var_os("HANDSTAMP_UPDATE").is_some() {
        std::fs::write(root().join(path), wanted).expect("written");
    }
    assert!(read(path) == wanted, "HANDSTAMP_UPDATE=1 cargo test -p handstamp-cli reference writes {path}");
}

/// The variants of an enum in a source file, each with its first line of documentation.
fn variants(path: &str, name: &str) -> Vec<(String, String)> {
    let text = read(path);
    let (_, body) = text.split_once(&format!("pub enum {name} {{\n")).expect("the enum");
    let (body, _) = body.split_once("\n}\n").expect("its end");
    let (mut found, mut said) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("///") {
            said.push_str(more);
        } else if line.ends_with(',') {
            let variant = line.trim_end_matches(',').to_owned();
            found.push((variant, std::mem::take(&mut said).trim().trim_end_matches('.').to_owned()));
        }
    }
    found
}

const CODES: [(Exit, &str, &str); 8] = [
    (Exit::Ok, "done, or stopped as asked; dead letters do not change it", "nothing"),
    (
        Exit::Unexpected,
        "unexpected: standard output that cannot be written, a fault of the program",
        "start it again; report what comes again",
    ),
    (
        Exit::Usage,
        "wrong command line or file",
        "every problem is named with its line; do not start again before it is corrected",
    ),
    (
        Exit::Unreachable,
        "the source or the store cannot be reached, is missing, or is held by another process",
        "start it again",
    ),
    (
        Exit::NotMigrated,
        "the tables are missing or of another version",
        "`handstamp migrate FILE`; do not start again before",
    ),
    (
        Exit::CheckFailed,
        "`check` or the lab found a problem; of `dlq`: something that was named stayed, or is not there",
        "read what was found",
    ),
    (
        Exit::Inconclusive,
        "a run of the lab proves nothing: a control did no harm",
        "kill more often, or later",
    ),
    (
        Exit::Unfinished,
        "stopped before it had finished: rolled back, nothing of it settled",
        "start it again: what was open comes again",
    ),
];

const STORE_KINDS: [(&str, StoreErrorKind); 12] = [
    ("Unavailable", StoreErrorKind::Unavailable),
    ("Conflict", StoreErrorKind::Conflict),
    ("Timeout", StoreErrorKind::Timeout),
    ("SchemaMismatch", StoreErrorKind::SchemaMismatch),
    ("NotMigrated", StoreErrorKind::NotMigrated),
    ("UnknownConsumer", StoreErrorKind::UnknownConsumer),
    ("FingerprintMismatch", StoreErrorKind::FingerprintMismatch),
    ("TooLong", StoreErrorKind::TooLong),
    ("Statement", StoreErrorKind::Statement),
    ("Swallowed", StoreErrorKind::Swallowed),
    ("TransactionEnded", StoreErrorKind::TransactionEnded),
    ("Config", StoreErrorKind::Config),
];

const SOURCE_KINDS: [(&str, SourceErrorKind); 5] = [
    ("Disconnected", SourceErrorKind::Disconnected),
    ("Missing", SourceErrorKind::Missing),
    ("Config", SourceErrorKind::Config),
    ("Locked", SourceErrorKind::Locked),
    ("Other", SourceErrorKind::Other),
];

/// A table of kinds with what the source says of each, and the code that it ends with.
fn kinds<K: Copy>(path: &str, name: &str, known: &[(&str, K)], exit: impl Fn(K) -> Exit) -> String {
    let said = variants(path, name);
    let names: Vec<&str> = said.iter().map(|(variant, _)| variant.as_str()).collect();
    assert_eq!(names, known.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "{name}");
    let rows = said.iter().zip(known);
    rows.map(|((variant, said), (_, kind))| format!("| `{variant}` | {said} | {} |\n", exit(*kind).code()))
        .collect()
}

#[test]
fn the_page_of_errors_is_what_the_program_does() {
    let mut page = "# Errors\n\nA test compares this page with the program.\n\n## Exit codes\n\n\
                    | code | what it means | what to do |\n|---|---|---|\n"
        .to_owned();
    assert_eq!(CODES.map(|(exit, ..)| exit), Exit::ALL);
    for (exit, means, todo) in CODES {
        page.push_str(&format!("| {} | {means} | {todo} |\n", exit.code()));
    }
    page.push_str(
        "\nDeath by a signal has no code of ours. A supervisor starts again after 1, 3, 7 and signals, and not after 2 and 4.\n\
         With `--json` the object has `error`, `details`, `hints` and `exit_code`, whatever happens.\n\n\
         ## Kinds of a store's errors\n\n\
         Classified by the database's code, never by text. The code is what the program ends with where it ends: while it\n\
         runs, what may pass is waited for or run again.\n\n| kind | what it means | exit |\n|---|---|---|\n",
    );
    page.push_str(&kinds("crates/handstamp-core/src/store.rs", "StoreErrorKind", &STORE_KINDS, store_exit));
    page.push_str("\n## Kinds of a source's errors\n\n| kind | what it means | exit |\n|---|---|---|\n");
    page.push_str(&kinds(
        "crates/handstamp-core/src/source.rs",
        "SourceErrorKind",
        &SOURCE_KINDS,
        source_exit,
    ));
    page.push_str(
        "\n## Classes of failed messages\n\nWhy a message is parked or a dead letter; what to do about each is in [the list of\n\
         classes](classes.md).\n\n| class | what it means |\n|---|---|\n",
    );
    let said = variants("crates/handstamp-core/src/failure_class.rs", "FailureClass");
    assert_eq!(said.len(), FailureClass::ALL.len());
    for (class, (_, said)) in FailureClass::ALL.iter().zip(&said) {
        page.push_str(&format!("| `{}` | {said} |\n", class.as_str()));
    }
    is_page("docs/reference/errors.md", &page);
}

fn yes(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

fn time(time: Option<std::time::Duration>, none: &str) -> String {
    time.map_or_else(|| none.to_owned(), |time| humantime::format_duration(time).to_string())
}

/// What a source can do, in words.
fn source_words(capabilities: Capabilities) -> [(&'static str, String); 7] {
    let Capabilities { settle, ordered, lease, release_delay_max, delivery_count, redelivery_window, ends } =
        capabilities;
    [
        (
            "settles",
            match settle {
                SettleKind::Cumulative => "a position per partition".to_owned(),
                SettleKind::Individual => "each delivery".to_owned(),
            },
        ),
        ("in order within a lane", yes(ordered).to_owned()),
        ("a delivery comes again while its holder lives, after", time(lease, "never")),
        ("longest delay that a release keeps", time(release_delay_max, "none")),
        (
            "counts deliveries",
            match delivery_count {
                DeliveryCount::None => "no",
                DeliveryCount::Approximate => "about",
                DeliveryCount::Exact => "exactly",
            }
            .to_owned(),
        ),
        ("a record may come again for", time(redelivery_window, "unknown: as long as it is kept")),
        ("ends by itself", yes(ends).to_owned()),
    ]
}

fn store_words(capabilities: StoreCapabilities) -> [(&'static str, String); 1] {
    let writers = capabilities.writers_max.map_or_else(|| "many".to_owned(), |most| most.to_string());
    [("transactions that write at once", writers)]
}

/// A table of columns with words in common.
fn table(names: [&str; 2], columns: [Vec<(&'static str, String)>; 2]) -> String {
    let mut table = format!("| | {} | {} |\n|---|---|---|\n", names[0], names[1]);
    let [one, other] = columns;
    for ((word, one), (_, other)) in one.into_iter().zip(other) {
        table.push_str(&format!("| {word} | {one} | {other} |\n"));
    }
    table
}

#[test]
fn the_page_of_capabilities_is_the_data_of_sources_and_stores() {
    use handstamp_core::Source;
    use handstamp_sources::file::FileSource;
    use handstamp_sources::kafka::{KafkaOptions, KafkaSource};
    use handstamp_stores::postgres::{PostgresOptions, PostgresStore};
    use handstamp_stores::sqlite::{SqliteOptions, SqliteStore};

    let kafka = KafkaSource::new(KafkaOptions::new("127.0.0.1:1", "g", ["t"])).capabilities();
    let postgres =
        PostgresStore::new(PostgresOptions::parse("postgres://h").expect("options")).expect("a store");
    let dir = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let sqlite =
        runtime.block_on(SqliteStore::open(SqliteOptions::new(dir.path().join("s.db")))).expect("a store");
    let page = format!(
        "# Capabilities\n\nDifferences between brokers and between databases are data. The same data drives the engine, the\n\
         conformance suites and this page, which a test compares.\n\n## Sources\n\n{}\n## Stores\n\n{}",
        table(
            ["kafka", "file"],
            [source_words(kafka).to_vec(), source_words(FileSource::capabilities()).to_vec()]
        ),
        table(
            ["postgres", "sqlite"],
            [store_words(postgres.capabilities()).to_vec(), store_words(sqlite.capabilities()).to_vec()]
        ),
    );
    is_page("docs/reference/capabilities.md", &page);
}

/// A table of a migration: its comment, and its columns with their types and what is said of them.
fn tables(sql: &str) -> String {
    let mut page = String::new();
    let (mut words, mut notes): (Vec<String>, Vec<(String, String)>) = Default::default();
    let mut lines = sql.lines();
    while let Some(line) = lines.next() {
        if let Some(note) = line.strip_prefix("--   ").filter(|note| !note.starts_with(' ')) {
            let (names, what) = note.split_once("  ").or_else(|| note.split_once(' ')).unwrap_or((note, ""));
            notes.push((names.to_owned(), what.trim().to_owned()));
        } else if let Some(more) = line.strip_prefix("--    ") {
            let last = notes.last_mut().expect("a note");
            last.1 = format!("{} {}", last.1, more.trim());
        } else if let Some(comment) = line.strip_prefix("-- ") {
            words.push(comment.to_owned());
        } else if line.starts_with("CREATE ") && line.contains("TABLE ") && line.ends_with('(') {
            let name = line.trim_end_matches(" (").rsplit(' ').next().unwrap_or_default();
            let name = name.replace("\"handstamp\".", "").replace("IF NOT EXISTS ", "");
            let words = std::mem::take(&mut words).join("\n");
            page.push_str(&format!("\n### `{name}`\n\n"));
            if !words.is_empty() {
                page.push_str(&format!("{words}\n\n"));
            }
            page.push_str("| column | type | |\n|---|---|---|\n");
            for column in lines.by_ref().take_while(|line| !line.starts_with(')')) {
                let column = column.trim().trim_end_matches(',');
                let (own, kind) = column.split_once(' ').unwrap_or((column, ""));
                let is_column = own.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !kind.is_empty();
                if !is_column {
                    continue;
                }
                let note = notes.iter().find(|(names, _)| names.split(", ").any(|name| name == own));
                let kind = kind.split_whitespace().collect::<Vec<_>>().join(" ");
                let note = note.map_or("", |(_, what)| what.as_str());
                page.push_str(&format!("| `{own}` | `{kind}` | {note} |\n"));
            }
            notes.clear();
        } else if line.is_empty() || !line.starts_with("--") {
            words.clear();
        }
    }
    page
}

#[test]
fn the_page_of_tables_is_what_the_migrations_make() {
    let postgres = handstamp_stores::postgres::show_sql(&handstamp_stores::postgres::SchemaName::default());
    let sqlite = handstamp_stores::sqlite::show_sql();
    let tables = [tables(&postgres), tables(&sqlite)];
    for (made, told) in [&postgres, &sqlite].iter().zip(&tables) {
        let made = made.lines().filter(|line| line.starts_with("CREATE ") && line.contains("TABLE ")).count();
        assert_eq!(told.matches("\n### ").count(), made);
        assert!(made >= 10);
    }
    let [postgres, sqlite] = tables;
    let page = format!(
        "# The tables\n\nMade by the migrations, which `handstamp migrate FILE --show-sql` prints whole; a test compares this page with them.\n\
         What they hold may be read by anybody; they are written by the program alone. Ids are bytes: `handstamp inbox get`\n\
         asks for one by its text.\n\n## Postgres\n\nIn the schema `handstamp`, or the one that `store.schema` names.\n{postgres}\n\
         ## SQLite\n\nBeside your own tables in the one file.\n{sqlite}"
    );
    is_page("docs/reference/schema.md", &page);
}

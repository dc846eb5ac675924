//! `init`: a commented starter pipeline in a folder. Asks nothing, connects to nothing, replaces nothing.
//!
//! Authoritative: the files under `src/init`, which are put together here; tests run what comes of them.

use crate::cli::first_contact::{InitArgs, InitSource, InitStore};
use crate::exit::{CliError, Exit};
use crate::output;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The pipeline's name in the folder.
const PIPELINE: &str = "pipeline.toml";
/// The schema that editors read, as the pipeline's first line names it.
const SCHEMA: &str = "handstamp.schema.json";

const HEAD: &str = include_str!("../init/head.toml");
const EFFECTS: &str = include_str!("../init/effects.toml");
const CREDITS: &str = include_str!("../init/credits.jsonl");

/// Writes the starter files and says what to type next.
///
/// # Errors
/// One of the files is there already: nothing is written. A file cannot be written.
pub(crate) fn init(args: &InitArgs) -> Result<Exit, CliError> {
    let files = files(args.source, args.store);
    let dir = &args.dir;
    let there: Vec<String> = files
        .iter()
        .map(|(name, _)| dir.join(name))
        .filter(|path| path.symlink_metadata().is_ok())
        .map(|path| path.display().to_string())
        .collect();
    if !there.is_empty() {
        let text = format!("{} is there already: nothing was written", there.join(", "));
        return Err(CliError::usage(text).hint("name another folder: `handstamp init DIR`"));
    }
    std::fs::create_dir_all(dir).map_err(|error| CliError::io(Exit::Usage, "make", dir, &error))?;
    for (name, text) in &files {
        let path = dir.join(name);
        write(&path, text).map_err(|error| CliError::io(Exit::Usage, "write", &path, &error))?;
    }
    output::print(&said(args, &files))?;
    Ok(Exit::Ok)
}

/// A file that somebody made meanwhile is not replaced either.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}

/// The starter files of a source and a store.
fn files(source: InitSource, store: InitStore) -> Vec<(&'static str, String)> {
    let (from, into) = (source_text(source), store_text(store));
    let setup = match store {
        InitStore::Sqlite => include_str!("../init/schema.sqlite.sql"),
        InitStore::Postgres => include_str!("../init/schema.postgres.sql"),
    };
    let mut files = vec![
        (PIPELINE, [HEAD, from, into, EFFECTS].concat()),
        ("schema.sql", setup.to_owned()),
        (SCHEMA, super::schema::text()),
    ];
    if source == InitSource::File {
        files.push(("credits.jsonl", CREDITS.to_owned()));
    }
    files
}

fn source_text(source: InitSource) -> &'static str {
    match source {
        InitSource::File => include_str!("../init/source.file.toml"),
        InitSource::Kafka => include_str!("../init/source.kafka.toml"),
    }
}

fn store_text(store: InitStore) -> &'static str {
    match store {
        InitStore::Sqlite => include_str!("../init/store.sqlite.toml"),
        InitStore::Postgres => include_str!("../init/store.postgres.toml"),
    }
}

/// What was written, and what to type next.
fn said(args: &InitArgs, files: &[(&str, String)]) -> String {
    let file = args.dir.join(PIPELINE);
    let file = shell_word(&file.display().to_string());
    let mut text = String::new();
    for (name, _) in files {
        text.push_str(&format!("wrote {}\n", args.dir.join(name).display()));
    }
    let mut steps = Vec::new();
    if args.source == InitSource::Kafka {
        steps.push(("export KAFKA_BROKERS=127.0.0.1:9092".to_owned(), "where Kafka is"));
    }
    if args.store == InitStore::Postgres {
        steps.push((
            "export DATABASE_URL=postgres://you:password@127.0.0.1:5432/wallet".to_owned(),
            "where Postgres is",
        ));
        steps.push((format!("handstamp migrate {file}"), "makes the tables"));
    }
    if args.source == InitSource::Kafka {
        let publish = format!("handstamp publish {file} --sample credits --count 100 --create-topic");
        steps.push((publish, "something to consume"));
    }
    steps.push((format!("handstamp check {file}"), "finds what would go wrong"));
    steps.push((format!("handstamp run {file} --dry-run"), "what would happen, nothing is kept"));
    match args.source {
        InitSource::File => steps.push((format!("handstamp run {file}"), "applies the file, once")),
        InitSource::Kafka => steps.push((format!("handstamp run {file} --until-idle 2s"), "consumes")),
    }
    steps.push((format!("handstamp dlq list {file}"), "what could not be applied, and why"));
    text.push_str("\nNext:\n");
    let width = steps.iter().map(|(step, _)| step.chars().count()).max().unwrap_or(0);
    for (step, why) in steps {
        text.push_str(&format!("  {step:<width$}  # {why}\n"));
    }
    text
}

/// A path as a shell takes it.
fn shell_word(path: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "._-/".contains(c);
    if !path.is_empty() && path.chars().all(plain) {
        return path.to_owned();
    }
    format!("'{}'", path.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_for_a_shell() {
        for (path, word) in
            [("a/b.toml", "a/b.toml"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")]
        {
            assert_eq!(shell_word(path), word);
        }
    }
}

//! `import-ids`: what a table of processed ids knows is taken into the inbox.
//!
//! Authoritative: the inbox's unique key. Each batch is one transaction; an id that is known stays as it is, so the
//! same command again goes on with the rest.

use crate::backend::{Backend, Registered, source, with_backend};
use crate::cli::ImportIdsArgs;
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, live::Progress, table};
use crate::signals;
use handstamp_core::{ConsumerKey, MessageId, MessageIdError, Store, StoreErrorKind};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::pin::pin;

/// Ids of one transaction.
const BATCH: usize = 10_000;
/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Lines without a usable id that are named.
const NAMED_MAX: usize = 10;
/// A transaction that lost against another is tried so often.
const TRIES: u32 = 10;

/// Takes ids in.
///
/// # Errors
/// The file cannot be read, or what the store answered.
pub(crate) fn import_ids(args: &ImportIdsArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::SourceAndStore)?;
    let lines = Lines::open(&args.from, args.header)?;
    let stop = signals::listen(config.options.shutdown_timeout, |_| {})?;
    let runtime = super::runtime()?;
    let taken =
        with_backend!(&config, backend => runtime.block_on(run(&backend, &config, args, lines, stop)))?;
    if args.json {
        output::print_json(&taken.object(Some(&config), args.dry_run))?;
    } else {
        output::print(&taken.text(args.dry_run))?;
    }
    if taken.stopped {
        output::say("stopped: what was said is taken, and the same command goes on with the rest");
    }
    Ok(taken.exit())
}

/// What `--json` prints of a command that did nothing.
pub(crate) fn nothing() -> Value {
    Taken::default().object(None, false)
}

/// What became of the lines.
#[derive(Debug, Default)]
struct Taken {
    new: u64,
    known: u64,
    unusable: u64,
    /// The first of them, with their lines.
    named: Vec<String>,
    stopped: bool,
}

async fn run<B: Backend>(
    backend: &B,
    config: &Config,
    args: &ImportIdsArgs,
    mut lines: Lines,
    stop: signals::Stop,
) -> Result<Taken, CliError> {
    let fingerprint = source::source(config, true, None)?.fingerprint();
    let store = backend.existing(config).await?;
    let known = store.is_registered(&config.name).await?;
    let mut taken = Taken::default();
    // A dry run registers nothing: of a name that nobody has used, everything is new.
    let consumer = match known || !args.dry_run {
        true => Some(store.register(&config.name, &fingerprint, false).await?),
        false => None,
    };
    let mut asked = pin!(stop.asked());
    let mut progress = Progress::start();
    loop {
        let batch = lines.batch(&mut taken)?;
        if batch.is_empty() {
            return Ok(taken);
        }
        let all = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let new = match &consumer {
            Some(consumer) => match take::<B>(&store, consumer, &batch, args).await {
                Ok(new) => new,
                Err(mut error) => {
                    error.object = Some(Box::new(taken.object(Some(config), args.dry_run)));
                    return Err(error.hint("what was said is taken; the same command goes on with the rest"));
                }
            },
            None => all,
        };
        taken.new += new;
        taken.known += all.saturating_sub(new);
        progress.show(&taken.progress());
        let stops = tokio::select! { biased; () = &mut asked => true, () = std::future::ready(()) => false };
        if stops {
            taken.stopped = true;
            return Ok(taken);
        }
    }
}

async fn take<B: Backend>(
    store: &B::Store,
    consumer: &ConsumerKey,
    batch: &[MessageId],
    args: &ImportIdsArgs,
) -> Result<u64, CliError> {
    let mut tries = 0;
    loop {
        match store.import_ids(consumer, batch, args.seen_at, args.dry_run).await {
            Err(error) if error.kind == StoreErrorKind::Conflict && tries < TRIES => tries += 1,
            other => return Ok(other?),
        }
    }
}

impl Taken {
    fn progress(&self) -> String {
        format!("{} new, {} known", table::grouped(self.new), table::grouped(self.known))
    }

    fn text(&self, dry_run: bool) -> String {
        let (new, known) = (table::grouped(self.new), table::grouped(self.known));
        let mut text = match dry_run {
            true => format!("{new} ids would be taken, {known} are known\n"),
            false => format!("took {new} ids, {known} were known\n"),
        };
        for line in &self.named {
            text.push_str(line);
            text.push('\n');
        }
        if self.unusable > 0 {
            text.push_str(&format!("{} lines without a usable id\n", table::grouped(self.unusable)));
        }
        text
    }

    fn object(&self, config: Option<&Config>, dry_run: bool) -> Value {
        json!({
            "error": null,
            "exit_code": self.exit().code(),
            "consumer": config.map(|config| config.name.as_str()),
            "dry_run": dry_run,
            "new": self.new,
            "known": self.known,
            "unusable": self.unusable,
            "unusable_lines": self.named,
            "stopped": self.stopped,
        })
    }

    fn exit(&self) -> Exit {
        if self.unusable > 0 { Exit::CheckFailed } else { Exit::Ok }
    }
}

/// The lines of a file or of standard input.
struct Lines {
    reader: Box<dyn BufRead>,
    place: String,
    number: u64,
    header: bool,
}

impl Lines {
    fn open(path: &Path, header: bool) -> Result<Self, CliError> {
        let place = path.display().to_string();
        if path == Path::new("-") {
            return Ok(Self { reader: Box::new(BufReader::new(std::io::stdin())), place, number: 0, header });
        }
        let file = File::open(path).map_err(|error| CliError::io(Exit::Usage, "read", path, &error))?;
        Ok(Self { reader: Box::new(BufReader::new(file)), place, number: 0, header })
    }

    /// The next ids, each once; none at the end.
    fn batch(&mut self, taken: &mut Taken) -> Result<Vec<MessageId>, CliError> {
        let mut ids = Vec::new();
        let mut line = Vec::new();
        while ids.len() < BATCH {
            line.clear();
            let read = self.reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
            let read =
                read.map_err(|error| CliError::io(Exit::Usage, "read", Path::new(&self.place), &error))?;
            if read == 0 {
                break;
            }
            self.number += 1;
            if !line.ends_with(b"\n") && u64::try_from(line.len()).unwrap_or(u64::MAX) > LINE_BYTES_MAX {
                let what =
                    format!("{}:{}: the line is longer than {LINE_BYTES_MAX} bytes", self.place, self.number);
                return Err(CliError::usage(what).hint("one id a line is expected, such as ids.csv"));
            }
            if std::mem::take(&mut self.header) {
                continue;
            }
            match first_column(&line).and_then(|id| usable(&id)) {
                Ok(None) => {}
                Ok(Some(id)) => ids.push(id),
                Err(why) => {
                    taken.unusable += 1;
                    if taken.named.len() < NAMED_MAX {
                        taken.named.push(format!("{}:{}: {why}", self.place, self.number));
                    }
                }
            }
        }
        // Known are only those that were there before the file was read.
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

/// The id that a column holds; an empty line is none and no mistake.
fn usable(column: &[u8]) -> Result<Option<MessageId>, String> {
    if column.is_empty() {
        return Ok(None);
    }
    match MessageId::new(column.to_vec()) {
        // As `long_ids = "hash"` keeps it; a message with such an id is a dead letter otherwise.
        Err(MessageIdError::TooLong(_)) => MessageId::hashing_long(column.to_vec()),
        other => other,
    }
    .map(Some)
    .map_err(|error| error.to_string())
}

/// The first column of a line of CSV, byte for byte.
fn first_column(line: &[u8]) -> Result<Vec<u8>, String> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Some(quoted) = line.strip_prefix(b"\"") else {
        return Ok(line.split(|byte| *byte == b',').next().unwrap_or_default().to_vec());
    };
    let mut column = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'"', Some(b'"')) => column.extend(bytes.next()),
            (b'"', None | Some(b',')) => return Ok(column),
            (b'"', _) => return Err("something stands behind the closing quote".to_owned()),
            (byte, _) => column.push(byte),
        }
    }
    Err("the closing quote is missing; an id with a line break cannot be read".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_read_byte_for_byte() {
        for (line, column) in [
            (&b"order-17\n"[..], &b"order-17"[..]),
            (b"order-17,2026-01-31\r\n", b"order-17"),
            (b" a b \n", b" a b "),
            (b"\"a,b\",c\n", b"a,b"),
            (b"\"say \"\"hi\"\"\"\n", b"say \"hi\""),
            (b"\xff\x00\n", b"\xff\x00"),
            (b"\n", b""),
            (b"last", b"last"),
        ] {
            assert_eq!(first_column(line).unwrap(), column, "{line:?}");
        }
        for line in [&b"\"open\n"[..], b"\"a\"b\n"] {
            assert!(first_column(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn what_is_no_id_says_why_and_a_long_one_is_kept_as_its_hash() {
        assert_eq!(usable(b"").unwrap(), None);
        assert!(usable(b"   ").is_err());
        let long = usable(&vec![b'x'; 2_000]).unwrap().unwrap();
        assert!(long.as_bytes().starts_with(MessageId::HASHED.as_bytes()));
    }
}

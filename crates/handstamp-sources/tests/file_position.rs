//! Where a file is read on: after any cut, growth, truncation or replacement, nothing is lost.
#![cfg(feature = "file")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests: a panic is the failure report"
)]

use handstamp_core::source::PortLimits;
use handstamp_core::{
    Command, ConsumerName, Control, Delivery, Disposition, Notice, Source, SourceError, SourceErrorKind,
    SourcePort,
};
use handstamp_sources::file::{FileOptions, FileSource};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::sync::mpsc;

const LIMITS: PortLimits =
    PortLimits { batch_max: 3, batch_max_bytes: 1 << 20, queue_max_bytes: 8 << 20, message_max_bytes: 64 };

struct Place {
    folder: TempDir,
    file: PathBuf,
}

/// What one run saw.
#[derive(Default)]
struct Seen {
    deliveries: Vec<Delivery>,
    notices: Vec<Notice>,
    caught_up: bool,
}

impl Seen {
    fn lines(&self) -> Vec<String> {
        let text = |d: &Delivery| String::from_utf8_lossy(d.record.value.as_ref().unwrap()).into_owned();
        self.deliveries.iter().map(text).collect()
    }
}

struct Running {
    deliveries: mpsc::Receiver<Vec<Delivery>>,
    control: mpsc::UnboundedReceiver<Control>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Place {
    fn new(content: &[u8]) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("credits.jsonl");
        fs::write(&file, content).unwrap();
        Self { folder, file }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn append(&self, bytes: &[u8]) {
        fs::File::options().append(true).open(&self.file).unwrap().write_all(bytes).unwrap();
    }

    fn start(&self) -> Result<Running, SourceError> {
        start(&self.file, Some(&self.state()))
    }

    /// Reads to the end and settles the first so many deliveries.
    async fn run(&self, settle: usize) -> Seen {
        self.start().unwrap().run_to_the_end(settle).await
    }

    fn sidecar(&self) -> PathBuf {
        let paths = fs::read_dir(self.state()).unwrap().map(|entry| entry.unwrap().path());
        paths.into_iter().find(|path| path.extension().is_some_and(|e| e == "position")).unwrap()
    }
}

fn start(path: &Path, state: Option<&Path>) -> Result<Running, SourceError> {
    let mut options = FileOptions::new(path, ConsumerName::new("wallet").unwrap());
    options.state_dir = state.map(Path::to_path_buf);
    let (delivery_sender, deliveries) = mpsc::channel(1);
    let (control_sender, control) = mpsc::unbounded_channel();
    let (commands, command_receiver) = mpsc::unbounded_channel();
    Box::new(FileSource::new(options)).start(SourcePort {
        deliveries: delivery_sender,
        control: control_sender,
        commands: command_receiver,
        limits: LIMITS,
    })?;
    Ok(Running { deliveries, control, commands })
}

impl Running {
    async fn run_to_the_end(mut self, settle: usize) -> Seen {
        let mut seen = Seen::default();
        while !seen.caught_up {
            tokio::select! {
                biased;
                Some(batch) = self.deliveries.recv() => seen.deliveries.extend(batch),
                Some(control) = self.control.recv() => match control {
                    Control::CaughtUp(_) => seen.caught_up = true,
                    Control::Noticed(notice) => seen.notices.push(notice),
                    _ => {}
                },
                else => break,
            }
        }
        while let Ok(batch) = self.deliveries.try_recv() {
            seen.deliveries.extend(batch);
        }
        for delivery in seen.deliveries.iter().take(settle) {
            let settles = vec![(delivery.lane, delivery.tag, Disposition::Ack)];
            let _ = self.commands.send(Command::Settle(settles));
        }
        let _ = self.commands.send(Command::Close { within: std::time::Duration::from_secs(5) });
        assert!(self.deliveries.recv().await.is_none());
        seen
    }
}

const CONTENT: &[u8] =
    b"\xEF\xBB\xBF{\"id\":1}\r\n\n{\"id\":2}\n  \n\r\nbad \xff line\n{\"id\":3}\r\n{\"id\":4}";

fn all_lines() -> Vec<String> {
    ["{\"id\":1}", "{\"id\":2}", "  ", "bad \u{fffd} line", "{\"id\":3}", "{\"id\":4}"]
        .map(String::from)
        .to_vec()
}

#[tokio::test]
async fn a_file_is_read_on_behind_each_settled_line() {
    for settled in 0..=all_lines().len() {
        let place = Place::new(CONTENT);
        assert_eq!(place.run(settled).await.lines(), all_lines());
        let again = place.run(usize::MAX).await;
        assert_eq!(again.lines(), all_lines()[settled..], "{settled} settled");
        assert_eq!(place.run(0).await.lines().len(), 0, "{settled} settled, then all");
        // The places of a line are the same in every run.
        let numbers: Vec<u64> = again.deliveries.iter().map(|d| d.record.origin.line.unwrap()).collect();
        assert_eq!(numbers, [1, 3, 4, 6, 7, 8][settled..], "{settled} settled");
        for delivery in &again.deliveries {
            let value = delivery.record.value.as_ref().unwrap();
            let at = usize::try_from(delivery.record.origin.offset).unwrap();
            assert!(CONTENT[at..].starts_with(value));
        }
    }
}

#[tokio::test]
async fn a_file_may_grow_at_any_byte() {
    for cut in 0..=CONTENT.len() {
        let place = Place::new(&CONTENT[..cut]);
        let first = place.run(usize::MAX).await;
        place.append(&CONTENT[cut..]);
        let second = place.run(usize::MAX).await;
        let seen: BTreeSet<String> = first.lines().into_iter().chain(second.lines()).collect();
        for line in all_lines() {
            assert!(seen.contains(&line), "cut at {cut}: {line:?} is missing in {seen:?}");
        }
        let whole = first.lines().iter().filter(|line| all_lines().contains(line)).count();
        assert!(second.lines().len() <= all_lines().len() - whole + 1, "cut at {cut}: too much came again");
        let last = second.deliveries.last().map_or(8, |delivery| delivery.record.origin.line.unwrap());
        assert_eq!(last, 8, "cut at {cut}: line numbers went astray");
        assert_eq!(second.notices, [], "cut at {cut}");
        assert_eq!(place.run(0).await.lines().len(), 0, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_truncated_or_replaced_file_is_read_from_its_beginning() {
    let same_length: Vec<u8> = CONTENT.iter().map(|b| if *b == b'1' { b'9' } else { *b }).collect();
    type Change = (&'static str, fn(&Place, &[u8]));
    let changes: [Change; 4] = [
        ("truncated", |place, _| fs::write(&place.file, b"{\"id\":1}\n").unwrap()),
        ("rewritten", |place, other| fs::write(&place.file, other).unwrap()),
        ("replaced", |place, other| {
            let new = place.folder.path().join("new");
            fs::write(&new, other).unwrap();
            fs::rename(new, &place.file).unwrap();
        }),
        ("replaced by its copy", |place, _| {
            let new = place.folder.path().join("new");
            fs::copy(&place.file, &new).unwrap();
            fs::rename(new, &place.file).unwrap();
        }),
    ];
    for (how, change) in changes {
        let place = Place::new(CONTENT);
        place.run(usize::MAX).await;
        change(&place, &same_length);
        let seen = place.run(usize::MAX).await;
        assert_eq!(seen.notices, [Notice::Truncated], "{how}");
        assert_eq!(seen.deliveries[0].record.origin.line, Some(1), "{how}");
        // Said once: the next run knows the new file.
        let next = place.run(usize::MAX).await;
        assert_eq!((next.notices.len(), next.lines().len()), (0, 0), "{how}");
    }
}

fn numbered(lines: std::ops::Range<u32>) -> String {
    lines.map(|number| format!("{{\"id\":{number}}}\n")).collect()
}

#[tokio::test]
async fn lines_inserted_in_place_behind_an_equal_beginning_are_read() {
    let (head, tail) = (numbered(0..600), numbered(600..1_200));
    assert!(head.len() > 4_096);
    let place = Place::new(format!("{head}{tail}").as_bytes());
    place.run(usize::MAX).await;
    let inserted = numbered(9_000..9_100);
    fs::write(&place.file, format!("{head}{inserted}{tail}")).unwrap();
    let seen = place.run(usize::MAX).await;
    assert_eq!(seen.notices, [Notice::Truncated]);
    assert_eq!(seen.lines().len(), 1_300);
    assert_eq!(place.run(0).await.lines().len(), 0);
}

#[tokio::test]
async fn the_last_settled_lines_are_those_that_were_delivered() {
    let long = format!("{}\n", "x".repeat(200_000));
    let contents = [
        CONTENT.to_vec(),
        numbered(0..40).into_bytes(),
        numbered(0..20_000).into_bytes(),
        format!("{}{long}", numbered(0..9)).into_bytes(),
        format!("{}{long}{}", numbered(0..9), numbered(9..12)).into_bytes(),
        b"one".to_vec(),
    ];
    for content in contents {
        let place = Place::new(&content);
        let options =
            FileOptions::new(&place.file, ConsumerName::new("wallet").unwrap()).with_state_dir(place.state());
        let last = || options.last_settled_lines(LIMITS.message_max_bytes).unwrap();
        assert!(last().is_empty());
        let seen = place.run(usize::MAX).await;
        let settled = last();
        assert!(!settled.is_empty() && settled.len() <= 16);
        let delivered = &seen.deliveries[seen.deliveries.len() - settled.len()..];
        for (line, delivery) in settled.iter().zip(delivered) {
            assert_eq!(line.record.value, delivery.record.value);
            assert_eq!(line.record.origin.offset, delivery.record.origin.offset);
            assert_eq!(line.record.origin.topic, delivery.record.origin.topic);
            let truncation = delivery.fault.as_ref().and_then(|fault| fault.truncation.clone());
            assert_eq!(line.truncation, truncation);
        }
        assert!(options.discard_position().unwrap() && !options.discard_position().unwrap());
        assert!(last().is_empty());
        assert_eq!(place.run(0).await.lines().len(), seen.lines().len());
    }
}

#[tokio::test]
async fn a_lost_or_broken_sidecar_costs_only_duplicates() {
    let breaks: [fn(&Path); 5] = [
        |sidecar| fs::remove_file(sidecar).unwrap(),
        |sidecar| fs::write(sidecar, b"").unwrap(),
        |sidecar| fs::write(sidecar, b"{\"version\":1,\"offset\":99}").unwrap(),
        |sidecar| fs::write(sidecar, vec![b'{'; 1 << 20]).unwrap(),
        |sidecar| {
            let text = fs::read_to_string(sidecar).unwrap();
            fs::write(sidecar, text.replace("\"version\":2", "\"version\":1")).unwrap();
        },
    ];
    for damage in breaks {
        let place = Place::new(CONTENT);
        place.run(usize::MAX).await;
        damage(&place.sidecar());
        assert_eq!(place.run(usize::MAX).await.lines(), all_lines());
        assert_eq!(place.run(0).await.lines().len(), 0);
    }
}

#[tokio::test]
async fn a_state_folder_that_cannot_be_used_does_not_stop_the_reading() {
    let place = Place::new(CONTENT);
    let consumer = ConsumerName::new("wallet").unwrap();
    let options = FileOptions::new(&place.file, consumer).with_state_dir(place.state());
    // A folder where the lock's file should be: nobody can write there, root neither.
    fs::create_dir_all(options.position_path().unwrap().with_extension("lock")).unwrap();
    assert_eq!(place.run(usize::MAX).await.lines(), all_lines());
    let looked = options.look().unwrap();
    assert!(looked.len() == 1 && looked[0].contains("cannot be kept"), "{looked:?}");
}

/// What is named as a folder and is none was a mistake, not a trouble of the machine: no run begins.
#[tokio::test]
async fn a_state_folder_that_is_a_file_is_refused() {
    let place = Place::new(CONTENT);
    fs::write(place.state(), b"").unwrap();
    for below in ["", "below/it"] {
        let state = if below.is_empty() { place.state() } else { place.state().join(below) };
        let refused = start(&place.file, Some(&state)).err().unwrap();
        assert_eq!(refused.kind, SourceErrorKind::Config);
        assert!(refused.message.contains("state_dir"), "{refused}");
        let consumer = ConsumerName::new("wallet").unwrap();
        let looked = FileOptions::new(&place.file, consumer).with_state_dir(&state).look();
        assert_eq!(looked.err().unwrap().message, refused.message);
    }
    // No position, no folder.
    assert!(start(&place.file, None).is_ok());
}

#[tokio::test]
async fn a_second_reader_of_the_same_consumer_is_refused_until_the_first_is_gone() {
    let place = Place::new(CONTENT);
    let first = place.start().unwrap();
    let refused = place.start().err().unwrap();
    assert_eq!(refused.kind, SourceErrorKind::Locked);
    assert!(refused.message.contains("wallet") && refused.message.contains(".lock"), "{refused}");
    // By another name of the file, too.
    let link = place.folder.path().join("link.jsonl");
    std::os::unix::fs::symlink(&place.file, &link).unwrap();
    assert_eq!(start(&link, Some(&place.state())).err().unwrap().kind, SourceErrorKind::Locked);
    first.run_to_the_end(0).await;
    assert_eq!(place.run(0).await.lines(), all_lines());
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_that_names_it() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("nowhere.jsonl");
    let error = start(&missing, None).err().unwrap();
    assert_eq!(error.kind, SourceErrorKind::Missing);
    assert!(error.message.contains("nowhere.jsonl"), "{error}");
    let error = start(folder.path(), None).err().unwrap();
    assert_eq!(error.kind, SourceErrorKind::Config);
    assert!(error.message.contains("folder"), "{error}");
}

#[tokio::test]
async fn an_over_long_line_is_a_fault_with_its_length_and_hash() {
    let long = vec![b'x'; 1_000];
    let place = Place::new(&[&b"{\"id\":1}\n"[..], &long, b"\n{\"id\":2}\n"].concat());
    let seen = place.run(usize::MAX).await;
    assert_eq!(seen.deliveries.len(), 3);
    let fault = seen.deliveries[1].fault.as_ref().unwrap();
    let truncation = fault.truncation.as_ref().unwrap();
    assert_eq!(truncation.full_bytes, 1_000);
    assert_eq!(truncation.blake3, *blake3::hash(&long).as_bytes());
    assert_eq!(seen.deliveries[1].record.value.as_ref().unwrap().len(), 64);
    assert!(seen.deliveries[0].fault.is_none() && seen.deliveries[2].fault.is_none());
}

#[tokio::test]
async fn an_empty_file_ends_at_once() {
    for content in [&b""[..], b"\xEF\xBB\xBF", b"\n\r\n\n"] {
        let place = Place::new(content);
        let mut running = place.start().unwrap();
        assert!(running.deliveries.recv().await.is_none());
        let controls: Vec<Control> = std::iter::from_fn(|| running.control.try_recv().ok()).collect();
        assert!(matches!(controls[..], [Control::Assigned(_), Control::CaughtUp(_)]), "{controls:?}");
    }
}

#[tokio::test]
async fn a_fifo_is_read_while_it_is_written() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let mut running = start(&path, Some(&folder.path().join("state"))).unwrap();
    let to_open = path.clone();
    let opened = tokio::task::spawn_blocking(move || fs::File::options().write(true).open(to_open));
    let mut writer = opened.await.unwrap().unwrap();
    let mut count = 0;
    for line in ["one\n", "two\nthree\n", "fo"] {
        writer.write_all(line.as_bytes()).unwrap();
        // Each whole line arrives although the writer has not closed.
        for _ in line.matches('\n') {
            if count == 0 {
                count += running.deliveries.recv().await.unwrap().len();
            }
            count -= 1;
        }
    }
    writer.write_all(b"ur").unwrap();
    drop(writer);
    let last = running.deliveries.recv().await.unwrap();
    assert_eq!(last[0].record.value.as_deref(), Some(&b"four"[..]));
    assert_eq!(last[0].record.origin.line, Some(4));
}

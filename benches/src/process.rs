//! The program `handstamp` as a process: its memory under full load, and how soon it has polled.

use crate::credits::Plan;
use crate::harness::{Bar, Figure, Options, Program, Res, Sample, Side, float};
use crate::kafka::{GroupView, Topic, brokers, delete_group};
use crate::postgres::Database;
use crate::programs::unique;
use handstamp::telemetry::FIRST_POLL;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

const ACCOUNTS: u64 = 1_000;
/// What the source logs when it has its partitions.
const ASSIGNED: &str = "assigned";

/// The program.
pub(crate) fn program(options: &Options) -> Res<Program> {
    let binary = binary()?;
    let load = Duration::from_secs(if options.quick { 5 } else { 60 });
    let count = options.count(3_600_000, 100_000);
    let memory_of = binary.clone();
    let (mut runs, quick) = (0, options.quick);
    let memory = move || {
        // The load takes a minute and its peak hardly varies: no warming up, and three rounds of it.
        runs += 1;
        if quick || (2..=4).contains(&runs) { memory(&memory_of, count, load) } else { Ok(Sample::default()) }
    };
    let start = move || start(&binary);
    Ok(Program {
        name: "process",
        title: "The program under full load, and how soon it has polled",
        about: "`handstamp run` from Kafka to Postgres with default settings, the release build. Memory: VmHWM \
                after a minute of full load with messages of 1 KiB. Start: from exec to the line that says that \
                the group was polled for the first time; partitions come when the broker gives them. Servers \
                up, tables there.",
        settings: vec![("load", format!("{load:?}")), ("message", "1 KiB".into())],
        sides: vec![Side::new("memory", memory), Side::new("start", start)],
        figures: vec![
            Figure::single("VmHWM after 60 s of full load, MB", "vm_hwm_mb", "memory", Bar::AtMost(64.0)),
            Figure::single("exec to the first poll call, ms", "first_poll_ms", "start", Bar::AtMost(150.0)),
            Figure::single("exec to assigned partitions, ms", "assigned_ms", "start", Bar::None),
        ],
    })
}

/// The release build of the program; must be there.
fn binary() -> Res<PathBuf> {
    let here = std::env::current_exe()?;
    let path = here.parent().unwrap_or(Path::new(".")).join("handstamp");
    if path.exists() {
        return Ok(path);
    }
    Err(format!("{} is missing: cargo build --release -p handstamp-cli", path.display()).into())
}

fn pipeline(name: &str, url: &str) -> Res<String> {
    Ok(format!(
        r#"name = "wallet"
[source]
type = "kafka"
brokers = "{}"
topics = ["{name}"]
group = "{name}"
[identity]
header = "event_id"
[store]
type = "postgres"
url = "{url}"
[[effect]]
sql = "UPDATE accounts SET balance = balance + :amount WHERE id = :account_id"
expect_rows = 1
[[effect]]
sql = "INSERT INTO ledger (event_id, account_id, amount) VALUES (:message_id, :account_id, :amount)"
expect_rows = 1
"#,
        brokers()?
    ))
}

struct Running {
    child: Child,
    started: Instant,
    lines: Option<BufReader<ChildStderr>>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(binary: &Path, name: &str, url: &str) -> Res<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("pipeline.toml");
        std::fs::write(&file, pipeline(name, url)?)?;
        let started = Instant::now();
        let mut child = Command::new(binary)
            .arg("run")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stderr.take().ok_or("no standard error")?);
        Ok(Self { child, started, lines: Some(lines), _folder: folder })
    }

    /// Reads log lines until one holds the words; the time since exec.
    fn wait_for(&mut self, words: &str) -> Res<Duration> {
        let mut said = String::new();
        let lines = self.lines.as_mut().ok_or("no standard error")?;
        loop {
            let from = said.len();
            if lines.read_line(&mut said)? == 0 {
                return Err(format!("the program ended without saying {words:?}: {said}").into());
            }
            if said[from..].contains(words) {
                return Ok(self.started.elapsed());
            }
            if said.len() > 1 << 20 {
                return Err(format!("the program does not say {words:?}").into());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn start(binary: &Path) -> Res<Sample> {
    let name = unique("start");
    let database = Database::create(&name, ACCOUNTS)?;
    let (_topic, _) = Topic::filled(&name, &Plan::new(10, ACCOUNTS))?;
    let mut running = Running::start(binary, &name, &database.url)?;
    let first_poll = running.wait_for(FIRST_POLL)?;
    let assigned = running.wait_for(ASSIGNED)?;
    drop(running);
    database.check_so_far(0)?;
    let mut sample = Sample::default();
    sample.set("first_poll_ms", first_poll.as_secs_f64() * 1e3);
    sample.set("assigned_ms", assigned.as_secs_f64() * 1e3);
    Ok(sample)
}

fn memory(binary: &Path, count: u64, load: Duration) -> Res<Sample> {
    let name = unique("memory");
    let database = Database::create(&name, ACCOUNTS)?;
    let plan = Plan { body_bytes: 1024, ..Plan::new(count, ACCOUNTS) };
    let (topic, _) = Topic::filled(&name, &plan)?;
    let view = GroupView::new(&name, &topic.name)?;
    let mut running = Running::start(binary, &name, &database.url)?;
    running.wait_for(ASSIGNED)?;
    // Its log goes on into the pipe: somebody has to read it.
    let mut rest = running.lines.take().ok_or("no standard error")?;
    let drain = std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
    let started = Instant::now();
    while started.elapsed() < load {
        std::thread::sleep(Duration::from_millis(200));
    }
    let done = view.committed()?;
    let hwm = status_kb(running.child.id(), "VmHWM:")?;
    let seconds = started.elapsed().as_secs_f64();
    drop(running);
    drop(drain.join());
    database.check_so_far(done)?;
    if done >= count {
        return Err("the load ended before its time: publish more messages".into());
    }
    let mut sample = Sample::timed(done, seconds);
    sample.set("vm_hwm_mb", hwm * 1024.0 / 1e6);
    delete_group(&name);
    Ok(sample)
}

fn status_kb(pid: u32, field: &str) -> Res<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find(|line| line.starts_with(field)).ok_or("no such field")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}

/// Processor time of this process so far, all threads.
pub(crate) fn cpu_seconds() -> f64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return 0.0 };
    // Fields 14 and 15, counted behind the name in brackets; in hundredths of a second.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    float(ticks(11) + ticks(12)) / 100.0
}

/// Bytes that this process had written to storage so far.
pub(crate) fn written_bytes() -> f64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/io") else { return 0.0 };
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

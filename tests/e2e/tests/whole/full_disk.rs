//! A disk that is really full: intake pauses, nobody is charged, nothing becomes a dead letter, nothing is
//! settled that is not durable, and all goes on when there is room again.
//!
//! Where a file system may be mounted, a small one is filled to its last byte. Everywhere the kernel also refuses
//! the process to make any file longer: its writes fail just as really, with another code.

use crate::outages::{SUBJECT, publish};
use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::money::credit;
use handstamp_e2e::servers::{Database, Private, Topic};
use handstamp_e2e::world::{Kind, World};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, TopicPartitionList};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(90);
/// With a commit for every two of them there are enough left when the disk is full.
const LINES: i64 = 6_000;
const CANNOT_GO_ON: &str = "the store cannot go on; waiting";

fn ran(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// A small file system of its own, unmounted at the end.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// `None` where nothing may be mounted.
    fn mount(megabytes: u32) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m,mode=0755");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "handstamp-test"]).arg(folder.path());
        ran(&mut mount).then_some(Self { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Takes every byte that is left.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.filler()).unwrap();
        for size in [64 * 1024, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        let more = File::create(self.path().join("more")).and_then(|mut file| file.write_all(&[0; 4096]));
        let code = more.unwrap_err().raw_os_error();
        assert_eq!(code, Some(28), "ENOSPC: the disk is full");
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        ran(Command::new("umount").arg("--lazy").arg(self.path()));
    }
}

/// How room is taken from a process and given back.
enum Means {
    /// The disk is filled.
    Disk(SmallDisk),
    /// The process may make no file longer than so many bytes.
    FileSize(u64),
}

impl Means {
    /// Both, or the one that any machine has.
    fn all(megabytes: u32, file_size: u64) -> Vec<Self> {
        let disk = SmallDisk::mount(megabytes).map(Self::Disk);
        disk.into_iter().chain([Self::FileSize(file_size)]).collect()
    }

    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Disk(disk) => Some(disk.path()),
            Self::FileSize(_) => None,
        }
    }

    fn take(&self, subject: &Subject) {
        match self {
            Self::Disk(disk) => disk.fill(),
            Self::FileSize(bytes) => limit_files(subject, &bytes.to_string()),
        }
    }

    fn give_back(&self, subject: &Subject) {
        match self {
            Self::Disk(disk) => disk.free(),
            Self::FileSize(_) => limit_files(subject, "unlimited"),
        }
    }
}

/// Only the soft limit, which anybody may raise again.
fn limit_files(subject: &Subject, bytes: &str) {
    let mut limit = Command::new("prlimit");
    limit.args(["--pid", &subject.pid().to_string(), &format!("--fsize={bytes}:")]);
    assert!(ran(&mut limit), "prlimit sets the size of files");
}

/// The subject, told to take a file that may not grow for an error and not for its end.
fn start(arguments: &[String]) -> Subject {
    let mut all = vec!["-c".to_owned(), "trap '' XFSZ; exec \"$0\" \"$@\"".to_owned(), SUBJECT.to_owned()];
    all.extend(arguments.iter().cloned());
    Subject::start("/bin/sh", &all)
}

fn credits() -> Vec<String> {
    (0..LINES).map(|n| credit(&format!("evt-{n}"), n % 1000, 1)).collect()
}

async fn wait_for_rows(world: &World, rows: i64) {
    let until = Instant::now() + LIMIT;
    while world.count("ledger").await < rows {
        assert!(Instant::now() < until, "no progress to {rows} rows");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The number of the last settled line, as the position beside the file has it.
fn settled_lines(state: &Path) -> i64 {
    let position = std::fs::read_dir(state).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        path.extension().is_some_and(|extension| extension == "position").then_some(path)
    });
    let Some(position) = position else { return 0 };
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(position).unwrap()).unwrap();
    saved["line"].as_i64().unwrap()
}

#[track_caller]
fn assert_nobody_was_charged(log: &[String]) {
    assert_eq!(count(log, "attempts_failed: 0,"), 1, "a full disk charges nobody: {}", log.join("\n"));
    for words in ["dead_lettered: 0,", "parked: 0,"] {
        assert_eq!(count(log, words), 1, "{words}: {}", log.join("\n"));
    }
}

#[tokio::test]
async fn a_full_disk_under_sqlite_pauses_and_costs_nothing() {
    // The WAL is longer than this when the limit comes; what lies behind it cannot be written.
    for means in Means::all(16, 64 * 1024) {
        let world = World::create_in(Kind::Sqlite, SUBJECT, means.folder()).await;
        world.write_lines("in.jsonl", &credits());
        let mut subject = start(&world.arguments("batch=2 attempts=1"));
        wait_for_rows(&world, 100).await;
        means.take(&subject);
        subject.wait_for(CANNOT_GO_ON, LIMIT);
        let (settled, applied) = (settled_lines(&world.path("")), world.count("ledger").await);
        assert!((1..LINES).contains(&applied), "it was stopped in the middle: {applied}");
        assert!(settled <= applied, "{settled} lines settled, {applied} applied");
        assert_eq!(world.count("{dead_letters}").await, 0);
        assert!(subject.is_running(), "{}", subject.log().join("\n"));
        means.give_back(&subject);
        let (status, log) = subject.wait(LIMIT);
        assert!(status.success(), "{status}: {}", log.join("\n"));
        assert_eq!(count(&log, CANNOT_GO_ON), count(&log, "the store is back"), "{}", log.join("\n"));
        assert_nobody_was_charged(&log);
        assert_eq!(settled_lines(&world.path("")), LINES, "all of it is settled in the end");
        world.verdict().await.assert_once(LINES, 1);
        world.end().await;
    }
}

#[tokio::test]
async fn a_full_disk_under_the_position_of_a_file_costs_only_duplicates() {
    for means in Means::all(1, 16) {
        // The effects are elsewhere: only the position meets the full disk.
        let world = World::create(Kind::Postgres, SUBJECT).await;
        world.write_lines("in.jsonl", &credits());
        let state = means.folder().map_or_else(|| world.path("state"), Path::to_owned);
        let more = format!("batch=50 attempts=1 pause-us=100 state={}", state.display());
        let mut subject = start(&world.arguments(&more));
        wait_for_rows(&world, 50).await;
        let until = Instant::now() + LIMIT;
        while count(&subject.log(), "the position cannot be written") == 0 {
            assert!(Instant::now() < until && subject.is_running(), "{}", subject.log().join("\n"));
            // Again: a position that took the place of an old one gave room back.
            means.take(&subject);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (status, log) = subject.wait(LIMIT);
        assert!(status.success(), "{status}: {}", log.join("\n"));
        assert_eq!(count(&log, "the position cannot be written"), 1, "said once: {}", log.join("\n"));
        assert_nobody_was_charged(&log);
        world.verdict().await.assert_once(LINES, 1);
        assert!(settled_lines(&state) < LINES, "the last position could not be written");
        // There is room again: what the position does not know comes again, and the next run has it.
        if let Means::Disk(disk) = &means {
            disk.free();
        }
        let log = world.run_well(&more);
        assert!(count(&log, "skipped duplicate") > 0, "{}", log.join("\n"));
        assert_eq!(settled_lines(&state), LINES);
        let log = world.run_well(&more);
        assert_eq!(count(&log, "received: 0,"), 1, "{}", log.join("\n"));
        world.verdict().await.assert_once(LINES, 1);
        world.end().await;
    }
}

/// The sum of the group's offsets: as many messages as it has settled.
fn committed(topic: &Topic) -> i64 {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &topic.brokers).set("group.id", &topic.group);
    let client: BaseConsumer = config.create().unwrap();
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range(&topic.name, 0, 2);
    let offsets = client.committed_offsets(partitions, LIMIT).unwrap();
    offsets.elements().iter().map(|one| one.offset().to_raw().unwrap_or(0).max(0)).sum()
}

/// The user's ledger has no room: on a full disk, or by a trigger that raises what the server would.
enum Ledger {
    Disk(SmallDisk),
    Trigger,
}

impl Ledger {
    const TRIGGER: &str = "
        CREATE TABLE no_room (full_at int8 NOT NULL);
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF EXISTS (SELECT FROM no_room) THEN
                RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION refuse();";

    async fn make(disk: Option<SmallDisk>, database: &Database) -> Self {
        let Some(disk) = disk else {
            database.client.batch_execute(Self::TRIGGER).await.unwrap();
            return Self::Trigger;
        };
        // The server runs as a user of its own, who must reach and own the folder.
        let owner: String = database.client.query_one("SHOW data_directory", &[]).await.unwrap().get(0);
        let space = disk.path().join("space");
        std::fs::create_dir(&space).unwrap();
        std::fs::set_permissions(disk.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut own = Command::new("chown");
        own.arg(format!("--reference={owner}")).arg(&space);
        assert!(ran(&mut own), "the server's user owns the tablespace");
        let client = &database.client;
        let location = space.display();
        client.batch_execute(&format!("CREATE TABLESPACE small LOCATION '{location}'")).await.unwrap();
        client.batch_execute("ALTER TABLE ledger SET TABLESPACE small").await.unwrap();
        Self::Disk(disk)
    }

    async fn take_room(&self, database: &Database) {
        match self {
            Self::Disk(disk) => disk.fill(),
            Self::Trigger => database.client.batch_execute("INSERT INTO no_room VALUES (1)").await.unwrap(),
        }
    }

    async fn give_back(&self, database: &Database) {
        match self {
            Self::Disk(disk) => disk.free(),
            Self::Trigger => database.client.batch_execute("DELETE FROM no_room").await.unwrap(),
        }
    }
}

#[tokio::test]
async fn a_full_disk_under_postgres_pauses_and_costs_nothing() {
    let server = Private::start_new("postgres");
    let disk = SmallDisk::mount(2);
    let database = Database::create_on(server.address()).await;
    let ledger = Ledger::make(disk, &database).await;
    let topic = Topic::create(3).await;
    publish(&topic);
    let more = "batch=20 pause-us=500 commit-every-ms=0";
    let mut subject = Subject::start(SUBJECT, &topic.arguments(&database.url, more));
    database.wait_for_rows(200).await;
    ledger.take_room(&database).await;
    subject.wait_for(CANNOT_GO_ON, LIMIT);
    let line = subject.log().into_iter().find(|line| line.contains(CANNOT_GO_ON)).unwrap();
    assert!(line.contains("53100") || line.contains("No space left on device"), "{line}");
    let applied = database.ledger_rows().await;
    assert!(applied < crate::outages::CREDITS, "it was stopped in the middle: {applied}");
    let settled = committed(&topic);
    assert!(settled <= applied, "{settled} settled, {applied} applied");
    assert_eq!(database.dead_letters().await, 0);
    ledger.give_back(&database).await;
    database.wait_for_rows(crate::outages::CREDITS).await;
    let log = crate::outages::end_well(subject, &database).await;
    assert_nobody_was_charged(&log);
    topic.delete().await;
    // Before the disk goes: a server does not end well without its files.
    database.client.batch_execute("DROP TABLE ledger").await.unwrap();
    database.drop_now().await;
}

//! `lab own` with consumers in Python: one that remembers nothing and one with an inbox, on a real broker
//! and a real Postgres. The first run makes a virtual environment with what they need.

// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::unwrap_used, clippy::panic)]
#![cfg(all(feature = "lab", feature = "kafka", feature = "postgres"))]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test"))
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("examples/lab-python")
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\nstdout:\n{}\nstderr:\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

fn succeeds(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", shown(&output));
}

/// The Python that has the packages of the example, made anew when their list changes.
fn python() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-python");
    let wanted = std::fs::read_to_string(example().join("requirements.txt")).unwrap();
    std::fs::create_dir_all(&home).unwrap();
    // Tests of several processes may come here at the same time.
    let lock = std::fs::File::create(home.join("lock")).unwrap();
    lock.lock().unwrap();
    let (venv, made) = (home.join("venv"), home.join("made"));
    let python = venv.join("bin/python");
    if std::fs::read_to_string(&made).ok().as_ref() != Some(&wanted) {
        succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
        let install =
            ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "60", "-r"];
        succeeds(Command::new(&python).args(install).arg(example().join("requirements.txt")));
        std::fs::write(&made, wanted).unwrap();
    }
    python
}

struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    /// A folder with the example's tables and a `lab.toml` of its own.
    fn new(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(example().join("schema.sql"), folder.path().join("schema.sql")).unwrap();
        std::fs::write(folder.path().join("lab.toml"), toml).unwrap();
        Self { folder }
    }

    fn run(&self, args: &[&str], program: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
        command.args(["lab", "own"]).args(args).arg("--").args(program);
        command.current_dir(self.folder.path()).stdin(Stdio::null()).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env_remove("HANDSTAMP_LAB_DATABASE").env("HANDSTAMP_LOG", "warn");
        command.output().unwrap()
    }

    /// Runs a consumer of the example on Postgres and demands an exit code.
    fn consumer(&self, name: &str, out: &str, code: i32) -> Value {
        let script = example().join(name);
        let database = variable("HANDSTAMP_TEST_POSTGRES");
        let brokers = variable("HANDSTAMP_TEST_KAFKA");
        let args = ["--brokers", &brokers, "--database", &database, "--out", out, "--json"];
        let output = self.run(&args, &[python().to_str().unwrap(), script.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{name}: {}", shown(&output));
        self.nothing_is_left(out);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// No process of the run is there any more, and its database is gone.
    fn nothing_is_left(&self, out: &str) {
        let history = std::fs::read_to_string(self.folder.path().join(out).join("history.jsonl")).unwrap();
        let events: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let pids: Vec<u64> = events.iter().filter_map(|event| event["pid"].as_u64()).collect();
        assert!(!pids.is_empty(), "{history}");
        for pid in pids {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&command).contains("lab-python"), "{pid} still runs");
        }
        let url = std::fs::read_to_string(self.folder.path().join("database.txt")).unwrap();
        let name = url.trim().rsplit('/').next().unwrap();
        assert!(name.starts_with("hs_own_"), "{url}");
        let psql = Path::new(&variable("HANDSTAMP_TEST_POSTGRES_BIN")).join("psql");
        let sql = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
        let output = Command::new(psql)
            .args(["-qAtX", &variable("HANDSTAMP_TEST_POSTGRES"), "-c", &sql])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{}", shown(&output));
    }
}

const TOML: &str = r#"
patience = "60s"
quiet = "1s"
[messages]
count = 300
duplicates = 0.1
reordered = 0.1
bad = 0.02
[program]
copies = 2
env = { SESSION_TIMEOUT_MS = "2000", GAP_MS = "2" }
[faults]
kills = 2
stops = 1
cuts = 1
after = ["50ms", "200ms"]
stop_for = "3s"
[database]
setup = "schema.sql"
setup_command = ["sh", "-c", "echo $DATABASE_URL > database.txt"]
[effects]
query = "SELECT id FROM ledger;"
"#;

/// What was done to whom, in order.
fn schedule(outcome: &Value) -> Vec<(Value, Value)> {
    let done = outcome["schedule"].as_array().unwrap();
    done.iter().map(|done| (done["copy"].clone(), done["fault"].clone())).collect()
}

#[test]
fn without_an_inbox_effects_double_and_with_it_none_under_the_same_schedule() {
    let lab = Lab::new(TOML);
    let b = lab.consumer("b.py", "b", 5);
    assert_eq!(b["verdict"], "violated", "{b}");
    assert!(b["doubled"].as_u64().unwrap() > 0 && b["missing"] == 0 && b["bad_applied"] == 0, "{b}");
    let named = b["doubled_ids"].as_array().unwrap();
    assert!(!named.is_empty() && named.len() <= 10, "{b}");

    let c = lab.consumer("c.py", "c", 0);
    assert_eq!(c["verdict"], "kept", "{c}");
    assert!(c["doubled"] == 0 && c["missing"] == 0 && c["bad"].as_u64().unwrap() > 0, "{c}");
    let (b, c) = (schedule(&b), schedule(&c));
    assert_eq!(c.len(), 4, "{c:?}");
    assert_eq!(b[..], c[..b.len()], "one seed, one schedule");
}

#[test]
fn a_run_in_which_no_kill_comes_in_time_proves_nothing() {
    let toml = TOML.replace("count = 300", "count = 15").replace("stops = 1", "").replace("cuts = 1", "");
    let outcome = Lab::new(&toml).consumer("c.py", "c", 6);
    assert_eq!(outcome["verdict"], "inconclusive", "{outcome}");
    assert!(outcome["why"][0].as_str().unwrap().contains("kills counts"), "{outcome}");
}

#[test]
fn a_program_that_does_nothing_proves_nothing_and_its_last_words_are_shown() {
    let toml = "patience = \"2s\"\n[messages]\ncount = 50\n[effects]\ncommand = [\"true\"]\n";
    let output = Lab::new(toml).run(&[], &["sh", "-c", "echo no such module >&2; exit 3"]);
    assert_eq!(output.status.code(), Some(6), "{}", shown(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("proves nothing") && said.contains("no such module"), "{said}");
}

/// Every line of the expected text is a mistake in the file above it.
#[test]
fn every_mistake_of_the_file_is_shown_with_its_line_and_the_nearest_known_key() {
    let lab = Lab::new(
        r#"sead = 3
[messages]
cuont = 5
count = 0
body = '{"id":"{idd}"}'
id = "{id}"
bad = 2
[program]
copies = "two"
env = { X = "{topik}" }
[faults]
kils = 3
after = ["5s", "1s"]
[database]
setup = "none.sql"
[efects]
query = "SELECT 1"
"#,
    );
    let output = lab.run(&[], &["true"]);
    let expected = r#"error: lab.toml:1: effects: is missing; write for example `[effects]` and `query = "SELECT id FROM ledger"`
error: lab.toml:1: sead: unknown key; did you mean `seed`?
error: lab.toml:3: messages.cuont: unknown key; did you mean `count`?
error: lab.toml:4: messages.count: expected a whole number from 1 to 1000000; found 0
error: lab.toml:5: messages.body: nothing is put in for {idd}; did you mean {id}?
error: lab.toml:6: messages.id: nothing is put in for {id}; known here: {n}, {uuid}, {account}, {amount}
error: lab.toml:7: messages.bad: expected a part from 0 to 1, such as 0.05
error: lab.toml:9: program.copies: expected a whole number; found a string
error: lab.toml:10: program.env.X: nothing is put in for {topik}; did you mean {topic}?
error: lab.toml:12: faults.kils: unknown key; did you mean `kills`?
error: lab.toml:13: faults.after: expected a time such as "2s", or the shortest and the longest: ["1s", "5s"], at most "1h"
error: lab.toml:15: database.setup: cannot read none.sql: No such file or directory (os error 2)
error: lab.toml:16: efects: unknown key; did you mean `effects`?
  hint: every key is described in docs/guides/test-your-consumer.md
"#;
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    assert_eq!(output.status.code(), Some(2));
    assert!(!lab.folder.path().join("lab-own").exists());
}

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
        self.consumer_on(&variable("HANDSTAMP_TEST_KAFKA"), &[], name, out, code)
    }

    fn consumer_on(&self, brokers: &str, more: &[&str], name: &str, out: &str, code: i32) -> Value {
        let script = example().join(name);
        let database = variable("HANDSTAMP_TEST_POSTGRES");
        let args = ["--brokers", brokers, "--database", &database, "--out", out, "--json"];
        let args = [&args, more].concat();
        let output = self.run(&args, &[python().to_str().unwrap(), script.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{name}: {}", shown(&output));
        self.nothing_is_left(out);
        self.no_group_is_left(brokers);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What `lab verify` says of a folder.
    fn verify(&self, out: &str, code: i32) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
        command.args(["lab", "verify", out, "--json"]).current_dir(self.folder.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", shown(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).unwrap()
    }

    /// Neither topic nor group of the run is there any more.
    fn no_group_is_left(&self, brokers: &str) {
        let url = self.read("database.txt");
        let name = url.trim().rsplit('/').next().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
        command.args(["lab", "clean", "--older-than", "0s", "--brokers", brokers]);
        command.env_remove("HANDSTAMP_LAB_DATABASE").stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        assert!(!String::from_utf8_lossy(&output.stdout).contains(name), "{}", shown(&output));
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
    // Each of them with the times at which its effects were seen.
    let traces = b["traces"].as_array().unwrap();
    assert!(traces.len() == named.len() && traces.iter().all(|one| one["seen_ms"][1].is_u64()), "{b}");
    assert!(b["through"][0]["cut"].as_u64().unwrap() > 0 && b["through"][0]["wire"] == "database", "{b}");
    let report = lab.read("b/report.md");
    for part in ["**VIOLATED:**", "## The first doubled", "## The schedule", "](timeline.svg)"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(report.contains(named[0][0].as_str().unwrap()), "{report}");
    assert_eq!(lab.verify("b", 5), b);

    let c = lab.consumer("c.py", "c", 0);
    assert_eq!(c["verdict"], "kept", "{c}");
    assert!(c["doubled"] == 0 && c["missing"] == 0 && c["bad"].as_u64().unwrap() > 0, "{c}");
    assert!(lab.read("c/report.md").contains("**Kept:**"));
    assert_eq!(lab.verify("c", 0), c);
    every_planted_fault_is_found(&lab, &c);
    let (b, c) = (schedule(&b), schedule(&c));
    assert_eq!(c.len(), 4, "{c:?}");
    assert_eq!(b[..], c[..b.len()], "one seed, one schedule");
}

/// The folder is spoilt in each way that matters, and `lab verify` sees it.
fn every_planted_fault_is_found(lab: &Lab, kept: &Value) {
    let path = lab.folder.path().join("c/history.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    let sent = lab.read("c/sent.jsonl");
    let first: Value = serde_json::from_str(sent.lines().next().unwrap()).unwrap();
    let id = first["id"].as_str().unwrap();
    let spoilt = |spoil: &dyn Fn(&mut Value)| {
        let mut lines: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter_mut().for_each(spoil);
        lines.retain(|line| !line.is_null());
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).unwrap();
    };
    spoilt(&|line| {
        if line["event"] == "end" {
            line["effects"][id] = 2.into();
        }
    });
    assert_eq!(lab.verify("c", 5)["doubled"], 1);
    spoilt(&|line| {
        if line["event"] == "end" {
            line["effects"].as_object_mut().unwrap().remove(id);
        }
    });
    assert_eq!(lab.verify("c", 5)["missing_ids"][0], id);
    assert!(lab.read("c/report.md").contains(&format!("| `{id}` |")));
    // Without what went through the proxy, and without an end, nothing is proved.
    for gone in ["through", "end"] {
        spoilt(&|line| {
            if line["event"] == gone {
                *line = Value::Null;
            }
        });
        assert_eq!(lab.verify("c", 6)["verdict"], "inconclusive", "{gone}");
    }
    std::fs::write(&path, whole).unwrap();
    assert_eq!(lab.verify("c", 0), *kept);
}

/// A broker of this test's own: only one proxy at a time can stand where its second listener sends clients.
struct Broker {
    name: String,
}

impl Broker {
    fn start() -> Self {
        let broker = Self { name: format!("kafka@own-{}", std::process::id()) };
        broker.services("up");
        broker
    }

    fn services(&self, verb: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let output = Command::new(root.join("scripts/services")).args([verb, &self.name]).output().unwrap();
        assert!(output.status.success(), "{verb}: {}", shown(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn address(&self, variable: &str) -> String {
        let lines = self.services("env");
        let prefix = format!("export {variable}=");
        let found = lines.lines().find_map(|line| line.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("no {variable}: {lines}")).trim_matches('\'').to_owned()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
            let _ = Command::new(root.join("scripts/services")).args(["down", &self.name]).output();
        } else {
            self.services("down");
        }
    }
}

#[test]
fn connections_to_the_broker_are_cut_through_the_proxy_and_around_it_nothing_is() {
    let broker = Broker::start();
    let (direct, proxied) =
        (broker.address("HANDSTAMP_TEST_KAFKA"), broker.address("HANDSTAMP_TEST_KAFKA_PROXIED"));
    let lab = Lab::new(TOML);
    let more = ["--proxied", &proxied, "--broker-cuts", "2", "--kills", "1", "--stops", "0"];
    let c = lab.consumer_on(&direct, &more, "c.py", "c", 0);
    assert_eq!(c["verdict"], "kept", "{c}");
    let through: Vec<(&str, u64, u64)> = c["through"]
        .as_array()
        .unwrap()
        .iter()
        .map(|way| {
            (way["wire"].as_str().unwrap(), way["down"].as_u64().unwrap(), way["cut"].as_u64().unwrap())
        })
        .collect();
    let wires: Vec<&str> = through.iter().map(|(wire, ..)| *wire).collect();
    assert_eq!(wires, ["database", "broker"], "{c}");
    assert!(through.iter().all(|(_, down, cut)| *down > 0 && *cut > 0), "{c}");
    let cut = c["schedule"].as_array().unwrap().iter().filter(|done| done["fault"] == "cut_broker").count();
    assert_eq!(cut, 2, "{c}");
    assert!(lab.read("c/report.md").contains("connections to the broker cut"));

    // A program that does not take BROKERS goes around the proxy: that proves nothing, and is said.
    let toml = TOML.replace("SESSION_TIMEOUT_MS =", &format!("BROKERS = \"{direct}\", SESSION_TIMEOUT_MS ="));
    let around = Lab::new(&toml.replace("patience = \"60s\"", "patience = \"8s\""));
    let c = around.consumer_on(
        &direct,
        &["--proxied", &proxied, "--broker-cuts", "1", "--stops", "0"],
        "c.py",
        "c",
        6,
    );
    assert!(c["why"].to_string().contains("before the broker"), "{c}");

    // A listener that sends its clients elsewhere, a pair that is none, and no pair at all.
    let listener = format!("{direct}={}", proxied.split_once('=').unwrap().1);
    for (more, reason) in [
        (&["--proxied", &listener, "--broker-cuts", "1"][..], "around the proxy"),
        (&["--proxied", "127.0.0.1:1", "--broker-cuts", "1"], "LISTENER=TOLD"),
        (&["--broker-cuts", "1"], "--proxied"),
    ] {
        let database = variable("HANDSTAMP_TEST_POSTGRES");
        let args = ["--brokers", &direct, "--database", &database, "--out", "refused"];
        let output = lab.run(&[&args, more].concat(), &["true"]);
        assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{}", shown(&output));
        let _ = std::fs::remove_dir_all(lab.folder.path().join("refused"));
    }
}

#[test]
fn options_of_the_brokers_clients_reach_them_and_those_that_make_no_client_are_refused() {
    let (brokers, database) = (variable("HANDSTAMP_TEST_KAFKA"), variable("HANDSTAMP_TEST_POSTGRES"));
    let run = |options: &str| {
        let toml = format!("[broker]\noptions = {{ {options} }}\n[effects]\nquery = \"SELECT 1\"\n");
        Lab::new(&toml).run(&["--brokers", &brokers, "--database", &database], &["true"])
    };
    let log_in = "\"security.protocol\" = \"sasl_plaintext\", \"sasl.mechanisms\" = \"PLAIN\", \
                  \"sasl.username\" = \"me\", \"sasl.password\" = \"a-secret-of-mine\"";
    for (options, code, reason) in [
        ("\"no.such.option\" = \"x\"", 2, "no.such.option"),
        ("\"bootstrap.servers\" = \"127.0.0.1:1\"", 2, "the lab says this itself"),
        // This listener knows no log-in: the clients tried one.
        (log_in, 3, "does not answer"),
    ] {
        let output = run(options);
        assert_eq!(output.status.code(), Some(code), "{}", shown(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{}", shown(&output));
        assert!(!shown(&output).contains("a-secret-of-mine"), "{}", shown(&output));
    }
}

#[test]
fn a_run_in_which_no_kill_comes_in_time_proves_nothing() {
    let toml = TOML.replace("count = 300", "count = 15").replace("stops = 1", "").replace("cuts = 1", "");
    let outcome = Lab::new(&toml).consumer("c.py", "c", 6);
    assert_eq!(outcome["verdict"], "inconclusive", "{outcome}");
    assert!(outcome["why"][0].as_str().unwrap().contains("of 2 kills c"), "{outcome}");
}

#[test]
fn a_program_that_does_nothing_proves_nothing_and_its_last_words_are_shown() {
    let toml = "patience = \"2s\"\n[messages]\ncount = 50\n[effects]\ncommand = [\"true\"]\n";
    let output = Lab::new(toml).run(&[], &["sh", "-c", "echo no such module >&2; sleep 600"]);
    assert_eq!(output.status.code(), Some(6), "{}", shown(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("had no effect within 2s") && said.contains("no such module"), "{said}");
}

/// The patience is longer than any test may run.
#[test]
fn a_program_that_only_fails_is_told_at_its_first_end_and_not_waited_for() {
    let toml = "patience = \"10h\"\n[messages]\ncount = 50\n[effects]\ncommand = [\"true\"]\n";
    let output = Lab::new(toml).run(&[], &["sh", "-c", "echo no such module >&2; exit 3"]);
    assert_eq!(output.status.code(), Some(6), "{}", shown(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    for part in ["ends with an error whenever it is started (3 times)", "no such module"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.matches("no such module").count(), 1, "{told}");
}

#[test]
fn without_a_file_the_shortest_one_is_shown() {
    let lab = Lab::new("");
    let output = lab.run(&["--config", "none.toml"], &["true"]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("there is no none.toml") && said.contains("[effects]"), "{said}");
    // What is shown is a file that is taken.
    let shortest: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert_eq!(shortest.len(), 3, "{said}");
    let lab = Lab::new(&shortest.join("\n"));
    let output = lab.run(&["--broker-cuts", "1"], &["true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--brokers"), "{}", shown(&output));
}

/// On a broker and a database inside the lab: more kills than messages are there for.
#[test]
fn a_schedule_that_did_not_all_come_proves_nothing() {
    let toml = "patience = \"4s\"\nquiet = \"1s\"\n[messages]\ncount = 50\n[faults]\nkills = 3\nafter = \"100ms\"\n\
                [effects]\ncommand = [\"sh\", \"-c\", \"test ! -f began || cut -d'\\\"' -f4 run/sent.jsonl | sort -u\"]\n";
    let lab = Lab::new(toml);
    let output = lab.run(&["--out", "run"], &["sh", "-c", "echo > began; exec sleep 600"]);
    assert_eq!(output.status.code(), Some(6), "{}", shown(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("0 of 3 kills came; raise `messages.count` or lower `faults.after`"), "{said}");
    assert!(lab.read("run/report.md").contains("| kills that count | 0 of 3 |"));
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

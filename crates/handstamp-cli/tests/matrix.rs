//! The matrix of crash points: the program dies at each of them on real servers and on none, and nothing is
//! doubled or lost. Built with the feature `crash-points` alone, as `scripts/test` does.

// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "crash-points", feature = "kafka", feature = "postgres"))]

use handstamp_core::CrashPoint;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// No matrix of a test takes longer.
const LIMIT: Duration = Duration::from_secs(300);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test"))
}

/// Runs `handstamp lab matrix` in a folder of its own; a run that hangs is killed.
fn matrix(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    lab_in(folder.path(), &[&["matrix"], args].concat())
}

/// Runs a command of the lab in a folder.
fn lab_in(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
    command.args(["--log", "warn", "lab"]).args(args).env_remove("HANDSTAMP_LAB_DATABASE");
    command.current_dir(folder);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Both pipes hold far less than the system's 64 KiB, so that waiting first cannot block.
    let until = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("{args:?} took too long: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// The cells of a matrix that ended with this code.
fn cells(code: i32, args: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    object_in(folder.path(), code, &[&["matrix"], args].concat())["cells"].as_array().unwrap().clone()
}

/// What a command of the lab prints in a folder, when it ends with this code.
#[track_caller]
fn object_in(folder: &Path, code: i32, args: &[&str]) -> Value {
    let done = lab_in(folder, &[args, &["--json"]].concat());
    let (out, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(code), "{args:?}\n{out}\n{said}");
    serde_json::from_str(&out).unwrap()
}

fn text<'a>(cell: &'a Value, field: &str) -> &'a str {
    cell[field].as_str().unwrap_or_default()
}

fn of<'a>(cells: &'a [Value], point: CrashPoint, source: &str, store: &str) -> &'a Value {
    let is = |cell: &&Value| {
        text(cell, "point") == point.name()
            && text(cell, "source") == source
            && text(cell, "store") == store
            && cell["broken"].is_null()
    };
    let found: Vec<&Value> = cells.iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{} on {source} and {store}", point.name());
    found[0]
}

fn number(cell: &Value, field: &str) -> u64 {
    cell[field].as_u64().unwrap_or_else(|| panic!("{field}: {cell}"))
}

fn effects(cells: &[Value], point: CrashPoint, store: &str) -> u64 {
    number(of(cells, point, "file", store), "effects_at_crash")
}

/// Parked messages and dead letters when the process was dead.
fn kept(cells: &[Value], point: CrashPoint, store: &str) -> (u64, u64) {
    let cell = of(cells, point, "file", store);
    (number(cell, "parked_at_crash"), number(cell, "dead_letters_at_crash"))
}

/// Late messages: what an operator's command is to work on. Two more stay dead letters.
const OPERATED: u64 = 24;

fn is_of_operator(point: CrashPoint) -> bool {
    use CrashPoint::{AfterDiscard, AfterRedrive, MidDiscard, MidRedrive};
    matches!(point, MidRedrive | AfterRedrive | MidDiscard | AfterDiscard)
}

#[test]
fn at_every_point_on_every_source_and_store_nothing_doubles_or_gets_lost() {
    let (brokers, database) = (variable("HANDSTAMP_TEST_KAFKA"), variable("HANDSTAMP_TEST_POSTGRES"));
    let cells = cells(0, &["--brokers", &brokers, "--database", &database, "--session-timeout", "2s"]);
    for point in CrashPoint::all() {
        let of_file = !matches!(point, CrashPoint::RevokeBeforeDrain | CrashPoint::RevokeAfterDrain);
        for (source, store) in
            [("file", "sqlite"), ("file", "postgres"), ("kafka", "sqlite"), ("kafka", "postgres")]
        {
            if source == "file" && !of_file {
                continue;
            }
            let cell = of(&cells, point, source, store);
            assert_eq!(cell["hit"], true, "{cell}");
            assert_eq!(
                (&cell["verdict"]["doubled"], &cell["verdict"]["lost"]),
                (&0.into(), &0.into()),
                "{cell}"
            );
            assert_eq!(cell["bad"], cell["dead_letters"], "{cell}");
            let operated = &cell["operated"];
            if is_of_operator(point) {
                let counts = ["meant", "lines", "messages"].map(|field| number(operated, field));
                assert_eq!(counts, [OPERATED; 3], "{cell}");
            } else {
                assert!(operated.is_null(), "{cell}");
            }
        }
    }
    // The controls: broken on purpose, the same cells do the harm that they must.
    let controls: Vec<&Value> = cells.iter().filter(|cell| !cell["broken"].is_null()).collect();
    assert_eq!(controls.len(), 12);
    for cell in controls {
        let harm = if text(cell, "broken") == "no-inbox" { "doubled" } else { "lost" };
        assert!(cell["verdict"][harm].as_u64().unwrap() > 0, "{cell}");
    }
    // A file's batches come in order, so each point shows by what is durable that it lies where it says.
    for store in ["sqlite", "postgres"] {
        let before = effects(&cells, CrashPoint::BeforeCommit, store);
        let after = effects(&cells, CrashPoint::AfterCommit, store);
        assert!(0 < before && before < after, "{store}: {before}, {after}");
        assert_eq!(effects(&cells, CrashPoint::AfterClaim, store), before);
        assert_eq!(effects(&cells, CrashPoint::BetweenEffects, store), before);
        assert_eq!(effects(&cells, CrashPoint::MidClaim, store), before);
        assert_eq!(effects(&cells, CrashPoint::MidMigrate, store), 0);
        // The late messages are applied by retries long before the end.
        assert_eq!(effects(&cells, CrashPoint::OnShutdown, store), 240 + 4);
        failures_lie_where_they_say(&cells, store);
    }
}

/// The same of what is parked, retried, sent back and given up.
fn failures_lie_where_they_say(cells: &[Value], store: &str) {
    let parked = |point| kept(cells, point, store).0;
    assert_eq!(
        (parked(CrashPoint::MidPark), parked(CrashPoint::AfterPark)),
        (0, 1),
        "{store}: the first one"
    );
    assert!(parked(CrashPoint::RetryTaken) > 0 && parked(CrashPoint::BeforeRetryCommit) > 0, "{store}");
    let all = OPERATED + 2;
    assert_eq!(kept(cells, CrashPoint::MidRedrive, store), (0, all), "{store}");
    let (parked, dead) = kept(cells, CrashPoint::AfterRedrive, store);
    assert!(parked > 1 && dead > 1 && parked + dead == all, "{store}: {parked}, {dead}");
    assert_eq!(kept(cells, CrashPoint::MidDiscard, store), (0, all), "{store}");
    let (parked, dead) = kept(cells, CrashPoint::AfterDiscard, store);
    assert!(parked == 0 && 1 < dead && dead < all, "{store}: {parked}, {dead}");
}

#[test]
fn a_point_that_is_never_reached_proves_nothing_and_says_so() {
    let args = ["--source", "file", "--store", "sqlite", "--at", "before-commit:100000"];
    let cells = cells(6, &args);
    assert_eq!((cells.len(), &cells[0]["hit"], text(&cells[0], "shows")), (1, &false.into(), "nothing"));
    assert_eq!(cells[0]["verdict"]["lost"], 0, "it ran to its end");
}

#[test]
fn the_program_may_die_many_times_in_a_row() {
    let args = ["--source", "file", "--store", "sqlite", "--at", "after-commit:2", "--kills", "8"];
    let cells = cells(0, &args);
    assert_eq!((cells.len(), &cells[0]["hit"]), (1, &true.into()));
}

#[test]
fn a_folder_stays_that_proves_the_same_again_and_in_which_every_planted_fault_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let at = ["--at", "after-commit", "--at", "before-commit", "--at", "on-assign"];
    let args = [&["matrix", "--source", "file", "--store", "sqlite", "--out", "run"][..], &at].concat();
    let matrix = object_in(folder.path(), 0, &args);
    assert_eq!(matrix["shows"], "as_it_must");
    let verify = |code| object_in(folder.path(), code, &["verify", "run"]);
    assert_eq!(verify(0), matrix);
    let refused = lab_in(folder.path(), &args);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    let read = |file: &str| std::fs::read_to_string(folder.path().join("run").join(file)).unwrap();
    assert!(read("report.md").contains("**Kept:**") && read("report.md").contains("](matrix.svg)"));
    let report: Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!((&report["seed"], report["outcome"]["outcomes"].as_array().unwrap().len()), (&1.into(), 3));

    let name = "000-after-commit-file-sqlite.jsonl";
    let whole = read(name);
    let spoilt = |spoil: &dyn Fn(&mut Value)| {
        let mut lines: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter_mut().for_each(spoil);
        lines.retain(|line| !line.is_null());
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(folder.path().join("run").join(name), text).unwrap();
    };
    spoilt(&|line| {
        if let Some(effects) = line.get_mut("effects").and_then(Value::as_object_mut) {
            *effects.values_mut().next().unwrap() = 2.into();
        }
    });
    assert_eq!(verify(5)["cells"][0]["verdict"]["doubled"], 1);
    assert!(read("matrix.svg").contains("VIOLATION"));
    spoilt(&|line| {
        if let Some(effects) = line.get_mut("effects").and_then(Value::as_object_mut) {
            let first = effects.keys().next().unwrap().clone();
            effects.remove(&first);
        }
    });
    assert_eq!(verify(5)["cells"][0]["verdict"]["lost"], 1);
    // The point was missed; the cell did not come to its end.
    for (gone, cells, missing) in [("armed", 3, 0), ("end", 2, 1)] {
        spoilt(&|line| {
            if line["event"] == gone {
                *line = Value::Null;
            }
        });
        let proved = verify(6);
        let count = |list: &Value| list.as_array().unwrap().len();
        assert_eq!((count(&proved["cells"]), count(&proved["missing"])), (cells, missing), "{gone}");
    }
    assert!(read("report.md").contains("**Inconclusive:**"));
}

#[test]
fn what_is_no_point_no_source_or_no_store_is_refused() {
    for (args, words) in [
        (&["--at", "nowhere"][..], "\"nowhere\" is no crash point"),
        (&["--source", "rabbit"], "no such source or store"),
        (&["--store", "postgres"], "no --database was given"),
        (&["--source", "file", "--at", "revoke-before-drain"], "no consumer on this source"),
    ] {
        let done = matrix(args);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

/// What `psql` answers.
fn psql(sql: &str) -> String {
    let program = Path::new(&variable("HANDSTAMP_TEST_POSTGRES_BIN")).join("psql");
    let url = variable("HANDSTAMP_TEST_POSTGRES");
    let done = Command::new(program).args(["-qAtX", &url, "-c", sql]).output().unwrap();
    assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// The names in a folder that is there.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Processes that were started in a folder.
fn processes_in(folder: &Path) -> Vec<String> {
    let lives_there = |pid: &String| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    };
    names(Path::new("/proc")).into_iter().filter(lives_there).collect()
}

#[test]
fn a_matrix_that_is_stopped_leaves_no_process_no_file_no_schema_and_no_topic() {
    let folder = tempfile::tempdir().unwrap();
    let (brokers, database) = (variable("HANDSTAMP_TEST_KAFKA"), variable("HANDSTAMP_TEST_POSTGRES"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
    command.args(["--log", "warn", "lab", "matrix", "--source", "kafka", "--session-timeout", "2s"]);
    command.args(["--brokers", &brokers, "--database", &database]).env("TMPDIR", folder.path());
    let kept = tempfile::tempdir().unwrap();
    command.current_dir(kept.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + LIMIT;
    let wait_for = |what: &str, condition: &mut dyn FnMut() -> bool| {
        while !condition() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("consumers at work", &mut || processes_in(folder.path()).len() > 3);
    let name = names(folder.path()).pop().unwrap();
    let schemas = format!("SELECT count(*) FROM pg_namespace WHERE nspname LIKE '{name}%'");
    wait_for("schemas", &mut || psql(&schemas) != "0");
    let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(told.unwrap().success());
    wait_for("its end", &mut || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert_eq!((names(folder.path()), processes_in(folder.path())), (vec![], vec![]));
    assert_eq!(psql(&schemas), "0");
    let pipeline = folder.path().join("pipeline.toml");
    let topic = format!("{name}_0");
    let toml = format!(
        "name = \"w\"\n[source]\ntype = \"kafka\"\nbrokers = \"{brokers}\"\ntopics = [\"{topic}\"]\ngroup = \"g\"\n\
         [identity]\nheader = \"id\"\n[store]\ntype = \"sqlite\"\npath = \"s.db\"\n[[effect]]\nsql = \"SELECT 1\"\n"
    );
    std::fs::write(&pipeline, toml).unwrap();
    wait_for("a topic that is gone", &mut || {
        let mut publish = Command::new(env!("CARGO_BIN_EXE_handstamp"));
        publish.args(["publish", "--sample", "credits", "--count", "1"]).arg(&pipeline);
        let done = publish.output().unwrap();
        !done.status.success() && String::from_utf8_lossy(&done.stderr).contains(&topic)
    });
}

//! Runs the program in a folder of its own. Every run is searched for the canary secrets, whatever else
//! the test asserts.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Stands for a password. It must appear in no output of any command.
pub(crate) const CANARY: &str = "c4n4ry.p4ssw0rd";
/// Stands for a credential in a message's header: only `dlq show` and `dlq export` may print it.
pub(crate) const HEADER_CANARY: &str = "c4n4ry.h34d3r";
/// No command of a test runs longer.
const LIMIT: Duration = Duration::from_secs(90);

/// A folder with pipelines in it.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), env: Vec::new() }
    }

    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The wallet example, as it is in the repository.
    pub(crate) fn wallet() -> Self {
        let place = Self::new();
        for name in ["file.toml", "kafka.toml", "schema.sqlite.sql", "schema.postgres.sql", "credits.jsonl"] {
            std::fs::copy(root().join("examples/wallet").join(name), place.path(name)).unwrap();
        }
        place
    }

    /// Runs at the finest log level.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        self.run_at("trace", args)
    }

    /// Runs without logs: standard error is then what the program says by itself.
    pub(crate) fn quiet(&self, args: &[&str]) -> Done {
        self.run_at("off", args)
    }

    pub(crate) fn run_at(&self, log: &str, args: &[&str]) -> Done {
        Running::finish(self.start(log, args))
    }

    /// Starts without waiting.
    pub(crate) fn start(&self, log: &str, args: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
        command.args(args).current_dir(self.dir.path()).env_remove("NO_COLOR");
        command.env("HANDSTAMP_LOG", log).env("CANARY", CANARY).env("COLUMNS", "100");
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Running { child: Some(child), args: args.join(" "), may_show_headers: shows_bodies(args) }
    }
}

fn shows_bodies(args: &[&str]) -> bool {
    matches!(args, ["dlq", "show" | "export", ..])
}

/// A run that goes on. It is killed when the test ends before it.
pub(crate) struct Running {
    child: Option<Child>,
    args: String,
    may_show_headers: bool,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Sends a signal by number, through the shell's own kill.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.unwrap().success(), "kill -{name}");
    }

    pub(crate) fn finish(mut self) -> Done {
        let child = self.child.take().unwrap();
        let output = wait(child, &self.args);
        let done = Done {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        for (name, text) in [("stdout", &done.stdout), ("stderr", &done.stderr)] {
            assert!(!text.contains(CANARY), "{} shows a secret on {name}:\n{text}", self.args);
            let shown = text.contains(HEADER_CANARY) && !self.may_show_headers;
            assert!(!shown, "{} shows a header's value on {name}:\n{text}", self.args);
        }
        done
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits with a limit; the pipes are read meanwhile, so that a talkative run does not block.
fn wait(mut child: Child, args: &str) -> Output {
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            let text = String::from_utf8_lossy(&stderr.join().unwrap()).into_owned();
            panic!("`handstamp {args}` ran longer than {LIMIT:?}:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

fn drain(mut pipe: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

impl Done {
    /// The exit code is as expected; shows everything when it is not.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Standard output as one JSON object.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.stdout))
    }

    /// Some fields of the JSON object on standard output, by name.
    #[track_caller]
    pub(crate) fn counts<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        let object = self.json();
        names.map(|name| object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}")))
    }
}

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

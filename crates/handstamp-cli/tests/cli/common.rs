//! Runs the program in a folder of its own. Every run is searched for the canary secrets, whatever else
//! the test asserts.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Stands for a password. It must appear in no output of any command.
pub(crate) const CANARY: &str = "c4n4ry.p4ssw0rd";
/// Stands for a credential in a message's header: only `dlq show` and `dlq export` may print it.
pub(crate) const HEADER_CANARY: &str = "c4n4ry.h34d3r";
/// No command of a test runs longer.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs what is behind it so that the rights of files hold for it, also when the tests run as root.
const WITHOUT_PRIVILEGES: &str = "\
import ctypes, os, sys
try:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
except AttributeError:
    pass
os.execv(sys.argv[1], sys.argv[1:])
";

/// A folder with pipelines in it.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
    /// What the program is started by: a Python script and its own words; `None`: nothing.
    starter: Option<Vec<String>>,
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
        Self { dir: tempfile::tempdir().unwrap(), env: Vec::new(), starter: None }
    }

    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// From now on the program has no more rights than the files give it.
    pub(crate) fn without_privileges(&mut self) {
        self.starter = Some(vec![WITHOUT_PRIVILEGES.to_owned()]);
    }

    /// From now on the program is started by a Python script, which gets its own words, then the command line.
    pub(crate) fn started_by(&mut self, script: &str, words: &[&str]) {
        let words = words.iter().map(|word| (*word).to_owned());
        self.starter = Some([script.to_owned()].into_iter().chain(words).collect());
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
        self.start(log, args).finish()
    }

    /// Runs with more variables.
    pub(crate) fn run_with(&self, log: &str, args: &[&str], env: &[(&str, &str)]) -> Done {
        self.start_with(log, args, env).finish()
    }

    /// Starts without waiting.
    pub(crate) fn start(&self, log: &str, args: &[&str]) -> Running {
        self.start_with(log, args, &[])
    }

    /// Runs with standard output somewhere else.
    pub(crate) fn run_into(&self, stdout: impl Into<Stdio>, args: &[&str]) -> Done {
        self.spawn("off", args, &[], stdout.into()).finish()
    }

    /// Runs with a standard output on which no byte can be written: the disk behind it is full.
    pub(crate) fn run_full(&self, args: &[&str]) -> Done {
        self.run_into(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap(), args)
    }

    fn start_with(&self, log: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
        self.spawn(log, args, env, Stdio::piped())
    }

    fn spawn(&self, log: &str, args: &[&str], env: &[(&str, &str)], stdout: Stdio) -> Running {
        let program = env!("CARGO_BIN_EXE_handstamp");
        let mut command = match &self.starter {
            None => Command::new(program),
            Some(script) => {
                let mut python = Command::new("python3");
                python.arg("-c").args(script).arg(program);
                python
            }
        };
        command.args(args).current_dir(self.dir.path()).env_remove("NO_COLOR");
        command.env("HANDSTAMP_LOG", log).env("CANARY", CANARY).env("COLUMNS", "100");
        command.envs(self.env.iter().map(|(key, value)| (key, value))).envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map_or_else(|| Pipe::drain(std::io::empty()), Pipe::drain);
        let stderr = Pipe::drain(child.stderr.take().unwrap());
        let is_terminal = self.starter.as_ref().is_some_and(|starter| starter[0] != WITHOUT_PRIVILEGES);
        let (args, may_show_headers) = (args.join(" "), shows_bodies(args));
        Running { child, stdout, stderr, args, may_show_headers, is_terminal }
    }
}

fn shows_bodies(args: &[&str]) -> bool {
    matches!(args, ["dlq", "show" | "export", ..])
}

/// What came out of a pipe until now. It is read all the time, so that a talkative run does not block.
struct Pipe {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Pipe {
    fn drain(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { bytes, thread: Some(thread) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn end(&mut self) -> String {
        self.thread.take().unwrap().join().unwrap();
        self.text()
    }
}

/// A run that goes on. It is killed when the test ends before it.
pub(crate) struct Running {
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
    args: String,
    may_show_headers: bool,
    is_terminal: bool,
}

impl Running {
    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success(), "kill -{name}");
    }

    /// Sends a signal again and again; what ended is not waited for, so that its number stays its own.
    pub(crate) fn signal_until_it_ends(&mut self, name: &str) {
        let stat = format!("/proc/{}/stat", self.child.id());
        let ended = wait_for(|| {
            self.signal(name);
            std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
        });
        assert!(ended, "{}: goes on", self.args);
    }

    /// Waits until standard error has a text.
    pub(crate) fn says(&mut self, words: &str) {
        let text = self.stderr.bytes.clone();
        let seen = || String::from_utf8_lossy(&text.lock().unwrap()).contains(words);
        let child = &mut self.child;
        let ended = wait_for(|| seen() || child.try_wait().unwrap().is_some());
        assert!(ended && seen(), "`handstamp {}` did not say {words:?}:\n{}", self.args, self.stderr.text());
    }

    /// What standard error has until now.
    pub(crate) fn logged(&self) -> String {
        self.stderr.text()
    }

    /// What standard output has until now.
    pub(crate) fn printed(&self) -> String {
        self.stdout.text()
    }

    pub(crate) fn finish(mut self) -> Done {
        let child = &mut self.child;
        if !wait_for(|| child.try_wait().unwrap().is_some()) {
            panic!("`handstamp {}` ran longer than {LIMIT:?}:\n{}", self.args, self.stderr.text());
        }
        let code = self.child.wait().unwrap().code();
        let done = Done { code, stdout: self.stdout.end(), stderr: self.stderr.end() };
        for (name, text) in [("stdout", &done.stdout), ("stderr", &done.stderr)] {
            assert!(!text.contains(CANARY), "{} shows a secret on {name}:\n{text}", self.args);
            let shown = text.contains(HEADER_CANARY) && !self.may_show_headers;
            assert!(!shown, "{} shows a header's value on {name}:\n{text}", self.args);
            let twice = crate::clauses::repeated(text);
            assert!(twice.is_none(), "{} says {twice:?} twice on {name}:\n{text}", self.args);
            // Nothing here is a terminal.
            let control = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t'));
            assert!(control.is_none() || self.is_terminal, "{}: {control:?} on {name}:\n{text}", self.args);
        }
        done
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks again and again, at most for as long as a command may run; whether it came true.
pub(crate) fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

impl Done {
    /// The exit code is as expected; shows everything when it is not.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Standard error in one line: the parser lists arguments below its sentence.
    pub(crate) fn said(&self) -> String {
        self.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Standard output in one line: what is wide is wrapped.
    pub(crate) fn unwrapped(&self) -> String {
        self.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
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

//! The live line: what a person at a terminal sees, and that nobody else gets it.

use crate::common::{Place, wait_for};
use std::io::Write;
use std::process::Command;

/// Runs the program on a terminal of its own and copies what it shows to standard output. A signal
/// to it is passed on.
const ON_A_TERMINAL: &str = "\
import fcntl, os, pty, signal, struct, sys, termios
columns = int(sys.argv[1])
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[2], sys.argv[2:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
while True:
    try:
        shown = os.read(terminal, 4096)
    except OSError:  # the program closed its side
        break
    if not shown:
        break
    os.write(1, shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

/// What a terminal of so many columns shows in the end: the few sequences that the program uses, and no other.
fn screen(bytes: &str, columns: usize) -> Vec<String> {
    let mut rows = vec![Vec::<char>::new()];
    let (mut at, mut wraps) = (0, true);
    let mut rest = bytes;
    while let Some(c) = rest.chars().next() {
        let sequence = ["\x1b[2K", "\x1b[?7l", "\x1b[?7h"].into_iter().find(|one| rest.starts_with(one));
        rest = &rest[sequence.map_or(c.len_utf8(), str::len)..];
        let row = rows.last_mut().unwrap();
        match (sequence, c) {
            (Some("\x1b[2K"), _) => row.clear(),
            (Some(other), _) => wraps = other.ends_with('h'),
            (None, '\r') => at = 0,
            (None, '\n') => rows.push(Vec::new()),
            (None, c) => {
                assert!(!c.is_control(), "{c:?} in {bytes:?}");
                if at == columns && wraps {
                    rows.push(Vec::new());
                    at = 0;
                }
                at = at.min(columns - 1);
                let row = rows.last_mut().unwrap();
                row.resize(row.len().max(at + 1), ' ');
                row[at] = c;
                at += 1;
            }
        }
    }
    rows.into_iter().map(|row| row.into_iter().collect::<String>().trim_end().to_owned()).collect()
}

#[test]
fn a_terminal_shows_the_live_line_and_then_a_clean_table() {
    // The narrow one is narrower than the line.
    for columns in [100, 30] {
        let mut place = Place::wallet().env("NO_COLOR", "1");
        place.write("pipe.toml", &place.read("file.toml").replace("credits.jsonl", "pipe"));
        assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
        let width = columns.to_string();
        place.started_by(ON_A_TERMINAL, &[&width]);
        let running = place.start("warn", &["run", "pipe.toml"]);
        let mut pipe = std::fs::OpenOptions::new().write(true).open(place.path("pipe")).unwrap();
        pipe.write_all(place.read("credits.jsonl").as_bytes()).unwrap();
        let line = "applied 13  duplicates 5  dead letters 14  lag 0";
        let shows = || running.printed().matches(line).count();
        // Redrawn in place, and the dead letters' warnings stand above it.
        assert!(wait_for(|| shows() >= 3), "{:?}", running.printed());
        running.signal("TERM");
        let done = running.finish();
        assert_eq!(done.code, Some(0), "{:?}", done.stdout);
        let shown = done.stdout;
        let drawn = shown.split('\r').find(|drawn| drawn.contains(line)).unwrap();
        let rate = drawn.split("/s  ").next().unwrap().trim_start_matches(|c: char| !c.is_ascii_digit());
        assert!(rate.len() < 12, "no rate in {drawn:?}");
        let rows = screen(&shown, columns);
        let table = rows.iter().position(|row| row.trim_start().starts_with("received")).unwrap();
        // The line's own words are left nowhere.
        let left = rows.iter().find(|row| row.contains("/s  applied") || row.contains("duplicates "));
        assert_eq!(left, None);
        let words = ["received", "applied", "duplicate", "id reused", "dead lettered"];
        let found = |word: &str| rows[table..].iter().position(|row| row.trim_start().starts_with(word));
        let places: Vec<Option<usize>> = words.iter().map(|word| found(word)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {rows:#?}");
        assert!(rows[..table].concat().contains("WARN"), "{rows:#?}");
    }
}

/// The harness searches every output of every test for control characters; this run would have had time to
/// draw the line.
#[test]
fn no_terminal_gets_no_live_line() {
    let place = Place::wallet();
    place.write("pipe.toml", &place.read("file.toml").replace("credits.jsonl", "pipe"));
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let mut running = place.start("trace", &["run", "pipe.toml"]);
    let pipe = std::fs::OpenOptions::new().write(true).open(place.path("pipe")).unwrap();
    running.says("running");
    // Longer than the line needs to be drawn, by the program's own clock: it says each second what lags.
    let started = std::time::Instant::now();
    assert!(wait_for(|| started.elapsed() > std::time::Duration::from_millis(1200)));
    running.signal("TERM");
    let done = running.finish().exits(0);
    drop(pipe);
    assert!(!done.stderr.contains("/s  applied"), "{}", done.stderr);
}

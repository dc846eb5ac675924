//! A subject as a program of its own, for the lab's own tests, and with a word before it the other processes
//! that the lab starts; the ordinary program has them as hidden commands.

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

type Res = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            // Standard error that is gone cannot be told to anyone.
            let _ = writeln!(std::io::stderr(), "subject: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[OsString]) -> Res {
    match words.first().and_then(|word| word.to_str()) {
        None => handstamp_lab::subjects::main(),
        #[cfg(feature = "kafka")]
        Some("mock-broker") => handstamp_lab::broker::mock::main(),
        Some(other) => Err(format!("nothing is called {other}").into()),
    }
}

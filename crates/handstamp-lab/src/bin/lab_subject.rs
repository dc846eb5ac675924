//! A subject as a program of its own, for the lab's own tests; the ordinary program has it as a hidden
//! command.

fn main() -> std::process::ExitCode {
    match handstamp_lab::subjects::main() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            // Standard error that is gone cannot be told to anyone.
            let _ = writeln!(std::io::stderr(), "subject: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

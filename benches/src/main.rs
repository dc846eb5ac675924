//! Measures Handstamp against bare hand-written loops.
//!
//! ```text
//! cargo run --release -p handstamp-benches -- NAME [--pairs 9] [--quick]     one program, or `all`
//! cargo run --release -p handstamp-benches -- report [--check]               docs/BENCHMARKS.md
//! ```
//!
//! Authoritative: the raw JSON under `benches/results`; the document is generated from it and from
//! nothing else. Every run has a topic, a group and a database of its own, and its data is checked by
//! SQL before its time counts.
//!
//! | file | owns |
//! |---|---|
//! | `harness` | interleaved rounds, samples, the raw JSON |
//! | `programs` | what is compared with what, and the bars |
//! | `ours`, `wrap` | Handstamp's side, and the store that marks times |
//! | `bare_kafka`, `bare_postgres`, `bare_sqlite` | the hand-written loops |
//! | `credits` | the messages, and what must be found when they are applied |
//! | `kafka`, `postgres` | topics, databases, checks, counters |
//! | `hot`, `child` | several processes |
//! | `set` | effects that run once a batch |
//! | `claim`, `process` | the claim alone; memory and start of the program |
//! | `report` | the document |

mod bare_kafka;
mod bare_postgres;
mod bare_sqlite;
mod child;
mod claim;
mod credits;
mod harness;
mod hot;
mod kafka;
mod ours;
mod postgres;
mod process;
mod programs;
mod report;
mod set;
mod wrap;

use harness::{Options, Res};
use std::io::Write;
use std::process::ExitCode;

const USAGE: &str =
    "usage: handstamp-benches NAME|all [--pairs N] [--quick] [--messages N] [--only SIDE,…] [--out DIR]
       handstamp-benches report [--check]
--quick takes few messages and one pair. Without --quick, --messages and --only the raw results go to
benches/results, otherwise only to --out.
HANDSTAMP_TEST_KAFKA and HANDSTAMP_TEST_POSTGRES name the servers (scripts/services env).
names:";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match start(&args) {
        Ok(code) => code,
        Err(error) => {
            harness::say(&format!("error: {error}"));
            ExitCode::from(1)
        }
    }
}

fn start(args: &[String]) -> Res<ExitCode> {
    let Some((name, rest)) = args.split_first() else { return Ok(usage()) };
    match name.as_str() {
        "report" => {
            let fresh = report::run(rest.iter().any(|arg| arg == "--check"))?;
            return Ok(ExitCode::from(u8::from(!fresh)));
        }
        "child" => return child::run(rest).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let options = Options::parse(rest)?;
    let names: Vec<&str> = if name == "all" { programs::NAMES.to_vec() } else { vec![name] };
    for name in names {
        let Some(program) = programs::by_name(name, &options)? else { return Ok(usage()) };
        harness::run(program, &options)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn usage() -> ExitCode {
    // Standard error may be closed; there is nobody left to tell.
    drop(writeln!(std::io::stderr(), "{USAGE} {}", programs::NAMES.join(" ")));
    ExitCode::from(2)
}

//! The program from outside: arguments in; standard output, standard error and exit code out.

mod common;
#[cfg(all(feature = "kafka", feature = "postgres"))]
mod kafka_postgres;
mod operators;
mod signals;
mod usage;
mod wallet;

//! The program from outside: arguments in; standard output, standard error and exit code out.

mod common;
mod usage;
mod wallet;

//! The folder of a run: chosen, made, and left with an outcome and a report.
//!
//! Authoritative are the histories and results in it; outcome and report are made of them.

use crate::exit::{CliError, Exit};
use std::path::{Path, PathBuf};

#[cfg(feature = "kafka")]
pub(crate) use with_report::{OUTCOME_FILE, conclude, keep, resumable, tell_report};

/// The folder that was named, or one that no other run has.
pub(crate) fn named_or_fresh(named: Option<&PathBuf>, command: &str) -> PathBuf {
    let now = || humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    named.cloned().unwrap_or_else(|| format!("lab-{command}-{}", now().replace(':', "-")).into())
}

/// Makes a folder and says where it is, whatever folder a subject is started in.
///
/// # Errors
/// It cannot be made.
pub(crate) fn make(folder: &Path) -> Result<PathBuf, CliError> {
    std::fs::create_dir_all(folder).map_err(|error| CliError::io(Exit::Usage, "make", folder, &error))?;
    std::path::absolute(folder).map_err(|error| CliError::io(Exit::Usage, "find", folder, &error))
}

/// Refuses a folder that a new run would mix with an old one.
pub(crate) fn taken(folder: &Path, hint: &str) -> CliError {
    CliError::usage(format!("{} holds a run already", folder.display())).hint(hint)
}

/// What needs a report, which names the version of the Kafka client.
#[cfg(feature = "kafka")]
mod with_report {
    use crate::commands::lab::failed;
    use crate::exit::{CliError, Exit};
    use crate::output;
    use handstamp_lab::LabError;
    use handstamp_lab::kill::Conclusion;
    use handstamp_lab::report;
    use serde_json::Value;
    use std::path::Path;

    /// Where the outcome lies beside the histories.
    pub(crate) const OUTCOME_FILE: &str = "outcome.json";

    /// An error of a run that can be gone on with.
    pub(crate) fn resumable(error: LabError, command: &str, folder: &Path) -> CliError {
        failed(error).hint(format!(
            "what is complete is kept: go on with `handstamp lab {command} --resume {}`",
            folder.display()
        ))
    }

    /// Writes an outcome beside its histories and returns it as an object.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep(outcome: &impl serde::Serialize, folder: &Path) -> Result<Value, CliError> {
        let object = serde_json::to_value(outcome)
            .map_err(|error| CliError::new(Exit::Unexpected, format!("the outcome is no JSON: {error}")))?;
        let path = folder.join(OUTCOME_FILE);
        std::fs::write(&path, format!("{object:#}\n"))
            .map_err(|error| CliError::io(Exit::Unexpected, "write", &path, &error))?;
        Ok(object)
    }

    /// Keeps an outcome, prints it as an object or as the table, writes the report, and says what it proves.
    ///
    /// # Errors
    /// Standard output or the folder cannot be written.
    pub(crate) fn conclude(
        outcome: &impl serde::Serialize,
        conclusion: &Conclusion,
        table: &str,
        folder: &Path,
        json: bool,
    ) -> Result<Exit, CliError> {
        output::print_result(json, &keep(outcome, folder)?, table)?;
        tell_report(folder)?;
        Ok(match conclusion {
            Conclusion::Kept => Exit::Ok,
            Conclusion::Violated(_) => Exit::CheckFailed,
            Conclusion::Inconclusive(_) => Exit::Inconclusive,
        })
    }

    /// Writes the report of a folder, and says where it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn tell_report(folder: &Path) -> Result<(), CliError> {
        let path = report::build(folder).map_err(failed)?;
        output::say(&format!("report: {}", path.display()));
        Ok(())
    }
}

//! Small files of a run's folder that are written and read as one JSON value: settings, results.

use crate::error::{LabError, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// Writes a value into a folder, in place of what was there.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn save(folder: &Path, file: &str, value: &impl Serialize) -> Result<()> {
    let path = folder.join(file);
    let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    std::fs::write(&path, text).map_err(|error| LabError::file("write", &path, error))
}

/// Reads it again; `what` is the kind of run that leaves such a file.
///
/// # Errors
/// `Usage` when the folder holds no such run.
pub(crate) fn load<T: DeserializeOwned>(folder: &Path, file: &str, what: &str) -> Result<T> {
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        LabError::usage(format!("{} holds no {what}: no {file}", folder.display())).because(error)
    })?;
    serde_json::from_str(&text)
        .map_err(|error| LabError::usage(format!("{}: not of a {what}", path.display())).because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written_and_its_absence_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let none = load::<Vec<u64>>(folder.path(), "x.json", "lab run").unwrap_err().to_string();
        assert!(none.ends_with("holds no lab run: no x.json"), "{none}");
        save(folder.path(), "x.json", &[1, 2]).unwrap();
        assert_eq!(load::<Vec<u64>>(folder.path(), "x.json", "lab run").unwrap(), [1, 2]);
        let other = load::<String>(folder.path(), "x.json", "lab run").unwrap_err().to_string();
        assert!(other.ends_with("x.json: not of a lab run"), "{other}");
    }
}

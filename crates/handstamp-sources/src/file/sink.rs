//! Appends values to a file, a line each. Durable once answered: the file is synced at the end.

use handstamp_core::{Record, Sink, SinkError};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Appends the value of each record and a line end to one file, whatever the record's topic.
///
/// A line is a value and nothing else: keys, headers and timestamps are left out.
#[derive(Debug, Clone)]
pub struct FileSink {
    path: PathBuf,
}

impl FileSink {
    /// A sink that makes its file when the first record comes.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn append(&self, lines: &[u8]) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).read(true).open(&self.path)?;
        if ends_within_a_line(&file)? {
            file.write_all(b"\n")?;
        }
        file.write_all(lines)?;
        file.sync_all()
    }
}

impl Sink for FileSink {
    async fn publish(&self, records: &[Record]) -> Vec<Result<(), SinkError>> {
        let mut results: Vec<Result<(), SinkError>> = records.iter().map(fits).collect();
        let mut lines = vec![];
        for (record, _) in records.iter().zip(&results).filter(|(_, fits)| fits.is_ok()) {
            lines.extend_from_slice(record.value.as_deref().unwrap_or_default());
            lines.push(b'\n');
        }
        if lines.is_empty() {
            return results;
        }
        let (sink, path) = (self.clone(), self.path.display().to_string());
        let written = tokio::task::spawn_blocking(move || sink.append(&lines)).await;
        let failed = match written {
            Ok(Ok(())) => return results,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            *result = Err(SinkError::new(true, format!("cannot append to {path}: {failed}")));
        }
        results
    }
}

fn fits(record: &Record) -> Result<(), SinkError> {
    let refuse = |why: &str| Err(SinkError::new(false, format!("{}: {why}", record.origin)));
    let Some(value) = &record.value else { return refuse("a null value cannot be a line of a file") };
    if value.is_empty() {
        return refuse("an empty value cannot be a line of a file: empty lines are skipped");
    }
    if value.contains(&b'\n') {
        return refuse("the value holds a line end and would become two messages");
    }
    if value.last() == Some(&b'\r') {
        return refuse("the value ends with CR, which would be read as part of the line end");
    }
    Ok(())
}

/// True when a crash or another program left a last line without its end.
fn ends_within_a_line(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 && file.metadata()?.is_file() {
        file.read_exact_at(&mut last, length - 1)?;
    }
    Ok(last[0] != b'\n')
}

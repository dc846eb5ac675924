//! The report of a run: `report.md` for people, `report.json` for programs, and charts.
//!
//! ```text
//!  folder (settings, histories, logs, results) ─► outcome, recomputed ─► page ─► report.md, report.json, *.svg
//! ```
//!
//! Authoritative are the histories and results; a report is made of them alone and can be made again
//! (`lab verify`). What no history says, such as the version of librdkafka, is noted in `about.json` when
//! the run begins ([`note`]).
//!
//! | file | owns |
//! |---|---|
//! | `page` | `report.md` and `report.json` |
//! | `faults`, `kill`, `matrix`, `measure`, `own`, `zombie` | what stands on the page of each command |
//! | `chart`, `cuts`, `grid`, `phases`, `timeline` | the pictures |
//! | `svg` | shapes and text as SVG |

mod chart;
#[cfg(feature = "postgres")]
mod cuts;
#[cfg(feature = "postgres")]
mod faults;
mod grid;
mod kill;
mod matrix;
mod measure;
mod own;
mod page;
#[cfg(feature = "postgres")]
mod phases;
mod svg;
#[cfg(test)]
mod tests;
mod timeline;
mod zombie;

use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a run was made with, as far as no history says it.
const ABOUT_FILE: &str = "about.json";
/// The results of `lab storage` in its folder.
#[cfg(feature = "postgres")]
const STORAGE_FILE: &str = "storage-runs.json";

/// Which command left a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// `lab kill`.
    Kill,
    /// `lab zombie`.
    Zombie,
    /// `lab throughput`.
    Throughput,
    /// `lab storage`.
    Storage,
    /// `lab matrix`.
    Matrix,
    /// `lab own`.
    Own,
    /// `lab faults`.
    Faults,
}

impl Kind {
    /// Of a folder; `None` where it holds no run.
    #[must_use]
    pub fn of(folder: &Path) -> Option<Self> {
        let holds = |file: &str| folder.join(file).is_file();
        if holds(crate::zombie::Stalls::FILE) {
            return Some(Self::Zombie);
        }
        if holds(crate::matrix::record::SETTINGS_FILE) {
            return Some(Self::Matrix);
        }
        if holds(crate::own::SETTINGS_FILE) {
            return Some(Self::Own);
        }
        if holds(crate::throughput::RATES_FILE) {
            return Some(Self::Throughput);
        }
        #[cfg(feature = "postgres")]
        if holds(STORAGE_FILE) {
            return Some(Self::Storage);
        }
        #[cfg(feature = "postgres")]
        if holds(crate::faults::Settings::FILE) {
            return Some(Self::Faults);
        }
        holds(crate::kill::SETTINGS_FILE).then_some(Self::Kill)
    }
}

/// What a run was made with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct About {
    program: String,
    librdkafka: String,
    /// Broker and database with their versions, as far as they tell them.
    servers: String,
    /// What was asked for, where no other file of the folder says it.
    settings: Value,
}

/// Notes what a run is made with; what an earlier part of the run noted is kept.
///
/// # Errors
/// The file cannot be written.
pub fn note(folder: &Path, servers: &str, settings: &impl Serialize) -> Result<()> {
    let path = folder.join(ABOUT_FILE);
    if path.exists() {
        return Ok(());
    }
    let about = About {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        librdkafka: rdkafka::util::get_rdkafka_version().1,
        servers: servers.to_owned(),
        settings: serde_json::to_value(settings).unwrap_or_default(),
    };
    write(&path, &json_text(&about))
}

/// Refuses to go on with a run on other servers than it began on.
///
/// # Errors
/// `Usage` when it was on others; what was noted cannot be read.
#[cfg(feature = "postgres")]
pub(crate) fn same_servers(folder: &Path, servers: &str) -> Result<()> {
    same(folder, servers, &Value::Null)
}

/// The same for a run that notes here what was asked for.
///
/// # Errors
/// `Usage` when it was on others, or something else was asked for; what was noted cannot be read.
pub fn same(folder: &Path, servers: &str, settings: &Value) -> Result<()> {
    let other = |was: &str, is: &str| {
        Err(LabError::usage(format!("the run in {} was {was}, not {is}", folder.display())))
    };
    match about(folder)? {
        Some(about) if about.servers != servers => {
            other(&format!("on {}", about.servers), &format!("on {servers}"))
        }
        Some(about) if about.settings != *settings => {
            other(&format!("one of {}", about.settings), &format!("of {settings}"))
        }
        _ => note(folder, servers, settings),
    }
}

/// What was asked for, as it was noted; null where nothing was.
///
/// # Errors
/// What was noted cannot be read.
pub fn asked(folder: &Path) -> Result<Value> {
    Ok(about(folder)?.map_or(Value::Null, |about| about.settings))
}

fn about(folder: &Path) -> Result<Option<About>> {
    let path = folder.join(ABOUT_FILE);
    if path.exists() { read_json(&path).map(Some) } else { Ok(None) }
}

/// Keeps what `lab storage` measured.
///
/// # Errors
/// The file cannot be written.
#[cfg(feature = "postgres")]
pub fn keep_storage(folder: &Path, bytes: &[crate::storage::Bytes]) -> Result<()> {
    write(&folder.join(STORAGE_FILE), &json_text(&bytes))
}

/// What `lab storage` measured.
///
/// # Errors
/// The folder holds no such results.
#[cfg(feature = "postgres")]
pub fn read_storage(folder: &Path) -> Result<Vec<crate::storage::Bytes>> {
    read_json(&folder.join(STORAGE_FILE))
}

/// What `lab throughput` measured.
///
/// # Errors
/// The folder holds no such results.
pub fn read_rates(folder: &Path) -> Result<Vec<crate::throughput::Rates>> {
    read_json(&folder.join(crate::throughput::RATES_FILE))
}

/// Writes the report of a folder's run, anew if there is one, and says where it is.
///
/// # Errors
/// The folder holds no run, a file of it cannot be read, or the report cannot be written.
pub fn build(folder: &Path) -> Result<PathBuf> {
    let about = about(folder)?;
    let page = match Kind::of(folder) {
        Some(Kind::Kill) => kill::page(folder)?,
        Some(Kind::Zombie) => zombie::page(folder, about.as_ref())?,
        Some(Kind::Matrix) => matrix::page(folder)?,
        Some(Kind::Own) => own::page(folder)?,
        Some(Kind::Throughput) => measure::throughput(&read_rates(folder)?, about.as_ref()),
        #[cfg(feature = "postgres")]
        Some(Kind::Storage) => measure::storage(&read_storage(folder)?, about.as_ref()),
        #[cfg(feature = "postgres")]
        Some(Kind::Faults) => faults::page(folder)?,
        _ => return Err(LabError::usage(format!("{} holds no run of the lab", folder.display()))),
    };
    for picture in &page.pictures {
        write(&folder.join(picture.file), &picture.svg)?;
    }
    write(&folder.join("report.json"), &json_text(&page.json(about.as_ref())))?;
    let path = folder.join("report.md");
    write(&path, &page.markdown(about.as_ref()))?;
    Ok(path)
}

fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| LabError::file("write", path, error))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(|error| LabError::file("read", path, error))?;
    serde_json::from_str(&text).map_err(|error| {
        LabError::usage(format!("{}: not as the lab writes it", path.display())).because(error)
    })
}

#[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
fn real(count: usize) -> f64 {
    count as f64
}

#[allow(clippy::cast_precision_loss, reason = "a place in a picture, or a figure below 2^53")]
fn real_u64(count: u64) -> f64 {
    count as f64
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

//! `lab throughput`: messages a second of one consumer that nobody kills, without work beside the database.
//!
//! Every consumer settles each message (the runtime commits offsets at once instead of every 200 ms) and
//! takes its turn in every round, so that a slow minute of the machine is everybody's.

use crate::error::Result;
use crate::json_file;
use crate::kill::{self, Surroundings};
use crate::subjects::Subject;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file of the results in the folder.
pub const RATES_FILE: &str = "throughput-runs.json";

/// A consumer and how many messages it takes into one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contender {
    /// Who.
    pub subject: Subject,
    /// Most messages in one transaction (the runtime's only).
    pub batch_max: usize,
}

impl Contender {
    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> String {
        match (self.subject, self.batch_max) {
            (Subject::Handstamp, 1) => "handstamp".to_owned(),
            (Subject::Handstamp, batch) => format!("handstamp, batches of {batch}"),
            (subject, _) => subject.name().to_owned(),
        }
    }
}

/// Everyone who is measured.
#[must_use]
pub fn contenders() -> Vec<Contender> {
    let one = |subject| Contender { subject, batch_max: 1 };
    let mut all = vec![one(Subject::A1), one(Subject::A2), one(Subject::B), one(Subject::C)];
    all.extend([1, 50, 500].map(|batch_max| Contender { subject: Subject::Handstamp, batch_max }));
    all
}

/// The rates of one consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Who.
    pub contender: Contender,
    /// Its name.
    pub name: String,
    /// Messages a second, one for each round.
    pub per_second: Vec<f64>,
}

/// Median, least and most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The middle one; of an even number the lower middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Range {
    /// Of these figures; `None` where there are none.
    #[must_use]
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: sorted[(sorted.len() - 1) / 2], min, max })
    }
}

impl Rates {
    /// The range of its rates.
    #[must_use]
    pub fn range(&self) -> Option<Range> {
        Range::of(&self.per_second)
    }

    /// The range of its rates over those of another in the same round.
    #[must_use]
    pub fn ratio(&self, to: &Self) -> Option<Range> {
        let ratios: Vec<f64> = self
            .per_second
            .iter()
            .zip(&to.per_second)
            .map(|(ours, theirs)| ours / theirs.max(1e-9))
            .collect();
        Range::of(&ratios)
    }
}

/// Measures as many rounds as the settings say; rounds that the folder holds already are kept.
///
/// # Errors
/// The broker or the database does not answer, a subject fails, or it was told to stop.
pub fn run(around: &Surroundings<'_>, step: &dyn Fn(usize, usize)) -> Result<Vec<Rates>> {
    let rounds = usize::try_from(around.settings.runs).unwrap_or(usize::MAX);
    let mut all = read(around.folder).unwrap_or_else(|| {
        let rates = |contender: Contender| Rates { contender, name: contender.name(), per_second: vec![] };
        contenders().into_iter().map(rates).collect()
    });
    // What is kept takes no time: only what is measured now says how long the rest takes.
    let (mut done, total) = (0, all.iter().map(|one| rounds.saturating_sub(one.per_second.len())).sum());
    for round in 0..rounds {
        for at in 0..all.len() {
            if all[at].per_second.len() <= round {
                let Contender { subject, batch_max } = all[at].contender;
                let rate = kill::throughput_run(around, subject, batch_max, 0)?;
                all[at].per_second.push(rate);
                save(around.folder, &all)?;
                done += 1;
                step(done, total);
            }
        }
    }
    Ok(all)
}

fn read(folder: &Path) -> Option<Vec<Rates>> {
    let text = std::fs::read_to_string(folder.join(RATES_FILE)).ok()?;
    serde_json::from_str(&text).ok()
}

fn save(folder: &Path, all: &[Rates]) -> Result<()> {
    json_file::save(folder, RATES_FILE, &all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_inside_a_round() {
        let rates = |per_second: &[f64]| Rates {
            contender: contenders()[0],
            name: String::new(),
            per_second: per_second.to_vec(),
        };
        // Twice as fast in every round, though rounds differ tenfold.
        let (ours, theirs) = (rates(&[200.0, 2000.0, 400.0]), rates(&[100.0, 1000.0, 200.0]));
        let ratio = ours.ratio(&theirs).expect("three rounds");
        assert!((ratio.min - 2.0).abs() < 1e-9 && (ratio.max - 2.0).abs() < 1e-9, "{ratio:?}");
        let range = ours.range().expect("three rounds");
        assert!((range.median - 400.0).abs() < 1e-9 && (range.max - 2000.0).abs() < 1e-9, "{range:?}");
        assert_eq!(Range::of(&[]), None);
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<String> = contenders().into_iter().map(Contender::name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

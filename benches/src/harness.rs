//! Interleaved rounds and the raw results.
//!
//! A round runs every side of a program once, in an order that turns around from round to round, so
//! that a machine that gets slower or faster meets all sides alike. A figure is made of one ratio a
//! round, never of two medians.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Any error, for a person to read.
pub(crate) type Res<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// One run of one side.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// By name: `rate` (messages a second), `seconds`, and whatever the side counted.
    pub(crate) values: BTreeMap<String, f64>,
}

impl Sample {
    /// A sample of so many messages in so many seconds.
    pub(crate) fn timed(messages: u64, seconds: f64) -> Self {
        let mut sample = Self::default();
        sample.set("messages", float(messages)).set("seconds", seconds);
        sample.set("rate", float(messages) / seconds.max(1e-9));
        sample
    }

    /// Sets a value.
    pub(crate) fn set(&mut self, name: &str, value: f64) -> &mut Self {
        self.values.insert(name.to_owned(), value);
        self
    }
}

/// A number of things as a floating-point number; exact below 2^53.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// How a figure is judged.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Bar {
    /// The median must not be below.
    AtLeast(f64),
    /// The median must not be above.
    AtMost(f64),
    /// Shown only.
    None,
}

/// One number of the document: a value of a side, or its ratio to another side's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) label: String,
    pub(crate) value: String,
    pub(crate) of: String,
    pub(crate) against: Option<String>,
    pub(crate) bar: Bar,
}

impl Figure {
    /// A ratio of rates.
    pub(crate) fn ratio(label: &str, of: &str, against: &str, bar: Bar) -> Self {
        let against = Some(against.to_owned());
        Self { label: label.into(), value: "rate".into(), of: of.into(), against, bar }
    }

    /// One value of one side.
    pub(crate) fn single(label: &str, value: &str, of: &str, bar: Bar) -> Self {
        Self { label: label.into(), value: value.into(), of: of.into(), against: None, bar }
    }

    /// The figure's number in each round that has it.
    pub(crate) fn numbers(&self, rounds: &[BTreeMap<String, Sample>]) -> Vec<f64> {
        let value = |round: &BTreeMap<String, Sample>, side: &str| {
            round.get(side).and_then(|sample| sample.values.get(&self.value)).copied()
        };
        rounds
            .iter()
            .filter_map(|round| {
                let of = value(round, &self.of)?;
                match &self.against {
                    Some(against) => Some(of / value(round, against)?),
                    None => Some(of),
                }
            })
            .collect()
    }
}

/// The middle, the smallest and the largest of some numbers.
pub(crate) fn spread(numbers: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let half = sorted.len() / 2;
    let median =
        if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) };
    Some((median, first, last))
}

/// Everything one program measured: the raw JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) machine: BTreeMap<String, String>,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) rounds: Vec<BTreeMap<String, Sample>>,
}

/// One side of a program: its label and what runs it once.
pub(crate) struct Side {
    pub(crate) label: String,
    pub(crate) run: Box<dyn FnMut() -> Res<Sample>>,
}

impl Side {
    /// A side.
    pub(crate) fn new(label: &str, run: impl FnMut() -> Res<Sample> + 'static) -> Self {
        Self { label: label.into(), run: Box::new(run) }
    }
}

/// What is compared with what.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) sides: Vec<Side>,
    pub(crate) figures: Vec<Figure>,
}

/// What the command line says.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) pairs: usize,
    pub(crate) quick: bool,
    pub(crate) only: Option<String>,
    messages: Option<u64>,
    out: Option<PathBuf>,
}

impl Options {
    /// Reads the options behind a program's name.
    pub(crate) fn parse(args: &[String]) -> Res<Self> {
        let mut options = Self { pairs: 0, quick: false, only: None, messages: None, out: None };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--pairs" => options.pairs = value()?.parse()?,
                "--messages" => options.messages = Some(value()?.parse()?),
                "--only" => options.only = Some(value()?.clone()),
                "--out" => options.out = Some(value()?.into()),
                _ => return Err(format!("unknown option {arg}").into()),
            }
        }
        if options.pairs == 0 {
            options.pairs = if options.quick { 1 } else { 9 };
        }
        let whole = options.only.is_none() && options.messages.is_none();
        if !options.quick && whole && options.out.is_none() {
            options.out = Some(results_dir());
        }
        Ok(options)
    }

    /// `full`, or `quick` when the run is only a smoke run, unless the command line says how many.
    pub(crate) fn count(&self, full: u64, quick: u64) -> u64 {
        self.messages.unwrap_or(if self.quick { quick } else { full })
    }
}

/// Where the committed raw results lie.
pub(crate) fn results_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// Runs a program's rounds, shows its figures and keeps its raw results.
pub(crate) fn run(mut program: Program, options: &Options) -> Res<()> {
    say(&format!("{}: {}", program.name, program.title));
    if let Some(only) = &options.only {
        program.sides.retain(|side| only.split(',').any(|label| side.label == label));
    }
    if !options.quick {
        for side in &mut program.sides {
            (side.run)().map_err(|e| format!("{} (warming up): {e}", side.label))?;
        }
    }
    let started = Instant::now();
    let mut rounds = vec![];
    for round in 0..options.pairs {
        let mut samples = BTreeMap::new();
        let mut order: Vec<usize> = (0..program.sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let side = &mut program.sides[at];
            let sample = (side.run)().map_err(|e| format!("{}: {e}", side.label))?;
            say(&format!("  {round:2} {:24} {}", side.label, shown(&sample)));
            samples.insert(side.label.clone(), sample);
        }
        rounds.push(samples);
    }
    let results = Results {
        name: program.name.into(),
        title: program.title.into(),
        about: program.about.into(),
        machine: machine()?,
        settings: program.settings.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        figures: program.figures,
        rounds,
    };
    for figure in &results.figures {
        if let Some((median, min, max)) = spread(&figure.numbers(&results.rounds)) {
            say(&format!("  {}: {median:.3} ({min:.3} to {max:.3})", figure.label));
        }
    }
    say(&format!("  took {:.0} s", started.elapsed().as_secs_f64()));
    if let Some(out) = &options.out {
        let mut text = serde_json::to_string_pretty(&results)?;
        text.push('\n');
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join(format!("{}.json", results.name)), text)?;
    }
    Ok(())
}

fn shown(sample: &Sample) -> String {
    let mut text = String::new();
    for (name, value) in &sample.values {
        text.push_str(&format!("{name}={value:.4} "));
    }
    text
}

/// A line of progress.
pub(crate) fn say(line: &str) {
    // Standard output may be closed; the results are in the file.
    drop(writeln!(std::io::stdout(), "{line}"));
}

fn machine() -> Res<BTreeMap<String, String>> {
    let mut machine = BTreeMap::new();
    let cores = std::thread::available_parallelism()?.get();
    machine.insert("cores".into(), cores.to_string());
    machine.insert("processor".into(), processor().unwrap_or_else(|| "unknown".into()));
    machine.insert("profile".into(), if cfg!(debug_assertions) { "dev" } else { "release" }.into());
    machine.insert("postgres".into(), crate::postgres::version()?);
    machine.insert("librdkafka".into(), rdkafka::util::get_rdkafka_version().1);
    Ok(machine)
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

//! What a scraper and a prober see: asked over a socket, read as strictly as Prometheus' own checker does.

use crate::common::{Running, wait_for};
use handstamp_core::telemetry::{Kind, METRICS};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Labels of a series, by name.
pub(crate) type Labels = BTreeMap<String, String>;

/// Where a run answers, as it says in its log.
pub(crate) fn address_of(running: &mut Running) -> SocketAddr {
    running.says("answering http://");
    let said = running.logged();
    let (_, rest) = said.split_once("answering http://").unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

/// Status, headers in small letters, body.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, head.to_lowercase(), body.to_owned()))
}

/// Waits until a probe answers so.
pub(crate) fn until(address: SocketAddr, path: &str, status: u16, words: &str) {
    let mut last = None;
    let answered = wait_for(|| {
        last = get(address, path);
        last.as_ref().is_some_and(|(code, _, body)| *code == status && body.contains(words))
    });
    assert!(answered, "{path} is not {status} {words:?}: {last:?}");
}

/// One look at the metrics.
#[derive(Debug, Clone)]
pub(crate) struct Scrape(Vec<(String, Labels, f64)>);

impl Scrape {
    /// Asks, and refuses what Prometheus would not take.
    pub(crate) fn of(address: SocketAddr) -> Self {
        let (status, head, body) = get(address, "/metrics").expect("no answer");
        assert_eq!(status, 200);
        assert!(head.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
        Self(read(&body))
    }

    /// The sum of a metric's series that have these labels; `None`: there is no series.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits =
            |has: &Labels| labels.iter().all(|(name, value)| has.get(*name).is_some_and(|has| has == value));
        let values: Vec<f64> =
            self.0.iter().filter(|(known, has, _)| known == name && fits(has)).map(|found| found.2).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// A count that must be there.
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let value = self.value(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?}"));
        assert!(value >= 0.0 && value.fract() == 0.0, "{name}: {value}");
        format!("{value:.0}").parse().unwrap()
    }

    /// Names of metrics without a series.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let series = |name: &str, kind: Kind| match kind {
            Kind::Histogram => format!("{name}_count"),
            Kind::Counter | Kind::Gauge => name.to_owned(),
        };
        let lacks = |name: &str, kind| !self.0.iter().any(|(known, _, _)| *known == series(name, kind));
        METRICS.iter().filter(|metric| lacks(metric.name, metric.kind)).map(|metric| metric.name).collect()
    }
}

/// The text format, version 0.0.4: help and type once and in front of a metric's series, which stand together; no
/// series twice; buckets that ascend and end with all.
fn read(text: &str) -> Vec<(String, Labels, f64)> {
    assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text}");
    let mut all = Vec::new();
    let mut seen = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, _) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(line);
        let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).expect(name);
        let kind = kind.strip_prefix(&format!("{name} ")).expect(kind).to_owned();
        assert!(seen.insert(name.to_owned()), "{name} comes twice");
        let metric = METRICS.iter().find(|metric| metric.name == name).expect(name);
        assert_eq!(metric.kind.as_str(), kind, "{name}");
        let mut of_metric: Vec<(String, Labels, f64)> = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (series, labels, value) = sample(line);
            let suffix = series.strip_prefix(name).unwrap_or_else(|| panic!("{line} under {name}"));
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line} under {name}");
            assert!(!of_metric.iter().any(|(known, has, _)| *known == series && *has == labels), "{line}");
            of_metric.push((series, labels, value));
        }
        assert!(!of_metric.is_empty(), "{name} has no series");
        if kind == "histogram" {
            ascends(name, &of_metric);
        }
        all.extend(of_metric);
    }
    all
}

fn ascends(name: &str, series: &[(String, Labels, f64)]) {
    let bucket = format!("{name}_bucket");
    let buckets: Vec<(&str, f64)> = series
        .iter()
        .filter(|(known, _, _)| *known == bucket)
        .map(|(_, labels, value)| (labels["le"].as_str(), *value))
        .collect();
    let bounds: Vec<f64> = buckets.iter().map(|(bound, _)| bound.parse().unwrap()).collect();
    assert!(bounds.is_sorted_by(|a, b| a < b), "{name}: {bounds:?}");
    assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {buckets:?}");
    let count = series.iter().find(|(known, _, _)| *known == format!("{name}_count")).expect(name).2;
    assert_eq!(buckets.last().copied(), Some(("+Inf", count)), "{name}");
}

/// `name{label="value",…} number`
fn sample(line: &str) -> (String, Labels, f64) {
    let (name, rest) = line.split_once('{').expect(line);
    assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
    let mut labels = Labels::new();
    let mut rest = rest;
    while !rest.starts_with('}') {
        let (label, behind) = rest.split_once("=\"").expect(line);
        assert!(label.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
        let mut value = String::new();
        let mut letters = behind.char_indices();
        let end = loop {
            match letters.next().expect(line) {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match letters.next().expect(line).1 {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    other => panic!("\\{other} in {line}"),
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
        rest = &behind[end..];
        if let Some(more) = rest.strip_prefix(',') {
            assert!(!more.starts_with('}'), "{line}");
            rest = more;
        }
    }
    let number = rest.strip_prefix("} ").expect(line);
    (name.to_owned(), labels, number.parse().expect(line))
}

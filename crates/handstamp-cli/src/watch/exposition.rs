//! Metrics → Prometheus' text format, version 0.0.4.

use crate::redact;
use handstamp_core::telemetry::{Family, Series, Value};
use std::fmt::Write as _;

/// Every family with its help and its kind; one without series is left out.
pub(super) fn text(families: &[Family]) -> String {
    let mut out = String::with_capacity(16 * 1024);
    for family in families.iter().filter(|family| !family.series.is_empty()) {
        let metric = family.metric;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {} {}", metric.name, escaped(metric.help, false));
        let _ = writeln!(out, "# TYPE {} {}", metric.name, metric.kind.as_str());
        for series in &family.series {
            write_series(&mut out, metric.name, series);
        }
    }
    out
}

fn write_series(out: &mut String, name: &str, series: &Series) {
    let labels: Vec<String> = series.labels.iter().map(|(name, value)| pair(name, value)).collect();
    let labels = labels.join(",");
    let mut line = |suffix: &str, more: &str, value: &dyn std::fmt::Display| {
        let comma = if labels.is_empty() || more.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name}{suffix}{{{labels}{comma}{more}}} {value}");
    };
    match &series.value {
        Value::Whole(count) => line("", "", count),
        Value::Real(number) => line("", "", number),
        Value::Buckets(buckets) => {
            for (bound, count) in &buckets.upto {
                line("_bucket", &format!("le=\"{bound}\""), count);
            }
            line("_bucket", "le=\"+Inf\"", &buckets.count);
            line("_sum", "", &buckets.sum);
            line("_count", "", &buckets.count);
        }
    }
}

fn pair(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", escaped(&redact::redact(value), true))
}

/// What would end a line or a quoted value.
fn escaped(text: &str, quoted: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quoted => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::telemetry::{Buckets, metrics};

    fn of(metric: &'static handstamp_core::telemetry::Metric, series: Series) -> String {
        let text = text(&[Family { metric, series: vec![series] }]);
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_value_that_would_end_its_quotes_is_escaped() {
        let series = Series::of("w", Value::Whole(3)).with("lane", "a\"b\\c\nd{},");
        assert_eq!(
            of(&metrics::LAG, series),
            "handstamp_lag_messages{consumer=\"w\",lane=\"a\\\"b\\\\c\\nd{},\"} 3\n"
        );
    }

    #[test]
    fn a_secret_in_a_label_is_masked_and_numbers_stay() {
        redact::register("4711471147");
        let series = Series::of("w", Value::Whole(4_711_471_147)).with("lane", "/t/4711471147.jsonl");
        assert_eq!(
            of(&metrics::LAG, series),
            "handstamp_lag_messages{consumer=\"w\",lane=\"/t/***.jsonl\"} 4711471147\n"
        );
    }

    #[test]
    fn a_histogram_ends_with_all_that_was_recorded() {
        let buckets = Buckets { upto: vec![(0.0005, 1), (30.0, 2)], count: 3, sum: 61.25 };
        assert_eq!(
            of(&metrics::COMMIT, Series::of("w", Value::Buckets(buckets))),
            "handstamp_commit_duration_seconds_bucket{consumer=\"w\",le=\"0.0005\"} 1\n\
             handstamp_commit_duration_seconds_bucket{consumer=\"w\",le=\"30\"} 2\n\
             handstamp_commit_duration_seconds_bucket{consumer=\"w\",le=\"+Inf\"} 3\n\
             handstamp_commit_duration_seconds_sum{consumer=\"w\"} 61.25\n\
             handstamp_commit_duration_seconds_count{consumer=\"w\"} 3\n"
        );
    }

    #[test]
    fn a_family_without_series_is_left_out() {
        assert_eq!(text(&[Family { metric: &metrics::LAG, series: vec![] }]), "");
    }
}

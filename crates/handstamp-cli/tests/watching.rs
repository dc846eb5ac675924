//! The reference of metrics, the dashboard and the alert rules name what the table of metrics has, and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is the failure report")]

use handstamp_core::telemetry::metrics::CONSUMER;
use handstamp_core::telemetry::{Kind, METRICS, Metric};
use promql_parser::label::MatchOp;
use promql_parser::parser::{self, Call, Expr, LabelModifier, VectorSelector};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs")
}

fn read(name: &str) -> String {
    let path = docs().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The reference is the table itself. `HANDSTAMP_UPDATE=1` writes it anew.
#[test]
fn the_reference_lists_the_table() {
    let mut page = "# Metrics\n\nWhat `/metrics` answers, in Prometheus' text format; a test compares this page with \
                    the table in the program, and the table\nwith what a run exposes. [Watching](../guides/watching.md) \
                    is the guide.\n\n| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n"
        .to_owned();
    for metric in METRICS {
        let labels: Vec<&str> = metric.labels.iter().map(|label| label.name).collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { format!("`{}`", labels.join("`, `")) };
        let Metric { name, kind, unit, help, .. } = metric;
        page.push_str(&format!("| `{name}` | {} | {unit} | {labels} | {help} |\n", kind.as_str()));
    }
    page.push_str(&format!(
        "\nEvery metric but `handstamp_build_info` has the label `{CONSUMER}` too: the name of the pipeline. A histogram \
         has the\nseries `_bucket` (with the label `le`), `_sum` and `_count`. Units are written as UCUM does: `s` are \
         seconds, `1` is no\nunit, and braces hold what is counted.\n\n## Values of labels\n\n| metric | label | values \
         |\n|---|---|---|\n"
    ));
    for metric in METRICS {
        for label in metric.labels {
            page.push_str(&format!("| `{}` | `{}` | {} |\n", metric.name, label.name, label.values));
        }
    }
    page.push_str(
        "\n## OpenTelemetry's names\n\nWhere its conventions for messaging have a metric of the same meaning:\n\n| metric \
         | OpenTelemetry |\n|---|---|\n",
    );
    for (name, otel) in METRICS.iter().filter_map(|metric| Some((metric.name, metric.otel?))) {
        page.push_str(&format!("| `{name}` | `{otel}` |\n"));
    }
    let file = docs().join("reference/metrics.md");
    if std::env::var_os("HANDSTAMP_UPDATE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        kept,
        page,
        "HANDSTAMP_UPDATE=1 cargo test -p handstamp-cli --test watching writes {}",
        file.display()
    );
}

/// A file of rules as Prometheus reads it: it refuses unknown keys too.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    r#for: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[test]
fn every_alert_can_be_evaluated_and_says_what_it_is() {
    let rules: Rules = serde_saphyr::from_str(&read("watching/alerts.yaml")).unwrap();
    let [group] = &rules.groups[..] else { panic!("one group") };
    assert!(!group.name.is_empty() && group.rules.len() >= 10);
    let guide = read("guides/watching.md");
    let mut names = BTreeSet::new();
    for rule in &group.rules {
        let name = &rule.alert;
        assert!(names.insert(name), "{name} is there twice");
        let grouped = check(name, &rule.expr);
        assert!(["critical", "warning"].contains(&rule.labels["severity"].as_str()), "{name}");
        let texts: Vec<&String> = rule.annotations.keys().collect();
        assert_eq!(texts, ["description", "summary"], "{name}");
        for text in rule.annotations.values() {
            for label in text.split("$labels.").skip(1).map(|rest| rest.split([' ', '}']).next().unwrap()) {
                assert!(grouped.contains(label), "{name}: {label} is not among {grouped:?}");
            }
        }
        if let Some(time) = &rule.r#for {
            humantime_like(time).unwrap_or_else(|| panic!("{name}: for: {time}"));
        }
        assert!(guide.contains(&format!("`{name}`")), "the guide does not say what to do about {name}");
    }
}

/// Prometheus' durations: a number and a unit.
fn humantime_like(text: &str) -> Option<u32> {
    text.strip_suffix(['s', 'm', 'h', 'd'])?.parse().ok()
}

#[test]
fn every_panel_of_the_dashboard_can_be_evaluated() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("watching/dashboard.json")).unwrap();
    let mut ids = BTreeSet::new();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().unwrap();
            // Grafana puts these in.
            check(title, &expr.replace("$__rate_interval", "5m").replace("$consumer", ".*"));
            asked += 1;
        }
    }
    assert!(asked >= 30, "{asked}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let (metric, label) = inner.split_once(", ").unwrap();
        assert!(labels_of(find(metric).0).contains(label), "{query}");
    }
}

/// What nobody draws, nobody sees.
#[test]
fn every_metric_is_on_the_dashboard() {
    let text = read("watching/dashboard.json");
    for metric in METRICS {
        assert!(text.contains(metric.name), "{}", metric.name);
    }
}

/// The metric behind a series' name, and whether it is one of a histogram's.
fn find(series: &str) -> (&'static Metric, bool) {
    let named = |name: &str| METRICS.into_iter().find(|metric| metric.name == name);
    if let Some(metric) = named(series) {
        assert!(metric.kind != Kind::Histogram, "{series}: write _bucket, _sum or _count");
        return (metric, false);
    }
    let base = ["_bucket", "_sum", "_count"].into_iter().find_map(|suffix| series.strip_suffix(suffix));
    let found = base.and_then(named).filter(|metric| metric.kind == Kind::Histogram);
    (found.unwrap_or_else(|| panic!("{series} is no metric of the table")), true)
}

/// The labels that a series of the metric has once it is scraped.
fn labels_of(metric: &'static Metric) -> BTreeSet<&'static str> {
    let own = metric.labels.iter().map(|label| label.name);
    let of_histogram = (metric.kind == Kind::Histogram).then_some("le");
    let consumer = (metric.name != "handstamp_build_info").then_some(CONSUMER);
    own.chain(of_histogram).chain(consumer).chain(["instance", "job"]).collect()
}

/// Parses a query and checks every name in it against the table; answers the labels that its result has.
fn check(what: &str, query: &str) -> BTreeSet<String> {
    let expr = parser::parse(query).unwrap_or_else(|error| panic!("{what}: {query}: {error}"));
    visit(what, &expr, false)
}

/// `counted`: inside of a function that takes what only grows.
fn visit(what: &str, expr: &Expr, counted: bool) -> BTreeSet<String> {
    match expr {
        Expr::VectorSelector(selector) => select(what, selector, counted),
        Expr::MatrixSelector(matrix) => select(what, &matrix.vs, counted),
        Expr::Call(Call { func, args }) => {
            let counted = ["rate", "increase"].contains(&func.name);
            let inner: Vec<BTreeSet<String>> =
                args.args.iter().map(|arg| visit(what, arg, counted)).collect();
            let mut labels: BTreeSet<String> = inner.into_iter().flatten().collect();
            match func.name {
                "histogram_quantile" => {
                    assert!(labels.remove("le"), "{what}: no le is left for the quantile")
                }
                "absent" => labels.clear(),
                _ => {}
            }
            labels
        }
        Expr::Aggregate(aggregate) => {
            let inner = visit(what, &aggregate.expr, counted);
            match &aggregate.modifier {
                Some(LabelModifier::Include(by)) => {
                    for label in &by.labels {
                        assert!(inner.contains(label), "{what}: {label} is not among {inner:?}");
                    }
                    by.labels.iter().cloned().collect()
                }
                Some(LabelModifier::Exclude(_)) => panic!("{what}: say what stays, not what goes"),
                None => BTreeSet::new(),
            }
        }
        Expr::Binary(binary) => {
            let (left, right) = (visit(what, &binary.lhs, counted), visit(what, &binary.rhs, counted));
            let modifier = binary.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref());
            if let Some(LabelModifier::Include(on)) = modifier {
                for label in &on.labels {
                    assert!(
                        left.contains(label) && right.contains(label),
                        "{what}: {label} is not on both sides"
                    );
                }
            }
            if left.is_empty() { right } else { left }
        }
        Expr::Paren(paren) => visit(what, &paren.expr, counted),
        Expr::Unary(unary) => visit(what, &unary.expr, counted),
        Expr::Subquery(_) | Expr::Extension(_) => panic!("{what}: not used here"),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => BTreeSet::new(),
    }
}

fn select(what: &str, selector: &VectorSelector, counted: bool) -> BTreeSet<String> {
    let name = selector.name.as_deref().unwrap_or_else(|| panic!("{what}: a selector without a name"));
    let (metric, of_histogram) = find(name);
    let grows = metric.kind == Kind::Counter || of_histogram;
    assert_eq!(grows, counted, "{what}: {name} is a {}", metric.kind.as_str());
    let labels = labels_of(metric);
    for matcher in &selector.matchers.matchers {
        assert!(labels.contains(matcher.name.as_str()), "{what}: {name} has no label {}", matcher.name);
        let Some(label) = metric.labels.iter().find(|label| label.name == matcher.name) else { continue };
        let known: Vec<&str> = label.values.split(", ").collect();
        let words: Vec<&str> = match matcher.op {
            MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').collect(),
            MatchOp::Equal | MatchOp::NotEqual => vec![&matcher.value],
        };
        for word in words {
            assert!(known.contains(&word), "{what}: {name}: {word} is none of {}", label.values);
        }
    }
    labels.into_iter().map(str::to_owned).collect()
}

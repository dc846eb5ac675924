//! Reports of planted folders: what stands in them, and what a person sees of their charts.

use super::chart::{Bar, Chart, Row as ChartRow, Scale, Spread};
use super::svg::{colour, text_width};
use super::timeline::{self, Lane};
use super::*;
use crate::checker::EndState;
use crate::history::{Entry, Event};
use crate::kill::{self, Profile, RowKind, Settings};
use crate::storage::Bytes;
use crate::subjects::Subject;
use crate::throughput::{Rates, contenders};
use crate::workload::Credit;
use crate::zombie::Stalls;
use std::fmt::Write as _;
use std::fs;

/// A run of a row: kills, effects that repeated others, ids that were lost.
fn plant(folder: &Path, stem: &str, name: &str, run: u32, doubled: u64, lost: u64) {
    let mut at_ms = 0;
    let mut lines = String::new();
    let mut say = |step: u64, event: Event| {
        at_ms += step;
        let line = serde_json::to_string(&Entry { at_ms, event }).unwrap();
        writeln!(lines, "{line}").unwrap();
    };
    say(0, Event::Run { subject: name.into(), run, seed: 7, messages: 1000, version: "0.0.9".into() });
    for child in 0..4 {
        say(300, Event::Started { child, pid: 70 + child });
        say(700, Event::Assigned { child, partitions: 6 });
        say(200, Event::FirstHandled { child });
        say(2500, Event::CommitRefused { child, reason: "unknown member".into() });
        say(10, Event::Evicted { child });
        say(10, Event::Killed { child, left: 900, counts: true, point: None });
    }
    say(300, Event::Started { child: 4, pid: 74 });
    say(6000, Event::Drained);
    say(20, Event::Repeated { times_ms: (0..doubled).map(|n| 4000 + n * 7).collect() });
    let credit = |n: u64| Credit { id: format!("m{n}"), account: 1, amount: 5 };
    let mut end = EndState::default();
    let mut sent = String::new();
    for n in 0..1000 {
        let credit = credit(n);
        writeln!(sent, "{}", serde_json::to_string(&credit).unwrap()).unwrap();
        if n >= lost {
            end.effects.insert(credit.id, 1 + if n == lost { doubled } else { 0 });
        }
    }
    let worth = i64::try_from(1000 - lost + doubled).unwrap() * 5;
    end.balances.insert(1, worth);
    end.ledger.insert(1, worth);
    say(5, Event::End(end));
    fs::write(folder.join(format!("{stem}.jsonl")), lines).unwrap();
    fs::write(folder.join(format!("{stem}.sent.jsonl")), sent).unwrap();
}

fn settings() -> Settings {
    let subjects = vec![Subject::A1, Subject::OffsetFirst, Subject::Handstamp];
    let settings = Settings {
        id: "planted".into(),
        runs: 2,
        kills: 20,
        seed: 7,
        subjects,
        place: "Kafka; PostgreSQL 18.6".into(),
        ..Settings::of(Profile::Quick)
    };
    settings.checked(false).unwrap()
}

fn plant_kill() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings();
    settings.save(folder.path()).unwrap();
    for row in settings.rows() {
        for run in 0..settings.runs {
            let (doubled, lost) = match (row.subject, row.kind) {
                (Subject::A1, _) => (400 + 3400 * u64::from(run), 0),
                (Subject::OffsetFirst, RowKind::Held) => (0, 2),
                (Subject::OffsetFirst, _) => (0, 4 + u64::from(run)),
                _ => (0, 0),
            };
            plant(folder.path(), &row.file_stem(run), &row.name(), run, doubled, lost);
        }
    }
    fs::write(folder.path().join("throughput.json"), r#"{"a1": 445.12, "handstamp": 250.0}"#).unwrap();
    let about = About {
        program: "0.0.9".into(),
        librdkafka: "2.12.1".into(),
        servers: "Kafka; PostgreSQL 18.6".into(),
        settings: Value::Null,
    };
    fs::write(folder.path().join(ABOUT_FILE), json_text(&about)).unwrap();
    folder
}

fn plant_zombie() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    settings().save(folder.path()).unwrap();
    fs::write(folder.path().join(Stalls::FILE), json_text(&Stalls::default())).unwrap();
    for row in crate::zombie::Row::ALL {
        for run in 0..2 {
            let doubled = u64::from(row.subject == Subject::B) * 10;
            plant(folder.path(), &row.file_stem(run), row.name(), run, doubled, 0);
        }
    }
    folder
}

fn plant_throughput() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rates: Vec<Rates> = contenders()
        .into_iter()
        .zip([445.0, 447.5, 340.0, 320.25, 245.0, 3900.0, 9100.0])
        .map(|(contender, rate)| Rates {
            contender,
            name: contender.name(),
            per_second: vec![rate, rate * 0.9, rate * 1.2],
        })
        .collect();
    fs::write(folder.path().join(crate::throughput::RATES_FILE), json_text(&rates)).unwrap();
    note(folder.path(), "Kafka; PostgreSQL 18.6", &serde_json::json!({ "messages": 100_000, "runs": 3 }))
        .unwrap();
    folder
}

fn plant_storage() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tables = [
        ("text", 93.1, 100.7),
        ("uuid v4", 68.3, 65.6),
        ("uuid v7", 68.3, 49.7),
        ("handstamp v7", 60.0, 23.8),
    ];
    let tables = tables.map(|(name, heap, index)| Bytes {
        name: name.into(),
        heap: vec![heap; 3],
        index: vec![index, index + 1.0, index - 1.0],
    });
    keep_storage(folder.path(), &tables).unwrap();
    note(folder.path(), "PostgreSQL 18.6", &serde_json::json!({ "rows": 1_000_000, "runs": 3 })).unwrap();
    folder
}

/// A text of a picture with the room it takes.
#[derive(Debug)]
struct Placed {
    text: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

fn placed(svg: &str) -> Vec<Placed> {
    let tree = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}:\n{svg}"));
    let texts = tree.descendants().filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| {
            let number = |name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
            let text = node.text().unwrap_or_default().to_owned();
            let (x, y, size) = (number("x"), number("y"), number("font-size"));
            // Bold letters are a tenth wider.
            let bold = if node.has_attribute("font-weight") { 1.12 } else { 1.0 };
            let width = text_width(&text, size) * bold;
            let left = match node.attribute("text-anchor") {
                Some("end") => x - width,
                Some("middle") => x - width / 2.0,
                _ => x,
            };
            Placed { text, left, right: left + width, top: y - size * 0.8, bottom: y + size * 0.2 }
        })
        .collect()
}

/// Well-formed, with words for those who cannot see it, and no text over another or over the edge.
#[track_caller]
fn is_readable(svg: &str) {
    let tree = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}:\n{svg}"));
    for tag in ["title", "desc"] {
        let node = tree.root_element().children().find(|node| node.has_tag_name(tag));
        assert!(node.and_then(|node| node.text()).is_some_and(|text| !text.is_empty()), "{tag}");
    }
    let size = |name: &str| tree.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
    let (width, height) = (size("width"), size("height"));
    let texts = placed(svg);
    for (at, one) in texts.iter().enumerate() {
        assert!(one.left >= 0.0 && one.right <= width && one.top >= 0.0 && one.bottom <= height, "{one:?}");
        for other in &texts[at + 1..] {
            let apart = one.right <= other.left
                || other.right <= one.left
                || one.bottom <= other.top
                || other.bottom <= one.top;
            assert!(apart, "{one:?} is over {other:?}");
        }
    }
}

fn read(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_chart_of_every_command_is_readable_and_named_in_its_report() {
    let [commit, outage, partition] = crate::faults::planted::settings();
    for (folder, charts) in [
        (plant_kill(), vec!["doubled-lost.svg", "timeline.svg", "throughput.svg"]),
        (plant_zombie(), vec!["doubled-lost.svg", "timeline.svg"]),
        (plant_throughput(), vec!["throughput.svg"]),
        (plant_storage(), vec!["bytes.svg"]),
        (crate::faults::planted::plant(&commit), vec!["cuts.svg"]),
        (crate::faults::planted::plant(&outage), vec!["timeline.svg", "rates.svg"]),
        (crate::faults::planted::plant(&partition), vec!["timeline.svg"]),
        (crate::matrix::record::tests::plant(), vec!["matrix.svg"]),
        (crate::own::record::tests::plant(), vec!["timeline.svg"]),
    ] {
        let path = build(folder.path()).unwrap();
        let (markdown, json) = (fs::read_to_string(path).unwrap(), read(folder.path(), "report.json"));
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["charts"], serde_json::json!(charts));
        for chart in charts {
            is_readable(&read(folder.path(), chart));
            assert!(markdown.contains(&format!("]({chart})")), "{chart}: {markdown}");
        }
        // Made again from the same files it is the same.
        build(folder.path()).unwrap();
        assert_eq!(read(folder.path(), "report.md"), markdown);
    }
}

/// Where the marks with this outline begin.
fn marks(svg: &str, outline: &str) -> Vec<(f64, f64)> {
    let tree = roxmltree::Document::parse(svg).unwrap();
    let paths = tree.descendants().filter_map(|node| node.attribute("d")).map(str::to_owned);
    let begins = paths.filter_map(|path| {
        let (x, y) = path.strip_suffix(outline)?.strip_prefix('M')?.split_once(' ').unwrap();
        Some((x.parse().unwrap(), y.parse().unwrap()))
    });
    begins.collect()
}

#[test]
fn marks_of_what_comes_together_do_not_hide_each_other() {
    let (triangle, cross, ring) = ("l-4 8h8z", "l8 8m0 -8l-8 8", "a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z");
    let lane = |events: Vec<Event>| {
        let entries = (0..).zip(events).map(|(at, event)| Entry { at_ms: at * 100, event }).collect();
        timeline::draw("", "", &[Lane { name: "a".into(), doubled: 0, lost: 0, entries }])
    };
    let again_and_again = (0..50).flat_map(|child| {
        let killed = Event::Killed { child, left: 9, counts: true, point: None };
        [Event::Started { child, pid: 7 }, Event::Assigned { child, partitions: 6 }, killed]
    });
    let [_, outage, _] = crate::faults::planted::settings();
    let folder = crate::faults::planted::plant(&outage);
    build(folder.path()).unwrap();
    for (svg, one, other) in [
        (lane(again_and_again.collect()), triangle, cross),
        (read(folder.path(), "timeline.svg"), triangle, ring),
    ] {
        let (ones, others) = (marks(&svg, one), marks(&svg, other));
        assert!(!ones.is_empty() && !others.is_empty(), "{svg}");
        for one in &ones {
            // Each is at most nine pixels high and wide.
            let hides = |other: &&(f64, f64)| (one.1 - other.1).abs() < 8.0 && (one.0 - other.0).abs() < 9.0;
            assert_eq!(others.iter().find(hides), None, "beside {one:?}");
        }
    }
}

#[test]
fn every_subject_there_is_has_its_label_and_they_all_fit() {
    let lane = |name: String| Lane { name, doubled: 123_456, lost: 12_345, entries: vec![] };
    let all = Settings::of(Profile::Source).checked(false).unwrap();
    let names: Vec<String> = all.rows().iter().map(|row| row.name()).collect();
    let lanes: Vec<Lane> = names.iter().cloned().map(lane).collect();
    let svg = timeline::draw("Time", "of all", &lanes);
    is_readable(&svg);
    let texts: Vec<String> = placed(&svg).into_iter().map(|placed| placed.text).collect();
    for name in &names {
        assert!(texts.contains(name), "{name}");
    }
}

#[test]
fn every_row_of_a_folder_is_in_its_charts() {
    let folder = plant_kill();
    build(folder.path()).unwrap();
    for chart in ["doubled-lost.svg", "timeline.svg"] {
        let texts: Vec<String> =
            placed(&read(folder.path(), chart)).into_iter().map(|placed| placed.text).collect();
        for row in settings().rows() {
            assert!(texts.contains(&row.name()), "{chart}: {}", row.name());
        }
    }
}

/// A chart in which thousands stand beside 0 and 5.
fn wide() -> Chart {
    let row = |name: &str, median: f64| ChartRow {
        name: name.into(),
        about: "a <consumer> & its \"name\"".into(),
        bars: vec![Bar {
            what: "doubled",
            colour: colour::VERMILLION,
            spread: Spread { median, min: median, max: median },
            reference: None,
            more: String::new(),
        }],
    };
    Chart {
        title: "Wide".into(),
        under: "under".into(),
        axis: "axis".into(),
        legend: vec![(colour::VERMILLION, "doubled".into())],
        scale: Scale::Tens,
        digits: 0,
        stacked: false,
        rows: vec![row("a1", 3600.0), row("b", 5.0), row("c", 0.0)],
    }
}

/// Widths of the bars of a colour, and how many rings there are of it.
fn bars(svg: &str, colour: &str) -> (Vec<f64>, usize) {
    let tree = roxmltree::Document::parse(svg).unwrap();
    let of = |tag, paint| {
        tree.descendants().filter(move |node| node.has_tag_name(tag) && node.attribute(paint) == Some(colour))
    };
    // The legend's are squares.
    let widths: Vec<f64> = of("rect", "fill")
        .filter(|node| node.attribute("height") != Some("12.0"))
        .map(|node| node.attribute("width").unwrap().parse().unwrap())
        .collect();
    (widths, of("path", "stroke").count())
}

#[test]
fn zero_is_drawn_as_zero_and_a_few_beside_thousands_can_be_seen() {
    for scale in [Scale::Tens, Scale::Linear] {
        let svg = Chart { scale, ..wide() }.draw();
        is_readable(&svg);
        let (widths, rings) = bars(&svg, colour::VERMILLION);
        assert_eq!((widths.len(), rings), (2, 1), "{svg}");
        assert!(scale == Scale::Linear || (widths[1] > 50.0 && widths[0] > widths[1]), "{widths:?}");
        let texts: Vec<String> = placed(&svg).into_iter().map(|placed| placed.text).collect();
        for text in ["doubled 3,600", "doubled 5", "doubled 0", "0"] {
            assert!(texts.iter().any(|one| one == text), "{text}: {texts:?}");
        }
    }
    // Also where nothing else is.
    let all_zero = Chart { rows: vec![wide().rows[2].clone()], ..wide() }.draw();
    is_readable(&all_zero);
    assert_eq!(bars(&all_zero, colour::VERMILLION), (vec![], 1));
}

#[test]
fn the_figures_of_the_report_are_those_of_the_outcome() {
    let folder = plant_kill();
    build(folder.path()).unwrap();
    let json: Value = serde_json::from_str(&read(folder.path(), "report.json")).unwrap();
    let outcome = kill::recompute(folder.path()).unwrap();
    assert_eq!(json["outcome"], serde_json::to_value(&outcome).unwrap());
    assert_eq!(json["seed"], 7);
    assert_eq!(json["versions"]["handstamp"], serde_json::json!(["0.0.9"]));
    for (row, shown) in outcome.rows.iter().zip(json["table"].as_array().unwrap()) {
        assert_eq!(shown["subject"], row.name.as_str());
        assert_eq!(shown["doubled in all"], grouped(row.doubled()));
        assert_eq!(shown["lost in all"], grouped(row.lost()));
    }
    let a1 = &json["outcome"]["rows"][0];
    assert_eq!(
        (&a1["runs"][0]["verdict"]["doubled"], &a1["runs"][1]["verdict"]["doubled"]),
        (&400.into(), &3800.into())
    );
}

#[test]
fn the_report_of_a_planted_run() {
    let folder = plant_kill();
    build(folder.path()).unwrap();
    // After a change that is meant: write what the failure shows into the file.
    assert_eq!(read(folder.path(), "report.md"), include_str!("planted.md"));
}

#[test]
fn the_grid_of_a_matrix_shows_every_cell_and_the_report_what_it_must() {
    let folder = crate::matrix::record::tests::plant();
    build(folder.path()).unwrap();
    let markdown = read(folder.path(), "report.md");
    for part in ["**Kept:**", "| `here` |", "control: without an inbox", "| 3/0 |", "| 0/2 |", "–"] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    let svg = read(folder.path(), "matrix.svg");
    let texts: Vec<String> = placed(&svg).into_iter().map(|placed| placed.text).collect();
    for text in ["here", "there", "file, SQLite", "Kafka, Postgres", "0/0", "3/0", "0/2", "–"] {
        assert!(texts.iter().any(|one| one == text), "{text}: {texts:?}");
    }
    let json: Value = serde_json::from_str(&read(folder.path(), "report.json")).unwrap();
    assert_eq!((&json["seed"], &json["settings"]["cells"]), (&7.into(), &6.into()));
    assert_eq!(json["outcome"]["outcomes"][4]["verdict"]["doubled"], 3);
    // A planted violation is named, and seen without its colour.
    let path = folder.path().join("001-here-kafka-sqlite.jsonl");
    fs::write(&path, read(folder.path(), "001-here-kafka-sqlite.jsonl").replace(r#""m3":1"#, r#""m3":2"#))
        .unwrap();
    build(folder.path()).unwrap();
    let (markdown, svg) = (read(folder.path(), "report.md"), read(folder.path(), "matrix.svg"));
    assert!(markdown.contains("**VIOLATED:**") && markdown.contains("1 doubled, 0 lost"), "{markdown}");
    assert!(svg.contains("1/0 VIOLATION"), "{svg}");
    is_readable(&svg);
}

#[test]
fn the_report_of_a_users_own_program_names_ids_and_the_faults_that_led_there() {
    let folder = crate::own::record::tests::plant();
    build(folder.path()).unwrap();
    let markdown = read(folder.path(), "report.md");
    for part in [
        "`python b.py`",
        "**VIOLATED:**",
        "| `m3` | 2 | 1 | 0.8 s, 2.0 s | 1: at 0.9 s copy 0 killed |",
        "| `m4` | 0.8 s | 1: at 0.9 s copy 0 killed |",
        "| 4 | 5.5 s | connections to the broker cut | 30 | yes |",
        "| broker | 4,000 | 90,000 | 5 | 3 |",
    ] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    assert!(!markdown.contains("secret"), "{markdown}");
    let texts: Vec<String> =
        placed(&read(folder.path(), "timeline.svg")).into_iter().map(|placed| placed.text).collect();
    for text in [
        "python b.py",
        "1 doubled, 1 missing",
        "killed",
        "frozen",
        "database cut",
        "broker cut",
        "effect doubled",
    ] {
        assert!(texts.iter().any(|one| one == text), "{text}: {texts:?}");
    }
    let json: Value = serde_json::from_str(&read(folder.path(), "report.json")).unwrap();
    assert_eq!(json["settings"]["faults.broker_cuts"], 1);
    assert_eq!(json["outcome"]["traces"][0]["fault"], 0);
}

#[test]
fn the_report_of_an_outage_has_the_rate_after_the_return_in_per_cent_of_the_rate_before() {
    let [_, outage, _] = crate::faults::planted::settings();
    let folder = crate::faults::planted::plant(&outage);
    build(folder.path()).unwrap();
    let markdown = read(folder.path(), "report.md");
    for part in ["**Kept:** nothing was doubled", "| broker frozen (SIGSTOP) |", "| 80/s | 40/s | 50 % |"] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    let json: Value = serde_json::from_str(&read(folder.path(), "report.json")).unwrap();
    assert_eq!((&json["seed"], &json["command"]), (&7.into(), &"lab faults outage".into()));
    assert_eq!(json["outcome"]["rows"][0]["measured"]["after_percent"].as_f64().map(f64::round), Some(98.0));
    for (chart, words) in [
        (
            "timeline.svg",
            ["broker frozen (SIGSTOP)", "80/s before, 40/s after: 50 %", "SIGTERM to one", "the fault"],
        ),
        ("rates.svg", ["broker frozen (SIGSTOP)", "before 80", "after 40 (50 %)", "after the return"]),
    ] {
        let texts: Vec<String> =
            placed(&read(folder.path(), chart)).into_iter().map(|placed| placed.text).collect();
        assert!(words.iter().all(|word| texts.iter().any(|text| text == word)), "{chart}: {texts:?}");
    }
}

#[test]
fn cuts_stand_where_they_were_dealt_and_say_without_colour_what_came_of_them() {
    let [commit, ..] = crate::faults::planted::settings();
    let folder = crate::faults::planted::plant(&commit);
    build(folder.path()).unwrap();
    let svg = read(folder.path(), "cuts.svg");
    let tree = roxmltree::Document::parse(&svg).unwrap();
    let tops = |paint: &str| -> Vec<f64> {
        let of = |node: &roxmltree::Node<'_, '_>| {
            node.has_tag_name("rect") && node.attribute("fill") == Some(paint)
        };
        // The legend's are squares.
        let bars = tree.descendants().filter(of).filter(|node| node.attribute("height") != Some("12.0"));
        bars.map(|node| node.attribute("y").unwrap().parse().unwrap()).collect()
    };
    // The zero line of the first panel: what was committed grows up from it, everything else down.
    let zero = 104.0 + 62.0;
    let first = |paint: &str| tops(paint).into_iter().filter(|y| *y < zero + 60.0).collect::<Vec<f64>>();
    let (up, down, below) = (first(colour::BLUE), first(colour::ORANGE), first(colour::GREY));
    assert!(!up.is_empty() && up.iter().all(|y| *y < zero), "{up:?}");
    assert!(!down.is_empty() && down.iter().chain(&below).all(|y| *y >= zero), "{down:?} {below:?}");
    let texts: Vec<String> = placed(&svg).into_iter().map(|placed| placed.text).collect();
    for text in ["handstamp", "no inbox (control)", "to the server", "52 not committed", "committed (up)"] {
        assert!(texts.iter().any(|one| one == text), "{text}: {texts:?}");
    }
}

#[test]
fn a_folder_without_a_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(build(folder.path()).unwrap_err().to_string().contains("holds no run"));
}

#[test]
fn what_was_noted_first_stays_noted() {
    let folder = tempfile::tempdir().unwrap();
    note(folder.path(), "first", &1).unwrap();
    note(folder.path(), "second", &2).unwrap();
    assert_eq!(about(folder.path()).unwrap().unwrap().servers, "first");
}

//! What `lab own` says to people.

use crate::output::table::grouped;
use handstamp_lab::kill::Progress;
use handstamp_lab::own::{Conclusion, Done, Fault, Outcome, Settings, Stage, Through, Trace};
use std::fmt::Write as _;
use std::time::Duration;

/// What is going to be done.
pub(crate) fn intention(settings: &Settings, servers: &str) -> String {
    let faults = &settings.faults;
    format!(
        "{} messages to {} copies on {servers}; {} kills, {} stops, {} cuts from the database, {} from the broker \
         (seed {})",
        settings.messages.count,
        settings.copies,
        faults.kills,
        faults.stops,
        faults.cuts,
        faults.broker_cuts,
        settings.seed
    )
}

/// The outcome.
pub(crate) fn told(outcome: &Outcome) -> String {
    let mut text = format!(
        "sent     {} messages in {} records: {} twice, {} out of order, {} bad\n",
        outcome.good + outcome.bad,
        outcome.records,
        outcome.duplicates,
        outcome.reordered,
        outcome.bad
    );
    // Writing to a string does not fail.
    let _ = writeln!(text, "doubled  {}", doubled(outcome));
    for (id, times) in &outcome.doubled_ids {
        let _ = writeln!(text, "  {id} ({times} times){}", led_there(outcome, id));
    }
    let _ = writeln!(text, "missing  {}", first(outcome.missing, outcome.missing_ids.len()));
    for id in &outcome.missing_ids {
        let _ = writeln!(text, "  {id}{}", led_there(outcome, id));
    }
    if outcome.bad_applied > 0 {
        let _ = writeln!(text, "bad ones with an effect  {}", outcome.bad_applied);
    }
    if outcome.unsent > 0 {
        let _ = writeln!(text, "effects of ids that nobody sent  {}", outcome.unsent);
    }
    if outcome.ended_by_itself > 0 {
        let _ = writeln!(text, "copies that ended by themselves  {}", outcome.ended_by_itself);
    }
    for through in &outcome.through {
        let _ = writeln!(text, "{}", way(through));
    }
    if !outcome.schedule.is_empty() {
        let _ = writeln!(text, "schedule (seed {})", outcome.seed);
    }
    for done in &outcome.schedule {
        let _ = writeln!(text, "  {}", line(done));
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text.push_str(&match &outcome.conclusion {
        Conclusion::Kept => "kept: every message had its effect once\n".to_owned(),
        Conclusion::Violated(why) => format!("VIOLATED: {}\n", why.join("; ")),
        Conclusion::Inconclusive(why) => format!("proves nothing: {}\n", why.join("; ")),
    });
    text
}

/// How far it is, and how long the faults that are left take if they go on like this.
pub(crate) fn stage(stage: &Stage, took: Duration) -> String {
    let count = |count| u64::try_from(count).unwrap_or(u64::MAX);
    let progress = Progress { done: count(stage.faults), all: count(stage.of), took };
    let rest = progress.rest().filter(|rest| !rest.is_zero());
    let rest = rest.map_or_else(String::new, |rest| format!(", about {} s left", rest.as_secs()));
    format!(
        "{} of {} faults done, {} of {} messages applied{rest}",
        stage.faults, stage.of, stage.applied, stage.good
    )
}

fn doubled(outcome: &Outcome) -> String {
    let (once, again) = (outcome.doubled_sent_once, outcome.doubled_sent_again);
    let figure = first(outcome.doubled, outcome.doubled_ids.len());
    if once + again == 0 {
        return figure;
    }
    let kinds = format!("({} sent once, {} sent again)", ids(once), ids(again));
    match figure.split_once(',') {
        Some((many, rest)) => format!("{many} {kinds},{rest}"),
        None => format!("{figure} {kinds}"),
    }
}

fn ids(many: u64) -> String {
    if many == 1 { "1 id".to_owned() } else { format!("{many} ids") }
}

fn first(many: u64, named: usize) -> String {
    let more = u64::try_from(named).is_ok_and(|named| named < many);
    if named > 0 && more { format!("{many}, the first:") } else { many.to_string() }
}

fn way(through: &Through) -> String {
    format!(
        "proxy    {}: {} bytes to it, {} from it; {} of {} connections cut",
        through.wire.as_str(),
        grouped(through.up),
        grouped(through.down),
        through.cut,
        through.connections
    )
}

/// When effects were seen, and the fault that these times point to.
fn led_there(outcome: &Outcome, id: &str) -> String {
    let Some(trace) = outcome.traces.iter().find(|trace| trace.id == id) else { return String::new() };
    let fault = trace.fault.and_then(|at| outcome.schedule.get(at)).map(|done| {
        let behind = if trace.seen_ms.is_empty() { "; then" } else { "; between" };
        format!("{behind}, at {}, {}", seconds(done.at_ms), what(done))
    });
    let sent = if trace.sent > 1 { format!("; sent {} times", trace.sent) } else { String::new() };
    format!("{}{sent}{}", times(trace), fault.unwrap_or_default())
}

fn times(trace: &Trace) -> String {
    match (trace.seen_ms.as_slice(), trace.before_ms) {
        ([], None) => String::new(),
        ([], Some(before)) => format!(": the one before it was applied at {}", seconds(before)),
        (seen, _) => {
            let seen: Vec<String> = seen.iter().map(|ms| seconds(*ms)).collect();
            format!(": seen at {}", seen.join(", "))
        }
    }
}

fn what(done: &Done) -> String {
    match done.fault {
        Fault::Kill => format!("copy {} killed", done.copy),
        Fault::Stop { for_ms } => format!("copy {} stopped for {}", done.copy, seconds(for_ms)),
        Fault::Cut => "connections to the database cut".to_owned(),
        Fault::CutBroker => "connections to the broker cut".to_owned(),
    }
}

fn line(done: &Done) -> String {
    let counts = if done.counts { "" } else { " (does not count)" };
    format!("{:>8}  {}, {} messages left{counts}", seconds(done.at_ms), what(done), done.left)
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

//! The time line of a run (pure): one lane for each row, in it the processes and what befell them.
//!
//! ```text
//!  name │ ▬▬▬▬✕  ▬▬▬✕     ▬▬▬▬▬▬▬▬    processes (several side by side below one another)
//!       │   ||||       |||            effects that repeated others
//! ```

use super::chart::{FIGURES, LEFT, RIGHT, WIDTH, fixed, head, legend_at, nice_step};
use super::svg::{Anchor, Mark, Svg, colour, text_width};
use super::{grouped, real, real_u64};
use crate::history::{self, Entry, Event, Wire};
use std::collections::BTreeMap;

const TOP: f64 = 128.0;
const BOTTOM: f64 = 54.0;
/// Height of one process.
const STRIP: f64 = 18.0;

/// The history of one row.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: String,
    pub(super) doubled: u64,
    pub(super) lost: u64,
    pub(super) entries: Vec<Entry>,
}

/// A process from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    child: u32,
    from: u64,
    /// When it began to work, where the history tells it.
    worked: Option<u64>,
    to: u64,
    killed: bool,
    /// Which strip of the lane.
    strip: usize,
}

impl Lane {
    fn end(&self) -> u64 {
        self.entries.iter().map(|entry| entry.at_ms).max().unwrap_or(0)
    }

    /// When its consumers had nothing left to do; its history goes on for as long as the check takes.
    fn rest(&self) -> u64 {
        let drained = self.entries.iter().find(|entry| matches!(entry.event, Event::Drained));
        drained.map_or_else(|| self.end(), |entry| entry.at_ms)
    }

    fn processes(&self) -> Vec<Process> {
        let mut all: Vec<Process> = Vec::new();
        for entry in &self.entries {
            match entry.event {
                Event::Started { child, .. } => {
                    all.push(Process {
                        child,
                        from: entry.at_ms,
                        worked: None,
                        to: self.rest().max(entry.at_ms),
                        killed: false,
                        strip: 0,
                    });
                }
                // Until the first effect, or where nobody waited for it, until there are partitions.
                Event::Assigned { child, .. } => {
                    if let Some(one) = all.iter_mut().find(|one| one.child == child) {
                        one.worked.get_or_insert(entry.at_ms);
                        // It lives on for a moment when all is settled.
                        one.to = one.to.max(entry.at_ms);
                    }
                }
                Event::FirstHandled { child } => {
                    if let Some(one) = all.iter_mut().find(|one| one.child == child) {
                        one.worked = Some(entry.at_ms);
                    }
                }
                Event::Killed { child, .. } | Event::Ended { child, .. } => {
                    if let Some(one) = all.iter_mut().find(|one| one.child == child) {
                        one.to = entry.at_ms;
                        one.killed = matches!(entry.event, Event::Killed { .. });
                    }
                }
                _ => {}
            }
        }
        let mut free: Vec<u64> = Vec::new();
        for one in &mut all {
            one.strip = free.iter().position(|until| *until <= one.from).unwrap_or(free.len());
            if one.strip == free.len() {
                free.push(0);
            }
            free[one.strip] = one.to;
        }
        all
    }

    fn strips(&self) -> usize {
        self.processes().iter().map(|one| one.strip + 1).max().unwrap_or(1)
    }

    fn height(&self) -> f64 {
        (STRIP * real(self.strips()) + 26.0).max(58.0)
    }

    fn count(&self, of: impl Fn(&Event) -> bool) -> u64 {
        u64::try_from(self.entries.iter().filter(|entry| of(&entry.event)).count()).unwrap_or(u64::MAX)
    }

    /// What is written at its right: what it came to, and what befell it.
    fn figures(&self) -> [String; 3] {
        let kills = self.count(|event| matches!(event, Event::Killed { .. }));
        let evictions = self.count(|event| matches!(event, Event::Evicted { .. }));
        let late = self.count(is_late_write);
        let skipped = history::skipped(&self.entries);
        // A program that is not the lab's own tells nothing of these.
        if self.entries.iter().any(|entry| matches!(entry.event, Event::Sent { .. })) {
            let stops = self.count(|event| matches!(event, Event::Stopped { .. }));
            let cuts = self.count(|event| matches!(event, Event::Cut { .. }));
            return [
                format!("{} doubled, {} missing", grouped(self.doubled), grouped(self.lost)),
                format!("{} kills, {} stops", grouped(kills), grouped(stops)),
                format!("{} cuts", grouped(cuts)),
            ];
        }
        [
            format!("{} doubled, {} lost", grouped(self.doubled), grouped(self.lost)),
            format!("{} kills, {} evictions", grouped(kills), grouped(evictions)),
            format!("{} late refused, {} skipped", grouped(late), grouped(skipped)),
        ]
    }
}

fn is_late_write(event: &Event) -> bool {
    late_child(event).is_some()
}

fn late_child(event: &Event) -> Option<u32> {
    match event {
        Event::CommitRefused { child, .. } | Event::LateResultsDropped { child } => Some(*child),
        _ => None,
    }
}

/// What the picture says, in words.
pub(super) fn words(lanes: &[Lane]) -> String {
    let lane = |lane: &Lane| format!("{}: {}", lane.name, lane.figures().join(", "));
    lanes.iter().map(lane).collect::<Vec<_>>().join("; ")
}

/// The picture of all lanes on one clock.
pub(super) fn draw(title: &str, under: &str, lanes: &[Lane]) -> String {
    let height = TOP + lanes.iter().map(Lane::height).sum::<f64>() + BOTTOM;
    let foot = height - BOTTOM;
    let mut svg = Svg::new(WIDTH, height, title, &words(lanes));
    head(&mut svg, title, under);
    legend(&mut svg, lanes);
    let end = lanes.iter().map(Lane::end).max().unwrap_or(0).max(1);
    let step = nice_step(real_u64(end) / 1000.0 / 7.0);
    let end = (real_u64(end) / 1000.0 / step).ceil().max(1.0) * step;
    let x = |ms: u64| LEFT + (RIGHT - LEFT) * (real_u64(ms) / 1000.0 / end).min(1.0);
    let mut top = TOP;
    for (at, lane) in lanes.iter().enumerate() {
        if at % 2 == 1 {
            svg.rect(10.0, top, WIDTH - 20.0, lane.height(), colour::BAND);
        }
        top += lane.height();
    }
    let mut tick = 0.0;
    while tick <= end + step / 2.0 {
        let place = LEFT + (RIGHT - LEFT) * (tick / end).min(1.0);
        svg.line((place, TOP), (place, foot), colour::FAINT, 1.0);
        let digits = usize::from(step < 1.0);
        svg.text((place, foot + 17.0), 12.0, Anchor::Middle, colour::INK, &fixed(tick, digits));
        tick += step;
    }
    let axis = "seconds since the run of the row began";
    svg.text(((LEFT + RIGHT) / 2.0, foot + 39.0), 12.0, Anchor::Middle, colour::GREY, axis);
    let mut top = TOP;
    for lane in lanes {
        draw_lane(&mut svg, lane, top, &x);
        top += lane.height();
    }
    svg.finish()
}

/// Only what there is; two lines at most.
fn legend(svg: &mut Svg, lanes: &[Lane]) {
    enum Sign {
        Bar(f64, &'static str),
        Mark(Mark, &'static str),
    }
    type Is = fn(&Event) -> bool;
    let signs: [(&str, Sign, Is); 12] = [
        ("consumer at work", Sign::Bar(8.0, colour::SKY), |_| true),
        ("started, not at work yet", Sign::Bar(2.0, colour::SKY), |event| {
            matches!(event, Event::FirstHandled { .. } | Event::Assigned { .. })
        }),
        ("stalled", Sign::Bar(8.0, colour::ORANGE), |event| matches!(event, Event::Stalled { .. })),
        ("frozen", Sign::Bar(8.0, colour::GREY), |event| matches!(event, Event::Stopped { .. })),
        ("killed", Sign::Mark(Mark::Cross, colour::INK), |event| matches!(event, Event::Killed { .. })),
        ("all settled", Sign::Mark(Mark::Ring, colour::BLUE), |event| matches!(event, Event::Drained)),
        ("partitions assigned", Sign::Mark(Mark::Triangle, colour::GREEN), |event| {
            matches!(event, Event::Assigned { .. })
        }),
        ("evicted", Sign::Mark(Mark::Diamond, colour::PURPLE), |event| {
            matches!(event, Event::Evicted { .. })
        }),
        ("late write refused", Sign::Mark(Mark::Square, colour::BLUE), is_late_write),
        ("database cut", Sign::Mark(Mark::Bolt, colour::PURPLE), |event| {
            matches!(event, Event::Cut { wire: Wire::Database, .. })
        }),
        ("broker cut", Sign::Mark(Mark::Glass, colour::GREEN), |event| {
            matches!(event, Event::Cut { wire: Wire::Broker, .. })
        }),
        (
            "effect doubled",
            Sign::Mark(Mark::Tick, colour::VERMILLION),
            |event| matches!(event, Event::Repeated { times_ms } if !times_ms.is_empty()),
        ),
    ];
    let (mut x, mut y) = (20.0, 78.0);
    for (text, sign, is) in signs {
        if !lanes.iter().flat_map(|lane| &lane.entries).any(|entry| is(&entry.event)) {
            continue;
        }
        if x + 20.0 + text_width(text, 12.0) > WIDTH - 20.0 {
            (x, y) = (20.0, y + 24.0);
        }
        x = legend_at(svg, x, y, text, |svg, x, y| match sign {
            Sign::Bar(high, paint) => svg.rect(x - 7.0, y - high / 2.0, 16.0, high, paint),
            Sign::Mark(mark, paint) => svg.mark(mark, (x, y), paint),
        });
    }
}

fn draw_lane(svg: &mut Svg, lane: &Lane, top: f64, x: &dyn Fn(u64) -> f64) {
    let middle = top + lane.height() / 2.0;
    svg.bold((LEFT - 12.0, middle + 4.0), 13.0, Anchor::End, colour::INK, &lane.name);
    for (figure, at) in lane.figures().iter().zip([-12.0, 4.0, 20.0]) {
        svg.text((FIGURES, middle + at), 12.0, Anchor::Start, colour::INK, figure);
    }
    let processes = lane.processes();
    let y = |child: u32| {
        let strip = processes.iter().find(|one| one.child == child).map_or(0, |one| one.strip);
        top + 6.0 + STRIP * real(strip)
    };
    for one in &processes {
        let (top, worked) = (y(one.child), one.worked.unwrap_or(one.from));
        svg.rect(x(one.from), top + 6.0, x(worked) - x(one.from), 2.0, colour::SKY);
        svg.rect(x(worked), top + 3.0, (x(one.to) - x(worked)).max(1.0), 8.0, colour::SKY);
    }
    held_still(svg, lane, x, &y);
    // What is rarer lies above what is frequent.
    let marks = lane.entries.iter().filter_map(|entry| match &entry.event {
        Event::Assigned { child, .. } => Some((1, Mark::Triangle, *child, entry.at_ms, colour::GREEN)),
        Event::Evicted { child } => Some((2, Mark::Diamond, *child, entry.at_ms, colour::PURPLE)),
        event => late_child(event).map(|child| (0, Mark::Square, child, entry.at_ms, colour::BLUE)),
    });
    cuts(svg, lane, (top, middle * 2.0 - top), x);
    let mut marks: Vec<_> = marks.collect();
    marks.sort_by_key(|(layer, ..)| *layer);
    let dies = processes.iter().any(|one| one.killed);
    for (_, mark, child, at_ms, paint) in marks {
        // A late write is often refused just when the eviction is noticed, and who was killed is soon replaced: below
        // the bar both are seen.
        let is_below = mark == Mark::Square || (mark == Mark::Triangle && dies);
        let below = if is_below { 15.0 } else { 7.0 };
        svg.mark(mark, (x(at_ms), y(child) + below), paint);
    }
    for one in processes.iter().filter(|one| one.killed) {
        svg.mark(Mark::Cross, (x(one.to), y(one.child) + 7.0), colour::INK);
    }
    if lane.entries.iter().any(|entry| matches!(entry.event, Event::Drained)) {
        svg.mark(Mark::Ring, (x(lane.rest()), top + 13.0), colour::BLUE);
    }
    repeated(svg, lane, top + lane.height() - 12.0, x);
}

/// A cut meets every process of a lane: a line through all of them.
fn cuts(svg: &mut Svg, lane: &Lane, (top, foot): (f64, f64), x: &dyn Fn(u64) -> f64) {
    for entry in &lane.entries {
        let Event::Cut { wire, .. } = entry.event else { continue };
        let (mark, paint) = match wire {
            Wire::Database => (Mark::Bolt, colour::PURPLE),
            Wire::Broker => (Mark::Glass, colour::GREEN),
        };
        let place = x(entry.at_ms);
        svg.line((place, top + 4.0), (place, foot - 24.0), paint, 1.0);
        svg.mark(mark, (place, foot - 22.0), paint);
    }
}

/// Where a process stalled or was stopped: another colour on its bar.
fn held_still(svg: &mut Svg, lane: &Lane, x: &dyn Fn(u64) -> f64, y: &dyn Fn(u32) -> f64) {
    let mut since: BTreeMap<(u32, bool), u64> = BTreeMap::new();
    let mut spans = Vec::new();
    for entry in &lane.entries {
        match entry.event {
            Event::Stalled { child, .. } => _ = since.entry((child, false)).or_insert(entry.at_ms),
            Event::Stopped { child } => _ = since.entry((child, true)).or_insert(entry.at_ms),
            Event::Woke { child, .. } => {
                spans.extend(since.remove(&(child, false)).map(|from| (child, false, from, entry.at_ms)))
            }
            Event::Continued { child } => {
                spans.extend(since.remove(&(child, true)).map(|from| (child, true, from, entry.at_ms)))
            }
            _ => {}
        }
    }
    spans.extend(
        since.into_iter().map(|((child, frozen), from)| (child, frozen, from, lane.rest().max(from))),
    );
    spans.sort_by_key(|(_, frozen, from, _)| (*frozen, *from));
    for (child, frozen, from, to) in spans {
        let paint = if frozen { colour::GREY } else { colour::ORANGE };
        svg.rect(x(from), y(child) + 3.0, (x(to) - x(from)).max(1.0), 8.0, paint);
    }
}

/// Effects that repeated others; many at one place are one tick.
fn repeated(svg: &mut Svg, lane: &Lane, y: f64, x: &dyn Fn(u64) -> f64) {
    let mut last = f64::MIN;
    for entry in &lane.entries {
        let Event::Repeated { times_ms } = &entry.event else { continue };
        for time in times_ms {
            let place = x(*time);
            if place >= last + 1.5 {
                svg.mark(Mark::Tick, (place, y), colour::VERMILLION);
                last = place;
            }
        }
    }
}

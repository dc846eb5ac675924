//! The time line of faults (pure): a lane for each row, in it effects a second, what lasted and what befell.
//!
//! ```text
//!  name │ ▬▬▬▬  ▬▬▬▬▬▬▬▬      ▬▬▬     windows in which rates are measured, and the fault
//!       │ ▃▅▅▅▅▃       ▃▅▅▅▅▅▅▅▅▅     effects a second
//!       │   ▲    ▲                ○   what befell
//! ```

use super::chart::{FIGURES, LEFT, RIGHT, WIDTH, head, legend_at, nice_step};
use super::svg::{Anchor, Mark, Svg, colour, text_width};
use super::{real, real_u64};
use crate::faults::record::{self, Phase, Seen};
use crate::history::{Entry, Event};

const TOP: f64 = 128.0;
const BOTTOM: f64 = 54.0;
const LANE: f64 = 104.0;
/// Where bars stand in a lane, and how high they grow.
const FOOT: f64 = 78.0;
const HIGH: f64 = 52.0;
/// Bars of the whole width.
const BARS: usize = 110;

/// The history of one row.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: String,
    /// Under the name.
    pub(super) about: String,
    /// At its right.
    pub(super) figures: [String; 3],
    pub(super) entries: Vec<Entry>,
}

/// What lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lasting {
    Window,
    Fault,
}

impl Lane {
    fn end(&self) -> u64 {
        self.entries.iter().map(|entry| entry.at_ms).max().unwrap_or(0)
    }

    /// Windows and faults, from when to when.
    fn lasting(&self) -> Vec<(Lasting, u64, u64)> {
        let mut spans: Vec<(Lasting, u64, u64)> = Vec::new();
        let mut open: Option<(Lasting, u64)> = None;
        for (at_ms, phase) in record::phases(&self.entries) {
            let now = match phase {
                Phase::Before | Phase::After => Some(Lasting::Window),
                Phase::Fault | Phase::Half | Phase::Ending => Some(Lasting::Fault),
                Phase::Returned | Phase::Rest => None,
            };
            if let Some((what, since)) = open.filter(|(what, _)| Some(*what) != now) {
                spans.push((what, since, at_ms));
                open = None;
            }
            open = open.or(now.map(|what| (what, at_ms)));
        }
        spans.extend(open.map(|(what, since)| (what, since, self.end())));
        spans
    }

    /// Marks, in the order in which they are drawn.
    fn marks(&self) -> Vec<(Mark, u64, &'static str)> {
        let of = |entry: &Entry| match &entry.event {
            Event::Fault(Seen::Asked { .. }) => Some((Mark::Triangle, entry.at_ms, colour::PURPLE)),
            Event::Ended { code, .. } if *code != Some(0) => Some((Mark::Cross, entry.at_ms, colour::INK)),
            Event::Fault(Seen::Round { taken_over: true }) => {
                Some((Mark::Diamond, entry.at_ms, colour::GREEN))
            }
            Event::Drained => Some((Mark::Ring, entry.at_ms, colour::BLUE)),
            _ => None,
        };
        self.entries.iter().filter_map(of).collect()
    }

    fn repeated(&self) -> impl Iterator<Item = u64> {
        let of = |entry: &Entry| match &entry.event {
            Event::Repeated { times_ms } => times_ms.clone(),
            _ => Vec::new(),
        };
        self.entries.iter().flat_map(of)
    }

    /// Effects of each stretch of the width, of equal length; between two looks they are taken as even. The rest
    /// is drained without work: so fast that everything else would be too low to be seen.
    fn bars(&self, step_ms: f64, count: usize) -> Vec<f64> {
        let phases = record::phases(&self.entries);
        let rest =
            phases.iter().find(|(_, phase)| *phase == Phase::Rest).map_or(u64::MAX, |(at_ms, _)| *at_ms);
        let mut looks = record::progress(&self.entries);
        looks.retain(|(at_ms, _)| *at_ms <= rest);
        let mut bars = vec![0.0; count];
        for pair in looks.windows(2) {
            let (from, to) = (real_u64(pair[0].0), real_u64(pair[1].0));
            let effects = real_u64(pair[1].1.saturating_sub(pair[0].1));
            for (at, bar) in bars.iter_mut().enumerate() {
                let (left, right) = (step_ms * real(at), step_ms * real(at + 1));
                let shared = (to.min(right) - from.max(left)).max(0.0);
                *bar += effects * shared / (to - from).max(1.0);
            }
        }
        bars
    }
}

/// What the picture says, in words.
pub(super) fn words(lanes: &[Lane]) -> String {
    let lane = |lane: &Lane| format!("{}: {}", lane.name, lane.figures.join(", "));
    lanes.iter().map(lane).collect::<Vec<_>>().join("; ")
}

/// The picture of all lanes on one clock.
pub(super) fn draw(title: &str, under: &str, fault: &str, lanes: &[Lane]) -> String {
    let height = TOP + LANE * real(lanes.len()) + BOTTOM;
    let foot = height - BOTTOM;
    let mut svg = Svg::new(WIDTH, height, title, &words(lanes));
    head(&mut svg, title, under);
    legend(&mut svg, fault, lanes);
    let last = lanes.iter().map(Lane::end).max().unwrap_or(0).max(1);
    let step = nice_step(real_u64(last) / 1000.0 / 7.0);
    let end = (real_u64(last) / 1000.0 / step).ceil().max(1.0) * step;
    for at in (1..lanes.len()).step_by(2) {
        svg.rect(10.0, TOP + LANE * real(at), WIDTH - 20.0, LANE, colour::BAND);
    }
    let mut tick = 0.0;
    while tick <= end + step / 2.0 {
        let place = LEFT + (RIGHT - LEFT) * (tick / end).min(1.0);
        svg.line((place, TOP), (place, foot), colour::FAINT, 1.0);
        let text = if step < 1.0 { format!("{tick:.1}") } else { format!("{tick:.0}") };
        svg.text((place, foot + 17.0), 12.0, Anchor::Middle, colour::INK, &text);
        tick += step;
    }
    let axis = "seconds since the row began";
    svg.text((f64::midpoint(LEFT, RIGHT), foot + 39.0), 12.0, Anchor::Middle, colour::GREY, axis);
    for (at, lane) in lanes.iter().enumerate() {
        draw_lane(&mut svg, lane, TOP + LANE * real(at), end * 1000.0);
    }
    svg.finish()
}

fn draw_lane(svg: &mut Svg, lane: &Lane, top: f64, end_ms: f64) {
    let x = |ms: u64| LEFT + (RIGHT - LEFT) * (real_u64(ms) / end_ms).min(1.0);
    let middle = top + LANE / 2.0;
    svg.bold((LEFT - 12.0, middle - 3.0), 13.0, Anchor::End, colour::INK, &lane.name);
    svg.text((LEFT - 12.0, middle + 13.0), 10.5, Anchor::End, colour::GREY, &lane.about);
    for (figure, at) in lane.figures.iter().zip([-14.0, 4.0, 22.0]) {
        svg.text((FIGURES, middle + at), 12.0, Anchor::Start, colour::INK, figure);
    }
    for (what, from, to) in lane.lasting() {
        let (y, paint) = match what {
            Lasting::Window => (top + 8.0, colour::GREEN),
            Lasting::Fault => (top + 13.0, colour::ORANGE),
        };
        svg.rect(x(from), y, (x(to) - x(from)).max(1.0), 6.0, paint);
    }
    let bars = lane.bars(end_ms / real(BARS), BARS);
    let most = bars.iter().copied().fold(0.0, f64::max);
    let width = (RIGHT - LEFT) / real(BARS);
    for (at, bar) in bars.iter().enumerate().filter(|(_, bar)| **bar > 0.0) {
        let high = HIGH * bar / most;
        svg.rect(LEFT + width * real(at) + 0.4, top + FOOT - high, width - 0.8, high, colour::SKY);
    }
    svg.line((LEFT, top + FOOT), (RIGHT, top + FOOT), colour::INK, 0.8);
    let mut last = f64::MIN;
    for place in lane.repeated().map(x) {
        if place >= last + 1.5 {
            svg.mark(Mark::Tick, (place, top + FOOT + 4.0), colour::VERMILLION);
            last = place;
        }
    }
    for (mark, at_ms, paint) in lane.marks() {
        // All is settled about when the last ones are asked to end.
        let below = if mark == Mark::Ring { 0.0 } else { 14.0 };
        svg.mark(mark, (x(at_ms), top + FOOT + below), paint);
    }
}

/// Only what there is; two lines at most.
fn legend(svg: &mut Svg, fault: &str, lanes: &[Lane]) {
    let any = |of: &dyn Fn(&Lane) -> bool| lanes.iter().any(of);
    let lasts = |what: Lasting| any(&|lane| lane.lasting().iter().any(|span| span.0 == what));
    let marked = |mark: Mark| any(&|lane| lane.marks().iter().any(|one| one.0 == mark));
    let mut bars: Vec<(f64, &str, &str)> =
        vec![(12.0, colour::SKY, "effects a second, each row's own scale, until the rest is drained")];
    if lasts(Lasting::Window) {
        bars.push((6.0, colour::GREEN, "rate measured"));
    }
    if lasts(Lasting::Fault) {
        bars.push((6.0, colour::ORANGE, fault));
    }
    let marks = [
        (Mark::Triangle, colour::PURPLE, "SIGTERM to one"),
        (Mark::Cross, colour::INK, "one ended otherwise than with 0"),
        (Mark::Diamond, colour::GREEN, "everything was taken over"),
        (Mark::Ring, colour::BLUE, "all settled"),
    ];
    let mut marks: Vec<_> = marks.into_iter().filter(|(mark, ..)| marked(*mark)).collect();
    if any(&|lane| lane.repeated().next().is_some()) {
        marks.push((Mark::Tick, colour::VERMILLION, "effect doubled"));
    }
    let (mut x, mut y) = (20.0, 78.0);
    let mut place = |svg: &mut Svg, text: &str, draw: &dyn Fn(&mut Svg, f64, f64)| {
        if x + 20.0 + text_width(text, 12.0) > WIDTH - 20.0 {
            (x, y) = (20.0, y + 24.0);
        }
        x = legend_at(svg, x, y, text, |svg, x, y| draw(svg, x, y));
    };
    for (high, paint, text) in bars {
        place(svg, text, &|svg, x, y| svg.rect(x - 7.0, y - high / 2.0, 14.0, high, paint));
    }
    for (mark, paint, text) in marks {
        place(svg, text, &|svg, x, y| svg.mark(mark, (x, y), paint));
    }
}

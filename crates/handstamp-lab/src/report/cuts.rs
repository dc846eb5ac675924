//! Cuts by their position (pure): where a transaction was cut, and whether it was committed all the same.
//!
//! ```text
//!  name   │          ▄▄▄█████   up: committed
//!  way    │──────────────────
//!         │ ▀▀▀▀▀ ▀▀▀▀          down: not committed, and no effect sent yet
//!         │ before │ COMMIT exchange and behind it
//! ```
//!
//! Up and down say what the colours say.

use super::chart::{FIGURES, LEFT, RIGHT, WIDTH, head, legend_at, nice_step};
use super::svg::{Anchor as At, Svg, colour};
use super::{grouped, real, real_u64};
use crate::faults::commit::{Anchor, BEHIND, Came, Layout, Struck};
use crate::proxy::Way;

const TOP: f64 = 104.0;
const PANEL: f64 = 168.0;
/// Where the zero line lies in a panel, and how far bars go from it.
const ZERO: f64 = 62.0;
const HIGH: f64 = 50.0;
/// The part before the exchange has so much of the width.
const BEFORE: f64 = 130.0;
const GAP: f64 = 10.0;
/// Bars are at least so wide.
const BAR: f64 = 4.0;

/// The cuts of one consumer.
#[derive(Debug)]
pub(super) struct Cuts {
    pub(super) name: String,
    pub(super) layout: Layout,
    pub(super) blows: Vec<(Struck, Came)>,
}

/// Cuts at neighbouring positions.
#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    committed: usize,
    not_committed: usize,
    without_effect: usize,
}

impl Bin {
    fn add(&mut self, came: Came) {
        match came {
            Came::Committed => self.committed += 1,
            Came::NotCommitted => self.not_committed += 1,
            Came::WithoutEffect => self.without_effect += 1,
            // A row with one of these proves nothing.
            Came::Unexplained => {}
        }
    }

    fn most(&self) -> usize {
        self.committed.max(self.not_committed + self.without_effect)
    }
}

/// A stretch of positions on the axis.
struct Part {
    anchor: Anchor,
    from: f64,
    to: f64,
    /// Positions of a bin, and bins.
    each: u64,
    bins: Vec<Bin>,
}

impl Part {
    fn of(cuts: &Cuts, way: Way, anchor: Anchor) -> Self {
        let (before, exchange) = cuts.layout.of(way);
        let (from, to, bytes) = match anchor {
            Anchor::Begin => (LEFT, LEFT + BEFORE, before),
            Anchor::Commit => (LEFT + BEFORE + GAP, RIGHT, exchange + BEHIND),
        };
        let positions = bytes + 1;
        let mut each = 1;
        while (to - from) / real_u64(positions.div_ceil(each)) < BAR {
            each += 1;
        }
        let count = usize::try_from(positions.div_ceil(each)).unwrap_or(1);
        let mut bins = vec![Bin::default(); count];
        let here = cuts.blows.iter().filter(|(cut, _)| (cut.target.way, cut.target.anchor) == (way, anchor));
        for (cut, came) in here {
            // What was cut further behind than planned stands at the end.
            let at = usize::try_from(cut.target.offset / each).unwrap_or(count).min(count - 1);
            bins[at].add(*came);
        }
        Self { anchor, from, to, each, bins }
    }

    fn x(&self, position: u64) -> f64 {
        self.from + (self.to - self.from) * real_u64(position) / (real(self.bins.len()) * real_u64(self.each))
    }

    fn draw(&self, svg: &mut Svg, top: f64, most: usize, exchange: u64) {
        let zero = top + ZERO;
        if self.anchor == Anchor::Commit {
            svg.rect(self.from, zero - HIGH, self.x(exchange + 1) - self.from, HIGH * 2.0, colour::BAND);
        }
        let high = |count: usize| HIGH * real(count) / real(most.max(1));
        let width = (self.to - self.from) / real(self.bins.len());
        for (at, bin) in self.bins.iter().enumerate() {
            let x = self.from + width * real(at);
            let bar = |svg: &mut Svg, y: f64, high: f64, paint| {
                if high > 0.0 {
                    svg.rect(x + 0.5, y, width - 1.0, high, paint);
                }
            };
            bar(svg, zero - high(bin.committed), high(bin.committed), colour::BLUE);
            bar(svg, zero, high(bin.not_committed), colour::ORANGE);
            bar(svg, zero + high(bin.not_committed), high(bin.without_effect), colour::GREY);
        }
        svg.line((self.from, zero), (self.to, zero), colour::INK, 1.0);
        let bytes = real(self.bins.len()) * real_u64(self.each);
        let step = nice_step(bytes / if self.anchor == Anchor::Begin { 2.0 } else { 6.0 });
        let mut tick = 0.0;
        // One at the very end would stand over the next part's first.
        while tick < bytes * 0.9 {
            let x = self.from + (self.to - self.from) * tick / bytes;
            svg.line((x, zero + HIGH), (x, zero + HIGH + 4.0), colour::INK, 1.0);
            svg.text((x, zero + HIGH + 17.0), 11.0, At::Middle, colour::INK, &format!("{tick:.0}"));
            tick += step;
        }
        let what = match self.anchor {
            Anchor::Begin => "bytes from BEGIN".to_owned(),
            Anchor::Commit => format!("COMMIT exchange ({exchange} bytes, shaded) and behind it"),
        };
        let middle = f64::midpoint(self.from, self.to);
        svg.text((middle, zero + HIGH + 34.0), 11.0, At::Middle, colour::GREY, &what);
    }
}

const WAYS: [(Way, &str); 2] = [(Way::Up, "to the server"), (Way::Down, "to the consumer")];

fn figures(cuts: &Cuts, of: impl Fn(&Struck) -> bool) -> [String; 3] {
    let mut sum = Bin::default();
    cuts.blows.iter().filter(|(cut, _)| of(cut)).for_each(|(_, came)| sum.add(*came));
    let number = |count: usize| grouped(u64::try_from(count).unwrap_or(u64::MAX));
    [
        format!("{} committed", number(sum.committed)),
        format!("{} not committed", number(sum.not_committed)),
        format!("{} no effect sent yet", number(sum.without_effect)),
    ]
}

/// What the picture says, in words.
pub(super) fn words(all: &[Cuts]) -> String {
    let one = |cuts: &Cuts| format!("{}: {}", cuts.name, figures(cuts, |_| true).join(", "));
    all.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The picture: a panel for each consumer and direction.
pub(super) fn draw(title: &str, under: &str, all: &[Cuts]) -> String {
    let height = TOP + PANEL * real(all.len() * WAYS.len());
    let mut svg = Svg::new(WIDTH, height, title, &words(all));
    head(&mut svg, title, under);
    let mut x = 20.0;
    for (paint, what) in [
        (colour::BLUE, "committed (up)"),
        (colour::ORANGE, "not committed (down)"),
        (colour::GREY, "no effect sent yet (below that)"),
    ] {
        x = legend_at(&mut svg, x, 78.0, what, |svg, x, y| svg.rect(x - 6.0, y - 6.0, 12.0, 12.0, paint));
    }
    let mut top = TOP;
    for cuts in all {
        for (way, what) in WAYS {
            let parts = [Anchor::Begin, Anchor::Commit].map(|anchor| Part::of(cuts, way, anchor));
            let most = parts.iter().flat_map(|part| &part.bins).map(Bin::most).max().unwrap_or(0);
            for part in &parts {
                part.draw(&mut svg, top, most, cuts.layout.of(way).1);
            }
            let zero = top + ZERO;
            svg.bold((LEFT - 12.0, zero - 3.0), 13.0, At::End, colour::INK, &cuts.name);
            svg.text((LEFT - 12.0, zero + 13.0), 11.0, At::End, colour::GREY, what);
            for (figure, at) in figures(cuts, |cut| cut.target.way == way).iter().zip([-16.0, 4.0, 24.0]) {
                svg.text((FIGURES, zero + at), 12.0, At::Start, colour::INK, figure);
            }
            top += PANEL;
        }
    }
    svg.finish()
}

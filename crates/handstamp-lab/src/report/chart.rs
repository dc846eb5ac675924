//! Bar charts of the reports (pure): a row for each subject, names on the left, figures in a column on the
//! right, so that no text depends on where a bar ends.
//!
//! Zero is a place of its own on every scale: a ring on the left edge, never a bar too thin to be seen.

use super::svg::{Anchor, Mark, Svg, colour, text_width};
use super::{grouped, real, real_u64};

pub(super) const WIDTH: f64 = 960.0;
/// Where bars begin and end.
pub(super) const LEFT: f64 = 260.0;
pub(super) const RIGHT: f64 = 700.0;
/// Where figures begin.
pub(super) const FIGURES: f64 = 718.0;
/// What is above the first row.
pub(super) const TOP: f64 = 112.0;
/// What is below the last row.
pub(super) const BOTTOM: f64 = 54.0;

/// Median, least and most of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// In words, with so many digits; one figure alone where all are the same.
    pub(super) fn words(self, digits: usize) -> String {
        let figure = |value: f64| fixed(value, digits);
        if self.min.to_bits() == self.max.to_bits() {
            return figure(self.median);
        }
        format!("{} ({}–{})", figure(self.median), figure(self.min), figure(self.max))
    }
}

/// A figure with its thousands apart.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), grouped);
    rest.map_or(whole.clone(), |rest| format!("{whole}.{rest}"))
}

/// One bar of a row.
#[derive(Debug, Clone)]
pub(super) struct Bar {
    /// What it is; empty where the legend is enough.
    pub(super) what: &'static str,
    pub(super) colour: &'static str,
    pub(super) spread: Spread,
    /// The published figure.
    pub(super) reference: Option<Spread>,
    /// More to say behind the figure.
    pub(super) more: String,
}

/// One row.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    /// What it is, in small letters.
    pub(super) about: String,
    pub(super) bars: Vec<Bar>,
}

/// How values become places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Each step the same amount.
    Linear,
    /// 0, 1, and then each step ten times the one before.
    Tens,
}

/// A chart.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    /// Under the title.
    pub(super) under: String,
    pub(super) axis: String,
    /// Colours and what they mean.
    pub(super) legend: Vec<(&'static str, String)>,
    pub(super) scale: Scale,
    pub(super) digits: usize,
    /// The bars of a row stand one behind the other instead of one below the other.
    pub(super) stacked: bool,
    pub(super) rows: Vec<Row>,
}

/// Places of values, and the values that are written at the axis.
struct Axis {
    scale: Scale,
    end: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(scale: Scale, most: f64) -> Self {
        match scale {
            Scale::Tens => {
                let mut ticks = vec![0.0, 1.0, 10.0];
                let mut last = 10.0;
                while last < most {
                    last *= 10.0;
                    ticks.push(last);
                }
                Self { scale, end: last, ticks }
            }
            Scale::Linear => {
                let step = nice_step(most / 6.0);
                let steps = (most / step).ceil().max(1.0);
                let ticks = std::iter::successors(Some(0.0), |at| Some(at + 1.0));
                let ticks = ticks.take_while(|at| *at <= steps).map(|at| at * step).collect();
                Self { scale, end: steps * step, ticks }
            }
        }
    }

    fn x(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => value / self.end,
            Scale::Tens => value.ln_1p() / self.end.ln_1p(),
        };
        LEFT + (RIGHT - LEFT) * part.clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 times a power of ten, at least so much.
pub(super) fn nice_step(least: f64) -> f64 {
    if least <= 0.0 || !least.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|by| by * power).find(|step| *step >= least).unwrap_or(least)
}

/// Title, what is under it, and the legend.
pub(super) fn head(svg: &mut Svg, title: &str, under: &str) {
    svg.bold((20.0, 30.0), 17.0, Anchor::Start, colour::INK, title);
    svg.text((20.0, 51.0), 12.0, Anchor::Start, colour::GREY, under);
}

/// One entry of a legend after the other; returns where the next one begins.
pub(super) fn legend_at(
    svg: &mut Svg,
    x: f64,
    y: f64,
    text: &str,
    mark: impl FnOnce(&mut Svg, f64, f64),
) -> f64 {
    mark(svg, x + 7.0, y - 4.0);
    svg.text((x + 20.0, y), 12.0, Anchor::Start, colour::INK, text);
    x + 20.0 + text_width(text, 12.0) + 14.0
}

const BAR: f64 = 15.0;

impl Chart {
    fn row_height(&self) -> f64 {
        let bars =
            self.rows.iter().map(|row| if self.stacked { 1 } else { row.bars.len() }).max().unwrap_or(1);
        (real(bars) * (BAR + 4.0) + 8.0).max(42.0)
    }

    fn most(&self) -> f64 {
        let row = |row: &Row| {
            let bars = row.bars.iter().map(|bar| bar.spread.max);
            let bars = if self.stacked { bars.sum() } else { bars.fold(0.0, f64::max) };
            let references = row.bars.iter().filter_map(|bar| bar.reference).map(|spread| spread.max);
            references.fold(bars, f64::max)
        };
        self.rows.iter().map(row).fold(0.0, f64::max)
    }

    /// What the picture says, in words.
    pub(super) fn words(&self) -> String {
        let row = |row: &Row| {
            let bars: Vec<String> = row
                .bars
                .iter()
                .map(|bar| {
                    format!("{} {}{}", bar.what, bar.spread.words(self.digits), bar.more).trim().to_owned()
                })
                .collect();
            format!("{}: {}", row.name, bars.join(", "))
        };
        self.rows.iter().map(row).collect::<Vec<_>>().join("; ")
    }

    /// The picture.
    pub(super) fn draw(&self) -> String {
        let height = TOP + self.row_height() * real(self.rows.len()) + BOTTOM;
        let mut svg = Svg::new(WIDTH, height, &self.title, &self.words());
        head(&mut svg, &self.title, &self.under);
        let mut x = 20.0;
        for (colour, what) in &self.legend {
            x = legend_at(&mut svg, x, 78.0, what, |svg, x, y| {
                svg.rect(x - 6.0, y - 6.0, 12.0, 12.0, colour)
            });
        }
        let any = |of: &dyn Fn(&Bar) -> bool| self.rows.iter().flat_map(|row| &row.bars).any(of);
        if any(&|bar| bar.spread.median <= 0.0) {
            x = legend_at(&mut svg, x, 78.0, "zero", |svg, x, y| svg.mark(Mark::Ring, (x, y), colour::GREY));
        }
        if any(&|bar| bar.shown_reference().is_some()) {
            // The tens are counts, where a mark on a ring would hide it.
            let what = match self.scale {
                Scale::Tens => "published lab, where it is not zero",
                Scale::Linear => "published lab",
            };
            legend_at(&mut svg, x, 78.0, what, |svg, x, y| {
                svg.mark(Mark::Diamond, (x, y), colour::INK);
            });
        }
        let axis = Axis::of(self.scale, self.most());
        self.grid(&mut svg, &axis, height - BOTTOM);
        for (at, row) in self.rows.iter().enumerate() {
            self.row(&mut svg, &axis, row, TOP + self.row_height() * real(at));
        }
        svg.finish()
    }

    fn grid(&self, svg: &mut Svg, axis: &Axis, foot: f64) {
        for at in (1..self.rows.len()).step_by(2) {
            let height = self.row_height();
            svg.rect(10.0, TOP + height * real(at), WIDTH - 20.0, height, colour::BAND);
        }
        for tick in &axis.ticks {
            let x = axis.x(*tick);
            svg.line((x, TOP - 4.0), (x, foot), colour::FAINT, 1.0);
            svg.text((x, foot + 17.0), 12.0, Anchor::Middle, colour::INK, &fixed(*tick, 0));
        }
        svg.line((LEFT, TOP - 4.0), (LEFT, foot), colour::INK, 1.2);
        svg.text(((LEFT + RIGHT) / 2.0, foot + 39.0), 12.0, Anchor::Middle, colour::GREY, &self.axis);
    }

    fn row(&self, svg: &mut Svg, axis: &Axis, row: &Row, top: f64) {
        let middle = top + self.row_height() / 2.0;
        if row.about.is_empty() {
            svg.bold((LEFT - 12.0, middle + 4.0), 13.0, Anchor::End, colour::INK, &row.name);
        } else {
            svg.bold((LEFT - 12.0, middle - 3.0), 13.0, Anchor::End, colour::INK, &row.name);
            svg.text((LEFT - 12.0, middle + 13.0), 10.5, Anchor::End, colour::GREY, &row.about);
        }
        let lines = if self.stacked { 1 } else { row.bars.len() };
        let first = middle - real(lines) * (BAR + 4.0) / 2.0 + 2.0;
        let mut from = 0.0;
        let mut figures = Vec::new();
        for (at, bar) in row.bars.iter().enumerate() {
            let y = if self.stacked { first } else { first + real(at) * (BAR + 4.0) };
            bar.draw(svg, axis, from, y);
            let figure = format!("{} {}{}", bar.what, bar.spread.words(self.digits), bar.more);
            if self.stacked {
                from += bar.spread.median;
                figures.push(figure);
            } else {
                svg.text((FIGURES, y + BAR - 3.0), 12.0, Anchor::Start, colour::INK, figure.trim());
            }
        }
        // After all bars, so that none covers them.
        for (at, bar) in row.bars.iter().enumerate() {
            let y = if self.stacked { first } else { first + real(at) * (BAR + 4.0) };
            if let Some(reference) = bar.shown_reference() {
                svg.mark(Mark::Diamond, (axis.x(reference), y + BAR / 2.0), colour::INK);
            }
        }
        if self.stacked {
            svg.bold((FIGURES, middle - 3.0), 13.0, Anchor::Start, colour::INK, &fixed(from, self.digits));
            svg.text((FIGURES, middle + 13.0), 10.5, Anchor::Start, colour::GREY, &figures.join(", "));
        }
    }
}

impl Bar {
    fn draw(&self, svg: &mut Svg, axis: &Axis, from: f64, y: f64) {
        let middle = y + BAR / 2.0;
        let (start, end) = (axis.x(from), axis.x(from + self.spread.median));
        if self.spread.median > 0.0 {
            svg.rect(start, y, end - start, BAR, self.colour);
        } else {
            svg.mark(Mark::Ring, (start, middle), self.colour);
        }
        if self.spread.max > self.spread.min {
            let (min, max) = (axis.x(from + self.spread.min), axis.x(from + self.spread.max));
            svg.line((min, middle), (max, middle), colour::INK, 1.4);
            for x in [min, max] {
                svg.line((x, middle - 4.0), (x, middle + 4.0), colour::INK, 1.4);
            }
        }
    }

    /// A mark on the zero of a ring would hide the ring.
    fn shown_reference(&self) -> Option<f64> {
        let reference = self.reference?.median;
        (reference > 0.0).then_some(reference)
    }
}

impl From<(u64, u64, u64)> for Spread {
    fn from((median, min, max): (u64, u64, u64)) -> Self {
        Self { median: real_u64(median), min: real_u64(min), max: real_u64(max) }
    }
}

//! A grid (pure): rows with a name and what it is about, columns with a title, in each cell a few letters on
//! a ground that says how it stands, and a mark that says so without colour.

use super::chart::{head, legend_at};
use super::real;
use super::svg::{Anchor, Mark, Svg, colour};

const WIDTH: f64 = 960.0;
/// Where the columns begin and end.
const LEFT: f64 = 420.0;
const RIGHT: f64 = 944.0;
const TOP: f64 = 126.0;
const ROW: f64 = 40.0;
const FOOT: f64 = 16.0;

/// How a cell stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stands {
    /// Nothing doubled, nothing lost.
    Held,
    /// A control did the harm that it must.
    Control,
    /// Something doubled or got lost that must not.
    Violated,
    /// The cell proves nothing.
    Nothing,
    /// There is no such cell.
    None,
}

impl Stands {
    /// Those that a legend explains.
    const SHOWN: [Self; 4] = [Self::Held, Self::Control, Self::Violated, Self::Nothing];

    fn words(self) -> &'static str {
        match self {
            Self::Held => "nothing doubled or lost",
            Self::Control => "control: did harm, as it must",
            Self::Violated => "VIOLATED",
            Self::Nothing => "proves nothing",
            Self::None => "",
        }
    }

    fn ground(self) -> &'static str {
        match self {
            Self::Held => colour::SKY,
            Self::Control => colour::ORANGE,
            Self::Violated => colour::VERMILLION,
            Self::Nothing => colour::FAINT,
            Self::None => colour::WHITE,
        }
    }

    fn mark(self) -> Option<Mark> {
        match self {
            Self::Held => Some(Mark::Ring),
            Self::Control => Some(Mark::Triangle),
            Self::Violated => Some(Mark::Cross),
            Self::Nothing => Some(Mark::Diamond),
            Self::None => None,
        }
    }
}

/// A row.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    /// What it is, in small letters.
    pub(super) about: String,
    /// A cell for each column.
    pub(super) cells: Vec<(String, Stands)>,
}

/// A grid.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    pub(super) title: String,
    pub(super) under: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Grid {
    /// What the picture says, in words.
    pub(super) fn words(&self) -> String {
        let row = |row: &Row| {
            let cells: Vec<String> =
                self.columns.iter().zip(&row.cells).map(|(on, (text, _))| format!("{on} {text}")).collect();
            format!("{}: {}", row.name, cells.join(", "))
        };
        self.rows.iter().map(row).collect::<Vec<_>>().join("; ")
    }

    /// The picture.
    pub(super) fn draw(&self) -> String {
        let height = TOP + ROW * real(self.rows.len()) + FOOT;
        let mut svg = Svg::new(WIDTH, height, &self.title, &self.words());
        head(&mut svg, &self.title, &self.under);
        let there = |stands: &Stands| self.rows.iter().flat_map(|row| &row.cells).any(|(_, is)| is == stands);
        let mut x = 20.0;
        for stands in Stands::SHOWN.into_iter().filter(there) {
            x = legend_at(&mut svg, x, 82.0, stands.words(), |svg, x, y| {
                cell(svg, (x - 9.0, y - 9.0), 18.0, 18.0, stands)
            });
        }
        let width = (RIGHT - LEFT) / real(self.columns.len().max(1));
        for (at, column) in self.columns.iter().enumerate() {
            let middle = LEFT + width * (real(at) + 0.5);
            svg.bold((middle, TOP - 10.0), 12.0, Anchor::Middle, colour::INK, column);
        }
        for (at, row) in self.rows.iter().enumerate() {
            let top = TOP + ROW * real(at);
            if at % 2 == 1 {
                svg.rect(10.0, top, WIDTH - 20.0, ROW, colour::BAND);
            }
            svg.bold((LEFT - 14.0, top + 17.0), 13.0, Anchor::End, colour::INK, &row.name);
            svg.text((LEFT - 14.0, top + 32.0), 10.5, Anchor::End, colour::GREY, &row.about);
            for (column, (text, stands)) in row.cells.iter().enumerate() {
                let left = LEFT + width * real(column) + 3.0;
                cell(&mut svg, (left, top + 4.0), width - 6.0, ROW - 8.0, *stands);
                let (x, weight) = (left + 25.0, *stands == Stands::Violated);
                let place = (x, top + ROW / 2.0 + 4.5);
                if weight {
                    svg.bold(place, 11.0, Anchor::Start, colour::INK, text);
                } else {
                    svg.text(place, 11.0, Anchor::Start, colour::INK, text);
                }
            }
        }
        svg.finish()
    }
}

/// Ground and mark of a cell.
fn cell(svg: &mut Svg, at: (f64, f64), width: f64, height: f64, stands: Stands) {
    svg.rect(at.0, at.1, width, height, stands.ground());
    if let Some(mark) = stands.mark() {
        let place = (at.0 + (width / 2.0).min(15.0), at.1 + height / 2.0);
        svg.mark(mark, place, colour::INK);
    }
}

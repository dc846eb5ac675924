//! A small SVG writer: shapes and text at places, each picture with a title and a description for those who
//! cannot see it.
//!
//! Why not a plotting library: none of those looked at writes titles and descriptions or lets a test see
//! where every text stands, and all bring more code than these few shapes.

use std::fmt::Write as _;

/// Colours that people with any common colour blindness tell apart (Okabe and Ito).
pub(super) mod colour {
    /// Doubled effects.
    pub(crate) const VERMILLION: &str = "#d55e00";
    /// Lost messages; heap.
    pub(crate) const BLUE: &str = "#0072b2";
    /// Indexes; running processes.
    pub(crate) const SKY: &str = "#56b4e9";
    /// Assignments; rates.
    pub(crate) const GREEN: &str = "#009e73";
    /// Evictions; cuts.
    pub(crate) const PURPLE: &str = "#aa4499";
    /// Stalls.
    pub(crate) const ORANGE: &str = "#e69f00";
    /// Text and axes.
    pub(crate) const INK: &str = "#222222";
    /// Text of less weight.
    pub(crate) const GREY: &str = "#595959";
    /// Lines of the grid.
    pub(crate) const FAINT: &str = "#dddddd";
    /// Every other row.
    pub(crate) const BAND: &str = "#f5f5f5";
    /// The ground.
    pub(crate) const WHITE: &str = "#ffffff";
}

/// Where a text stands relative to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A mark of the time line, distinct also without its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Cross,
    Triangle,
    Diamond,
    Square,
    Ring,
    Tick,
    Bolt,
    Glass,
}

/// A picture being drawn; lengths are pixels.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    title: String,
    describe: String,
    body: String,
}

/// The most a text of this size takes, in the widest of the usual fonts (DejaVu Sans).
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(letter_width).sum::<f64>() * size
}

fn letter_width(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | 'I' | 'J' | '\'' => 0.3,
        ' ' | '.' | ',' | ':' | ';' => 0.34,
        'f' | 'r' | 't' | '(' | ')' | '[' | ']' | '/' | '-' | '"' | '!' => 0.42,
        'c' | 's' | 'z' => 0.56,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '+' | '=' | '<' | '>' | '×' | '→' | '…' => 1.0,
        'A'..='Z' => 0.79,
        _ => 0.64,
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no place for them, not even written as numbers.
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

impl Svg {
    /// An empty picture.
    pub(super) fn new(width: f64, height: f64, title: &str, describe: &str) -> Self {
        let mut svg = Self {
            width,
            height,
            title: title.to_owned(),
            describe: describe.to_owned(),
            body: String::new(),
        };
        svg.rect(0.0, 0.0, width, height, colour::WHITE);
        svg
    }

    // Writing to a string cannot fail; so in all of these.
    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}" fill="{fill}"/>"#,
            width.max(0.0)
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{stroke}" stroke-width="{width}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub(super) fn text(&mut self, at: (f64, f64), size: f64, anchor: Anchor, fill: &str, text: &str) {
        self.write_text(at, size, anchor, fill, "", text);
    }

    pub(super) fn bold(&mut self, at: (f64, f64), size: f64, anchor: Anchor, fill: &str, text: &str) {
        self.write_text(at, size, anchor, fill, r#" font-weight="600""#, text);
    }

    fn write_text(
        &mut self,
        at: (f64, f64),
        size: f64,
        anchor: Anchor,
        fill: &str,
        weight: &str,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{:.1}" y="{:.1}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{}</text>"#,
            at.0,
            at.1,
            escaped(text)
        );
    }

    /// A mark with its middle there.
    pub(super) fn mark(&mut self, mark: Mark, at: (f64, f64), colour: &str) {
        let (x, y) = at;
        let path = match mark {
            Mark::Cross => format!("M{:.1} {:.1}l8 8m0 -8l-8 8", x - 4.0, y - 4.0),
            Mark::Triangle => format!("M{x:.1} {:.1}l-4 8h8z", y - 4.0),
            Mark::Diamond => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
            Mark::Square => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
            Mark::Tick => format!("M{x:.1} {:.1}v10", y - 5.0),
            Mark::Bolt => format!("M{:.1} {:.1}l-4 5h6l-4 5", x + 1.0, y - 5.0),
            Mark::Glass => format!("M{:.1} {:.1}h8l-8 10h8z", x - 4.0, y - 5.0),
            Mark::Ring => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        };
        let paint = match mark {
            Mark::Cross | Mark::Bolt => format!(r#"fill="none" stroke="{colour}" stroke-width="2.5""#),
            Mark::Tick => format!(r#"fill="none" stroke="{colour}" stroke-width="1.5""#),
            Mark::Ring => format!(r##"fill="#ffffff" stroke="{colour}" stroke-width="2""##),
            Mark::Triangle | Mark::Diamond | Mark::Square | Mark::Glass => {
                format!(r##"fill="{colour}" stroke="#ffffff" stroke-width="0.8""##)
            }
        };
        let _ = writeln!(self.body, r#"<path d="{path}" {paint}/>"#);
    }

    /// The picture as a file.
    pub(super) fn finish(self) -> String {
        let Self { width, height, title, describe, body } = self;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img" aria-labelledby="title desc" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif">
<title id="title">{}</title>
<desc id="desc">{}</desc>
{body}</svg>
"#,
            escaped(&title),
            escaped(&describe)
        )
    }
}

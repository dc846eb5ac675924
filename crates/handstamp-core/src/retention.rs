//! How long ids are remembered, and how long that has to be (pure).
//!
//! An id that is forgotten is applied again when its message comes again. So ids are kept for as long as the source
//! can hand a message over once more, and what is waiting here counts as well. Authoritative for that is what the
//! brokers say of each topic; where nobody can say, only a person can: `accept_window`.
//!
//! ```text
//!  windows of the source ─┬─ known ────► the longest ───┐
//!                         └─ unknown ──► accept_window ─┴─ + age of the oldest parked ─► needed ─► keep < needed: refused
//! ```

use std::fmt;
use std::time::Duration;

/// Ids are deleted this much later than was asked for. It covers what is not part of a broker's window: the time until
/// an expired segment is looked at and removed, producers' clocks that are ahead of the broker's (by an hour, which is
/// as much as brokers accept by default), and the store's clock against theirs.
pub const GRACE: Duration = Duration::from_secs(2 * 60 * 60);

/// For how long ids are kept, as a person wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Ids are forgotten when they were first seen longer ago.
    pub keep: Duration,
    /// What a person answers for where nobody can say how long a message may come again.
    pub accept_window: Option<Duration>,
}

impl Retention {
    /// The age from which on rows are deleted.
    #[must_use]
    pub fn delete_after(&self) -> Duration {
        self.keep.saturating_add(GRACE)
    }
}

/// How long a part of the source, such as a topic, can hand over one message again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceWindow {
    /// Which part, for people.
    pub name: String,
    /// How long.
    pub window: Window,
}

/// How long a message may come again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Window {
    /// For so long.
    Known {
        /// How long a record is kept for certain.
        retention: Duration,
        /// How much longer it may be kept, because logs are removed in pieces.
        segment: Duration,
    },
    /// For ever, or nobody knows.
    Unknown {
        /// Why, for people.
        why: String,
    },
}

impl Window {
    /// Its length, where it is known.
    #[must_use]
    pub fn length(&self) -> Option<Duration> {
        match self {
            Self::Known { retention, segment } => Some(retention.saturating_add(*segment)),
            Self::Unknown { .. } => None,
        }
    }
}

/// What ids have to be kept for, and what it was computed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// The least that `keep` may be.
    pub at_least: Duration,
    /// The part of the source with the longest window.
    pub longest: Option<SourceWindow>,
    /// How long the oldest parked message has been waiting.
    pub oldest_parked: Duration,
}

/// Why nothing may be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A part of the source has no known window, and nobody answers for one.
    UnknownWindow {
        /// Which, and why.
        of: SourceWindow,
    },
    /// A message can come again after its id is forgotten.
    TooShort {
        /// What was asked for.
        keep: Duration,
        /// What is needed.
        needed: Needed,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownWindow { of } => {
                let why = match &of.window {
                    Window::Unknown { why } => why.as_str(),
                    Window::Known { .. } => "known",
                };
                write!(f, "nobody knows for how long {} can deliver a message again: {why}", of.name)
            }
            Self::TooShort { keep, needed } => {
                let (keep, at_least) = (Shown(*keep), Shown(needed.at_least));
                write!(
                    f,
                    "ids would be forgotten after {keep}, and a message can come again for {at_least}: "
                )?;
                write!(f, "{}", needed.sum())
            }
        }
    }
}

impl Needed {
    /// What it is the sum of, for people.
    #[must_use]
    pub fn sum(&self) -> String {
        let mut parts = match &self.longest {
            Some(SourceWindow { name, window: Window::Known { retention, segment } })
                if segment.is_zero() =>
            {
                vec![format!("{name} keeps it for {}", Shown(*retention))]
            }
            Some(SourceWindow { name, window: Window::Known { retention, segment } }) => vec![
                format!("{name} keeps it for {}", Shown(*retention)),
                format!("for up to {} more until its segment is complete", Shown(*segment)),
            ],
            Some(SourceWindow { name, window: Window::Unknown { .. } }) => {
                vec![format!("accept_window answers for {name}")]
            }
            None => vec![],
        };
        if !self.oldest_parked.is_zero() {
            parts.push(format!(
                "the oldest parked message has been waiting for {}",
                Shown(self.oldest_parked)
            ));
        }
        if parts.is_empty() {
            parts.push("nothing is known that could come again".into());
        }
        parts.join(", ")
    }
}

/// A time in its two largest units: `14d 2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown(pub Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (millis, units) = (self.0.subsec_millis(), [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")]);
        let mut left = seconds;
        let mut shown = 0;
        for (size, unit) in units {
            if left >= size && shown < 2 {
                let space = if shown > 0 { " " } else { "" };
                write!(f, "{space}{}{unit}", left / size)?;
                shown += 1;
            }
            left %= size;
        }
        match shown {
            0 => write!(f, "{millis}ms"),
            _ => Ok(()),
        }
    }
}

/// Whether ids may be forgotten after `retention.keep`: what is needed, or why not.
///
/// # Errors
/// The refusal, with its numbers.
pub fn judge(
    retention: &Retention,
    windows: &[SourceWindow],
    oldest_parked: Option<Duration>,
) -> Result<Needed, Refusal> {
    let mut longest: Option<(Duration, &SourceWindow)> = None;
    for of in windows {
        let Some(length) = of.window.length().or(retention.accept_window) else {
            return Err(Refusal::UnknownWindow { of: of.clone() });
        };
        if longest.is_none_or(|(known, _)| known < length) {
            longest = Some((length, of));
        }
    }
    let oldest_parked = oldest_parked.unwrap_or_default();
    let at_least = longest.map_or(Duration::ZERO, |(length, _)| length).saturating_add(oldest_parked);
    let needed = Needed { at_least, longest: longest.map(|(_, of)| of.clone()), oldest_parked };
    if retention.keep < needed.at_least {
        return Err(Refusal::TooShort { keep: retention.keep, needed });
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn known(name: &str, days: u32, segment_days: u32) -> SourceWindow {
        SourceWindow {
            name: name.into(),
            window: Window::Known { retention: DAY * days, segment: DAY * segment_days },
        }
    }

    fn unknown(name: &str) -> SourceWindow {
        SourceWindow { name: name.into(), window: Window::Unknown { why: "retention.ms = -1".into() } }
    }

    fn keep(days: u32, accepted: Option<u32>) -> Retention {
        Retention { keep: DAY * days, accept_window: accepted.map(|days| DAY * days) }
    }

    #[test]
    fn the_longest_window_counts_with_its_segment_and_what_waits() {
        let topics = [known("a", 3, 1), known("b", 7, 7), known("c", 13, 0)];
        let needed = judge(&keep(14, None), &topics, None).unwrap();
        assert_eq!((needed.at_least, needed.longest.unwrap().name), (DAY * 14, "b".into()));
        let refused = judge(&keep(14, None), &topics, Some(Duration::from_secs(1))).unwrap_err();
        let Refusal::TooShort { needed, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(needed.at_least, DAY * 14 + Duration::from_secs(1));
        let said = refused.to_string();
        for part in ["after 14d,", "for 14d 1s:", "b keeps it for 7d", "up to 7d more", "waiting for 1s"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }

    #[test]
    fn what_nobody_knows_is_refused_unless_somebody_answers_for_it() {
        let topics = [known("a", 7, 7), unknown("b")];
        let refused = judge(&keep(365, None), &topics, None).unwrap_err();
        assert!(matches!(&refused, Refusal::UnknownWindow { of } if of.name == "b"), "{refused:?}");
        assert!(refused.to_string().contains("retention.ms = -1"), "{refused}");
        assert_eq!(judge(&keep(30, Some(30)), &topics, None).unwrap().at_least, DAY * 30);
        assert!(matches!(judge(&keep(29, Some(30)), &topics, None), Err(Refusal::TooShort { .. })));
        // What is known is not made shorter by what somebody answers for.
        assert!(matches!(judge(&keep(13, Some(1)), &topics, None), Err(Refusal::TooShort { .. })));
    }

    #[test]
    fn a_store_without_a_source_needs_only_what_waits() {
        assert_eq!(judge(&keep(1, None), &[], None).unwrap().at_least, Duration::ZERO);
        assert!(judge(&keep(1, None), &[], Some(DAY * 2)).is_err());
    }

    #[test]
    fn nothing_overflows() {
        let far = SourceWindow {
            name: "far".into(),
            window: Window::Known { retention: Duration::MAX, segment: Duration::MAX },
        };
        let all = Retention { keep: Duration::MAX, accept_window: None };
        assert_eq!(judge(&all, &[far], Some(Duration::MAX)).unwrap().at_least, Duration::MAX);
        assert_eq!(all.delete_after(), Duration::MAX);
    }

    #[test]
    fn times_are_shown_in_two_units() {
        for (seconds, shown) in
            [(0, "0ms"), (61, "1m 1s"), (86_400, "1d"), (90_061, "1d 1h"), (7_260, "2h 1m")]
        {
            assert_eq!(Shown(Duration::from_secs(seconds)).to_string(), shown);
        }
        assert_eq!(Shown(Duration::from_millis(40)).to_string(), "40ms");
    }
}

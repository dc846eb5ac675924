//! The pace of a redrive (pure): `--rate 50/s` → how many may go now, and how long until the next may.
//!
//! A bucket that fills with time: what could not be sent while the store was slow is not made up for, but for a
//! tenth of a second's worth. So no second has more than the rate and a tenth of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Largest count of a rate.
const COUNT_MAX: u64 = 1_000_000;
/// What is made up for is this part of what goes in a second.
const BURST_PART: u64 = 10;

/// So many in so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    count: u64,
    unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Second,
    Minute,
    Hour,
}

impl Unit {
    fn nanos(self) -> u128 {
        let seconds = match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
        };
        Duration::from_secs(seconds).as_nanos()
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || "write a count and a unit, such as 50/s, 600/m or 100/h".to_owned();
        let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
        let unit = match unit {
            "s" => Unit::Second,
            "m" => Unit::Minute,
            "h" => Unit::Hour,
            _ => return Err(wrong()),
        };
        let count: u64 = count.parse().map_err(|_| wrong())?;
        if (1..=COUNT_MAX).contains(&count) {
            Ok(Self { count, unit })
        } else {
            Err(format!("from 1 to {COUNT_MAX}"))
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Second => 's',
            Unit::Minute => 'm',
            Unit::Hour => 'h',
        };
        write!(f, "{}/{unit}", self.count)
    }
}

/// How far a redrive has gone. Credit is counted in nanoseconds times the rate's count, so that nothing is lost
/// to rounding; one message costs the nanoseconds of the rate's unit.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Rate,
    /// The most that is saved up.
    credit_max: u128,
    credit: u128,
    /// Until when time has been counted.
    until: Duration,
}

impl Pace {
    /// At its beginning one message may go at once.
    pub(crate) fn new(rate: Rate) -> Self {
        let cost = rate.unit.nanos();
        let a_tenth = u128::from(rate.count) * Unit::Second.nanos() / u128::from(BURST_PART);
        Self { rate, credit_max: a_tenth.max(cost), credit: cost, until: Duration::ZERO }
    }

    /// How many may go `now`, which is the time since the beginning.
    pub(crate) fn may(&mut self, now: Duration) -> u64 {
        let passed = now.saturating_sub(self.until);
        self.until = self.until.max(now);
        let more = passed.as_nanos().saturating_mul(u128::from(self.rate.count));
        self.credit = self.credit.saturating_add(more).min(self.credit_max);
        u64::try_from(self.credit / self.rate.unit.nanos()).unwrap_or(u64::MAX)
    }

    /// So many went; never more than may.
    pub(crate) fn went(&mut self, count: u64) {
        self.credit = self.credit.saturating_sub(u128::from(count) * self.rate.unit.nanos());
    }

    /// How long until one may go.
    pub(crate) fn wait(&self) -> Duration {
        let missing = self.rate.unit.nanos().saturating_sub(self.credit);
        let nanos = missing.div_ceil(u128::from(self.rate.count));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate() -> impl Strategy<Value = Rate> {
        (1_u64..2000, 0_usize..3)
            .prop_map(|(count, unit)| format!("{count}/{}", ["s", "m", "h"][unit]).parse().unwrap())
    }

    #[test]
    fn rates_are_read_and_shown() {
        for text in ["50/s", "600/m", "100/h", "1/s", "1000000/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for bad in ["", "50", "/s", "50/", "0/s", "-1/s", "1.5/s", "50/d", "50/sec", "50 /s", "1000001/s"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn one_goes_at_once_and_the_next_when_its_time_has_come() {
        let mut pace = Pace::new("2/m".parse().unwrap());
        assert_eq!(pace.may(Duration::ZERO), 1);
        pace.went(1);
        assert_eq!((pace.may(Duration::ZERO), pace.wait()), (0, Duration::from_secs(30)));
        assert_eq!(pace.may(Duration::from_secs(29)), 0);
        assert_eq!(pace.may(Duration::from_secs(30)), 1);
        // A night without a store is not made up for.
        assert_eq!(pace.may(Duration::from_secs(30_000)), 1);
    }

    proptest! {
        /// Whatever the calls and the pauses between them: no stretch of time has more than the rate allows and
        /// the tenth of a second that is made up for.
        #[test]
        fn no_stretch_of_time_has_more_than_the_rate(
            rate in rate(), steps in proptest::collection::vec((0_u64..3_000_000_000, 0_u64..500), 1..60),
        ) {
            let mut pace = Pace::new(rate);
            let (mut now, mut sent) = (Duration::ZERO, Vec::new());
            for (pause, wanted) in steps {
                now += Duration::from_nanos(pause);
                let count = pace.may(now).min(wanted);
                pace.went(count);
                sent.push((now, count));
            }
            // A tenth of a second's worth, or one.
            let a_tenth = u128::from(rate.count) * Unit::Second.nanos() / 10 / rate.unit.nanos();
            let saved = u64::try_from(a_tenth).unwrap().max(1);
            for (from, (begin, _)) in sent.iter().enumerate() {
                for to in from..sent.len() {
                    let length = (sent[to].0 - *begin).as_nanos() * u128::from(rate.count);
                    let allowed = u64::try_from(length / rate.unit.nanos()).unwrap() + saved + 1;
                    let count: u64 = sent[from..=to].iter().map(|(_, count)| *count).sum();
                    prop_assert!(count <= allowed, "{count} in {:?}", sent[to].0 - *begin);
                }
            }
        }

        /// Who waits as long as it says is never told to wait in vain, and keeps up with the rate.
        #[test]
        fn waiting_as_told_keeps_up_with_the_rate(rate in rate(), messages in 1_u64..300) {
            let mut pace = Pace::new(rate);
            let (mut now, mut sent) = (Duration::ZERO, 0);
            while sent < messages {
                let count = pace.may(now).min(messages - sent);
                if count == 0 {
                    let wait = pace.wait();
                    prop_assert!(wait > Duration::ZERO);
                    now += wait;
                    prop_assert!(pace.may(now) > 0);
                }
                pace.went(count);
                sent += count;
            }
            // Each wait is rounded up by less than a nanosecond.
            let ideal = u128::from(messages - 1) * rate.unit.nanos() / u128::from(rate.count);
            prop_assert!(now.as_nanos() <= ideal + u128::from(messages));
        }
    }
}

//! Numbers of JSON as exact decimals (pure): no float, no rounding, no limit on their digits.
//!
//! [`Number`] is the grammar: the parts of a token. [`Exact`] is the value: `1`, `1.0`, `10e-1` are one, and a
//! comparison of two looks at digits only. A value keeps nothing but where its digits lie.

use std::cmp::Ordering;

/// The point is at most so many places away from the first digit.
const PLACES_MAX: i64 = 1_000_000_000;

/// A number as JSON writes it, in its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number<'a> {
    /// A minus sign stands in front.
    negative: bool,
    /// The digits in front of the point.
    whole: &'a str,
    /// The digits behind it; empty where there is none.
    fraction: &'a str,
    /// Whether the exponent has a minus sign, and its digits.
    exponent: Option<(bool, &'a str)>,
}

impl<'a> Number<'a> {
    /// Takes what the grammar of JSON takes and nothing else: no `+`, no `007`, no `.5`.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            None => (rest, None),
            Some((mantissa, exponent)) => {
                let down = exponent.strip_prefix('-');
                let digits = down.or(exponent.strip_prefix('+')).unwrap_or(exponent);
                (mantissa, Some((down.is_some(), digits)))
            }
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            None => (mantissa, ""),
            Some((whole, fraction)) => (whole, Some(fraction).filter(|part| all_digits(part))?),
        };
        let fits = all_digits(whole) && (whole == "0" || !whole.starts_with('0'));
        let exponent_fits = exponent.is_none_or(|(_, digits)| all_digits(digits));
        (fits && exponent_fits).then_some(Self { negative, whole, fraction, exponent })
    }

    /// The value; `None` when its exponent is beyond a thousand million.
    #[must_use]
    pub fn exact(&self) -> Option<Exact<'a>> {
        let (whole, fraction) = (self.whole.trim_start_matches('0'), self.fraction.trim_end_matches('0'));
        let (head, tail, places) = match (whole, fraction) {
            ("", "") => return Some(Exact { negative: false, head: b"", tail: b"", places: 0 }),
            ("", fraction) => {
                let digits = fraction.trim_start_matches('0');
                ("", digits, -i64::try_from(fraction.len() - digits.len()).ok()?)
            }
            (whole, "") => (whole.trim_end_matches('0'), "", i64::try_from(whole.len()).ok()?),
            (whole, fraction) => (whole, fraction, i64::try_from(whole.len()).ok()?),
        };
        let exponent = match self.exponent.map(|(down, digits)| (down, digits.trim_start_matches('0'))) {
            None | Some((_, "")) => 0,
            Some((down, digits)) => {
                let exponent: i64 = digits.parse().ok()?;
                if down { -exponent } else { exponent }
            }
        };
        let places = places.checked_add(exponent).filter(|places| places.abs() <= PLACES_MAX)?;
        Some(Exact { negative: self.negative, head: head.as_bytes(), tail: tail.as_bytes(), places })
    }
}

/// An exact decimal: `0.DIGITS × 10^places`, without zeros at either end of its digits.
#[derive(Debug, Clone, Copy)]
pub struct Exact<'a> {
    negative: bool,
    /// The digits, in two parts.
    head: &'a [u8],
    tail: &'a [u8],
    places: i64,
}

impl Exact<'_> {
    /// -1, 0 or 1.
    pub(crate) fn sign(&self) -> i8 {
        match (self.head.is_empty() && self.tail.is_empty(), self.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }

    pub(crate) fn digits(&self) -> impl Iterator<Item = u8> {
        self.head.iter().chain(self.tail).copied()
    }

    /// The number is `0.DIGITS` with its point moved so many places to the right.
    pub(crate) fn places(&self) -> i64 {
        self.places
    }

    /// Appends the one text of this value: `-12e5` is `-0.12 × 10^5`, and `0` zero.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self.sign() {
            0 => return out.push(b'0'),
            -1 => out.push(b'-'),
            _ => {}
        }
        out.extend(self.digits());
        out.push(b'e');
        out.extend_from_slice(self.places.to_string().as_bytes());
    }
}

impl Ord for Exact<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let size = || self.places.cmp(&other.places).then_with(|| self.digits().cmp(other.digits()));
        self.sign().cmp(&other.sign()).then_with(|| match self.sign() {
            0 => Ordering::Equal,
            -1 => size().reverse(),
            _ => size(),
        })
    }
}

impl PartialOrd for Exact<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Exact<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Exact<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(text: &str) -> Exact<'_> {
        Number::parse(text).unwrap().exact().unwrap()
    }

    fn written(text: &str) -> String {
        let mut out = vec![];
        exact(text).write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_numbers_of_json_are_numbers() {
        for text in
            ["", "-", "+1", "007", "-01", ".5", "5.", "1e", "1e+", "0x1", "NaN", "1 ", "1e5.0", "--1", "1.-1"]
        {
            assert_eq!(Number::parse(text), None, "{text}");
        }
    }

    #[test]
    fn one_value_is_one_text_however_it_is_written() {
        for same in [
            &["1", "1.0", "1e0", "10e-1", "0.1e1", "1.00E+00", "100e-2"][..],
            &["0", "-0", "0.0", "0e999999999999999999999", "-0.000e-5"],
            &["-1200", "-1.2e3", "-12e2", "-1200.0"],
            &["0.005", "5e-3", "0.5e-2"],
            &["9007199254740993", "9007199254740993.0", "9.007199254740993e15"],
        ] {
            for text in same {
                assert_eq!(written(text), written(same[0]), "{text}");
                assert_eq!(exact(text), exact(same[0]), "{text}");
            }
        }
    }

    #[test]
    fn neighbours_beyond_what_floats_can_tell_differ() {
        for (less, greater) in [
            ("9007199254740992", "9007199254740993"),
            ("0.1", "0.10000000000000000000000000000000000001"),
            ("-0.10000000000000000000000000000000000001", "-0.1"),
            ("-1e400", "-1e399"),
            ("1e399", "1e400"),
            ("-1", "0"),
            ("0", "1e-999999999"),
            ("9", "10"),
            ("99", "100"),
            ("0.09", "0.1"),
        ] {
            assert!(exact(less) < exact(greater), "{less} < {greater}");
        }
        assert!(Number::parse("1e1000000001").unwrap().exact().is_none());
        assert!(Number::parse("1e99999999999999999999").unwrap().exact().is_none());
    }

    proptest! {
        /// Against whole numbers of the same scale, which can be compared without us.
        #[test]
        fn the_order_is_that_of_the_values(a in -10_000_i64..10_000, b in -10_000_i64..10_000, shift in 0_u32..6, up in 0_u32..6) {
            let text = |n: i64| {
                let (sign, digits) = (if n < 0 { "-" } else { "" }, format!("{:06}", n.unsigned_abs()));
                let (whole, fraction) = digits.split_at(6 - shift as usize);
                let whole = match whole.trim_start_matches('0') { "" => "0", whole => whole };
                let point = if fraction.is_empty() { "" } else { "." };
                format!("{sign}{whole}{point}{fraction}e{up}")
            };
            let (one, two) = (text(a), text(b));
            prop_assert_eq!(exact(&one).cmp(&exact(&two)), a.cmp(&b), "{} {}", one, two);
            prop_assert_eq!(written(&one) == written(&two), a == b);
        }
    }
}

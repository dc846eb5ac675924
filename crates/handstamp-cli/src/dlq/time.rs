//! A moment of the command line (pure): `2026-01-31T08:00:00Z`, or how long ago: `2h`.

use handstamp_core::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// How a moment is written.
const WRONG: &str =
    "write a moment such as 2026-01-31T08:00:00Z or 2026-01-31T09:00:00+01:00, or how long ago, such as 2h";

/// Reads a moment; a length of time is counted back from `now`.
///
/// # Errors
/// It is neither.
pub(crate) fn moment(text: &str, now: SystemTime) -> Result<Timestamp, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        let then = now.checked_sub(ago).ok_or_else(|| WRONG.to_owned())?;
        return Ok(millis(then));
    }
    let (utc, minutes_ahead) = without_offset(text).ok_or_else(|| WRONG.to_owned())?;
    let moment = humantime::parse_rfc3339_weak(&utc).map_err(|_| WRONG.to_owned())?;
    Ok(Timestamp(millis(moment).0 - minutes_ahead * 60_000))
}

/// Now, as a moment.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

fn millis(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A moment without its offset from UTC, and the offset in minutes; a date alone is its midnight.
fn without_offset(text: &str) -> Option<(String, i64)> {
    if text.len() == 10 {
        return Some((format!("{text}T00:00:00Z"), 0));
    }
    let at = text.len().checked_sub(6)?;
    let (Some(head), Some(tail)) = (text.get(..at), text.get(at..)) else { return None };
    let sign = match tail.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') if head.contains(':') => -1,
        _ => return Some((text.to_owned(), 0)),
    };
    let (hours, minutes) = tail[1..].split_once(':')?;
    let number = |digits: &str, max: i64| {
        let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        number.filter(|number| (0..=max).contains(number) && digits.len() == 2)
    };
    let ahead = number(hours, 23)? * 60 + number(minutes, 59)?;
    Some((format!("{head}Z"), sign * ahead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_and_how_long_ago_are_read() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        for (text, shown) in [
            ("2026-01-31T08:00:00Z", "2026-01-31T08:00:00.000Z"),
            ("2026-01-31T08:00:00.250Z", "2026-01-31T08:00:00.250Z"),
            ("2026-01-31 08:00:00", "2026-01-31T08:00:00.000Z"),
            ("2026-01-31T09:30:00+01:30", "2026-01-31T08:00:00.000Z"),
            ("2026-01-30T23:00:00-09:00", "2026-01-31T08:00:00.000Z"),
            ("2026-01-31", "2026-01-31T00:00:00.000Z"),
            ("2h", "2027-01-15T06:00:00.000Z"),
            ("1day 2h", "2027-01-14T06:00:00.000Z"),
            ("0s", "2027-01-15T08:00:00.000Z"),
        ] {
            assert_eq!(moment(text, now).map(|moment| moment.to_string()), Ok(shown.to_owned()), "{text}");
        }
        for bad in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-01-31T08:00:00+1:00",
            "12",
            "2026-01-31T08:00:00+99:00",
            "é".repeat(5).as_str(),
        ] {
            assert!(moment(bad, now).is_err(), "{bad}");
        }
    }
}

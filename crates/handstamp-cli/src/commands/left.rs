//! What a run leaves behind: messages that stay parked, and dead letters; and the commands that show them.
//!
//! Authoritative: the store, asked once when the run has ended. A store that does not answer is no error: nothing is
//! said then.

use crate::backend::Operations;
use crate::config::Config;
use crate::output::table::grouped;
use crate::output::width;
use handstamp_core::parked::COUNTED_MAX;
use handstamp_stores::redrive::Backlog;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Nobody waits longer for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Asks the store.
pub(super) async fn ask<S: Operations>(store: &S, config: &Config) -> Option<Backlog> {
    match tokio::time::timeout(ANSWER_WITHIN, store.backlog(&config.name)).await {
        Ok(Ok(backlog)) => Some(backlog),
        Ok(Err(error)) => {
            tracing::debug!(%error, "what is left is not known");
            None
        }
        Err(_) => {
            tracing::debug!("what is left is not known: the store does not answer");
            None
        }
    }
}

/// For people: a line for each kind that there is.
pub(super) fn text(file: &Path, left: &Backlog, columns: usize) -> String {
    let (file, parked) = (file.display(), &left.parked);
    let count = |count: u64| {
        let more = if count >= COUNTED_MAX { " or more" } else { "" };
        format!("{}{more}", grouped(count))
    };
    let mut out = String::new();
    if parked.count > 0 {
        let due = match parked.due_in.map(whole_seconds) {
            None => String::new(),
            Some(Duration::ZERO) => ", the first due now".to_owned(),
            Some(wait) => format!(", the first due in {}", humantime::format_duration(wait)),
        };
        let oldest = parked.oldest.map(whole_seconds).map_or_else(String::new, |age| {
            format!(", the oldest parked {} ago", humantime::format_duration(age))
        });
        let line = format!("{} stay parked{due}{oldest}", count(parked.count));
        out.push_str(&width::behind(" ", &line, columns));
        out.push_str(&format!("   handstamp dlq parked {file}\n"));
    }
    if left.dead_letters > 0 {
        out.push_str(&format!(" {} dead letters\n", count(left.dead_letters)));
        out.push_str(&format!("   handstamp dlq groups {file}\n"));
    }
    out
}

/// For programs; null where the store did not answer.
pub(super) fn object(left: Option<&Backlog>) -> Value {
    left.map_or(Value::Null, |left| {
        json!({
            "parked": left.parked.count,
            "next_due_seconds": left.parked.due_in.map(|wait| wait.as_secs_f64()),
            "oldest_parked_seconds": left.parked.oldest.map(|age| age.as_secs_f64()),
            "dead_letters": left.dead_letters,
        })
    })
}

/// A time is never said to be longer than it is.
fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::parked::ParkedStatus;

    #[test]
    fn what_there_is_is_told_with_its_command_and_nothing_else() {
        let file = Path::new("w.toml");
        assert_eq!(text(file, &Backlog::default(), 100), "");
        let due_in = Some(Duration::from_millis(12_999));
        let parked = ParkedStatus { count: 1_200, due_in, oldest: Some(Duration::from_millis(61_999)) };
        let said = text(file, &Backlog { parked, dead_letters: 0 }, 100);
        assert_eq!(
            said,
            " 1,200 stay parked, the first due in 12s, the oldest parked 1m 1s ago\n   handstamp dlq parked w.toml\n"
        );
        let parked = ParkedStatus { count: COUNTED_MAX, due_in: Some(Duration::ZERO), oldest: None };
        let said = text(file, &Backlog { parked, dead_letters: 3 }, 100);
        assert!(said.contains("1,000,000 or more stay parked, the first due now\n"), "{said}");
        assert!(said.ends_with(" 3 dead letters\n   handstamp dlq groups w.toml\n"), "{said}");
        assert_eq!(object(None), Value::Null);
    }
}

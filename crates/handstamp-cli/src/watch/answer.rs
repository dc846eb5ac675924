//! A path → status, type and body. No bodies are read, nothing is changed by a request.

use super::exposition;
use super::view::View;
use hyper::{Method, StatusCode};
use std::time::SystemTime;

/// Prometheus' text format.
pub(super) const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// A line for a person.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const PATHS: &str = "/metrics, /healthz and /readyz are answered here\n";

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) media_type: &'static str,
    pub(super) body: String,
}

impl Answer {
    fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, media_type: TEXT_TYPE, body: body.into() }
    }
}

/// Answers a request.
pub(super) fn answer(view: &View, method: &Method, path: &str) -> Answer {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match path {
        "/metrics" => Answer {
            status: StatusCode::OK,
            media_type: METRICS_TYPE,
            body: exposition::text(&view.families(SystemTime::now())),
        },
        "/healthz" => match view.health() {
            Ok(()) => Answer::text(StatusCode::OK, "ok\n"),
            Err(why) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/readyz" => match view.unready().as_slice() {
            [] => Answer::text(StatusCode::OK, "ready\n"),
            reasons => {
                let line = |reason: &handstamp_core::telemetry::Unready| {
                    format!("{}: {}\n", reason.as_str(), reason.words())
                };
                Answer::text(StatusCode::SERVICE_UNAVAILABLE, reasons.iter().map(line).collect::<String>())
            }
        },
        _ => Answer::text(StatusCode::NOT_FOUND, PATHS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::LiveCounts;
    use std::sync::Arc;

    fn view() -> (View, Arc<LiveCounts>) {
        let live = Arc::new(LiveCounts::default());
        (View::of_test(Arc::clone(&live)), live)
    }

    #[test]
    fn only_what_is_there_is_answered_and_only_to_those_who_read() {
        let (view, _) = view();
        for (method, path, status) in [
            (Method::GET, "/metrics", 200),
            (Method::HEAD, "/healthz", 200),
            (Method::GET, "/readyz", 503),
            (Method::GET, "/", 404),
            (Method::GET, "/metrics/", 404),
            (Method::POST, "/metrics", 405),
            (Method::DELETE, "/readyz", 405),
        ] {
            assert_eq!(answer(&view, &method, path).status.as_u16(), status, "{method} {path}");
        }
    }

    #[test]
    fn readiness_names_every_reason_in_a_line() {
        let (view, live) = view();
        assert!(answer(&view, &Method::GET, "/readyz").body.starts_with("starting: "));
        live.vitals().store_failed(handstamp_core::StoreErrorKind::NotMigrated);
        live.vitals().stop();
        let said = answer(&view, &Method::GET, "/readyz").body;
        let words: Vec<&str> = said.lines().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(words, ["starting", "stopping", "not_migrated"]);
    }
}

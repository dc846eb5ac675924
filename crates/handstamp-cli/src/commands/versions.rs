//! What a version guard, and a consumer without an inbox, mean: in the words of `check` and `explain`.

use crate::config::{Config, SourceSection};
use crate::findings::Findings;
use handstamp_core::{ConsumerOptions, OnFailure};

/// What the guard does, a sentence each.
pub(super) fn sentences(options: &ConsumerOptions) -> Vec<String> {
    let mut lines = vec![];
    if options.version.is_some() {
        lines.push(format!("Versions: {}.", words_on_guard(options)));
    }
    if !options.inbox {
        lines.push(format!("No inbox: {}.", given_up(options)));
    }
    lines
}

fn words_on_guard(options: &ConsumerOptions) -> String {
    let Some(guard) = &options.version else { return String::new() };
    let key = match &guard.key {
        Some(pointer) => format!("value of {pointer}"),
        None => "key and topic".to_owned(),
    };
    let parked = match options.policy.on_failure {
        OnFailure::Park => "; one that is parked is stale once a newer one of its key is applied",
        OnFailure::Block => "",
    };
    format!(
        "of each {key} only what is newer by {} is applied; what is as old or older is settled as stale{parked}",
        guard.version,
    )
}

/// What a consumer without an inbox does without.
fn given_up(options: &ConsumerOptions) -> String {
    let redelivered = if options.version.is_some() {
        "what is delivered again is held off by its version alone"
    } else {
        "what is delivered again runs its effects again, also behind newer messages"
    };
    format!(
        "no id is remembered: {redelivered}, an id that comes again with another body goes unnoticed, and a parked \
         message or a dead letter that is delivered again is tried again beside the one that is kept"
    )
}

/// What they mean for this file.
pub(super) fn check(config: &Config, findings: &mut Findings) {
    let options = &config.options;
    if options.version.is_some() {
        findings.ok(format!("versions: {}", words_on_guard(options)));
    }
    if options.inbox && options.naturally_idempotent {
        findings.warn(
            "consumer.naturally_idempotent: says nothing while the inbox is on",
            "remove it, or add `inbox = false`",
        );
    }
    if options.inbox {
        return;
    }
    let mut what = format!("consumer.inbox = false: {}", given_up(options));
    let guarded = options.version.is_some();
    if matches!(config.source, SourceSection::File(_)) && !guarded {
        what.push_str(
            "; the store cannot tell how far the file was read: each start reads it from its beginning",
        );
    }
    let todo = if guarded {
        "remove it unless every message of a key has a version of its own"
    } else {
        "remove it unless the effects may run again, and in another order; `version` keeps the order of each key"
    };
    findings.warn(what, todo);
}

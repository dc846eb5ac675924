//! What conditions on effects, and rules about ids, mean: in the words of `check` and `explain`.

use crate::config::{Config, EffectSection};
use crate::findings::Findings;
use handstamp_core::{FailureClass, LongIds};
use handstamp_stores::effect::Condition;
use serde_json::{Value, json};

/// Which failures there can be because effects have conditions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Routes {
    /// A message that no effect wants is a dead letter.
    unmatched: bool,
    /// A condition may have no answer.
    condition: bool,
}

impl Routes {
    pub(super) fn of(config: &Config) -> Self {
        let condition = config.effects.iter().any(|effect| effect.when.is_some());
        Self { unmatched: config.may_be_unmatched() && !config.ignore_unmatched, condition }
    }

    /// Whether there can be failures of these classes alone because of conditions.
    pub(super) fn tells(self, classes: &[FailureClass]) -> bool {
        match classes {
            [FailureClass::Unmatched] => self.unmatched,
            [FailureClass::Condition] => self.condition,
            _ => false,
        }
    }
}

fn conditions(config: &Config) -> impl Iterator<Item = (usize, &EffectSection, &Condition)> {
    let numbered = config.effects.iter().enumerate();
    numbered.filter_map(|(at, effect)| Some((at + 1, effect, effect.compiled.when.as_ref()?)))
}

/// What becomes of a message that no effect wants.
fn words_on_unmatched(config: &Config) -> &'static str {
    if config.ignore_unmatched {
        "one that no effect wants is counted as unmatched and settled, and nothing remembers it"
    } else {
        "one that no effect wants is a dead letter"
    }
}

/// What the conditions do, a sentence each.
pub(super) fn sentences(config: &Config) -> Vec<String> {
    let mut lines: Vec<String> =
        conditions(config).map(|(number, _, when)| format!("Effect {number} runs when {when}.")).collect();
    if !lines.is_empty() {
        lines.push(
            "A message for which a condition has no answer (a value is missing, null or of another type) is a dead \
             letter."
                .to_owned(),
        );
    }
    if config.may_be_unmatched() {
        lines.push(format!("Of the messages {}.", words_on_unmatched(config)));
    }
    lines
}

/// The conditions as JSON: one for each effect, null where it has none.
pub(super) fn object(config: &Config) -> Value {
    config
        .effects
        .iter()
        .map(|effect| json!(effect.compiled.when.as_ref().map(Condition::to_string)))
        .collect()
}

/// What they mean for this file.
pub(super) fn check(config: &Config, findings: &mut Findings) {
    for (number, effect, when) in conditions(config) {
        findings.ok(format!("effect {number} (line {}): runs when {when}", effect.line));
    }
    if config.may_be_unmatched() {
        findings.ok(format!("unmatched: {}", words_on_unmatched(config)));
    } else if config.ignore_unmatched {
        let always = config.effects.iter().position(|effect| effect.when.is_none()).map_or(1, |at| at + 1);
        findings.warn(
            format!("consumer.ignore_unmatched: says nothing, for effect {always} has no condition and wants every message"),
            "remove it, or give each effect a `when`",
        );
    }
    ids(config, findings);
}

/// What is beside the place of the id.
fn ids(config: &Config, findings: &mut Findings) {
    if config.identity.long_ids == LongIds::Hash {
        findings.ok("identity: an id of more than 1,024 bytes is kept as its hash".to_owned());
    }
    if let Some(fields) = &config.identity.digest {
        let names: Vec<&str> = fields.pointers().iter().map(|pointer| pointer.as_str()).collect();
        findings.ok(format!("identity: where an id comes again, only {} must be equal", names.join(", ")));
    }
}

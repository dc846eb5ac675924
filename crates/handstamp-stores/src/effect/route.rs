//! Which of a pipeline's effects a message meets (pure): what both databases' effects ask of their conditions.
//!
//! Every condition of a message is answered before anything of it is begun: one without an answer makes the message
//! a dead letter though another effect may want it, for half of its effects would be lost otherwise. A message that
//! no effect wants is one too, unless it was said that such messages are to be passed over.

use super::binding::MessageView;
use super::compile::CompiledEffect;
use super::when::Condition;
use handstamp_core::{FailureClass, HandlerError, Message, Route};

/// The conditions of a pipeline's effects.
#[derive(Debug, Clone, Default)]
pub struct Routing {
    conditions: Vec<Option<Condition>>,
    /// At least one effect runs only when its condition holds.
    is_conditional: bool,
    ignores_unmatched: bool,
}

impl Routing {
    /// The conditions of these effects, in their order.
    #[must_use]
    pub fn of(effects: &[CompiledEffect]) -> Self {
        let conditions: Vec<_> = effects.iter().map(|effect| effect.when.clone()).collect();
        let is_conditional = conditions.iter().any(Option::is_some);
        Self { conditions, is_conditional, ignores_unmatched: false }
    }

    /// True: a message that no effect wants is passed over instead of being a dead letter.
    #[must_use]
    pub fn ignoring_unmatched(mut self, ignores: bool) -> Self {
        self.ignores_unmatched = ignores;
        self
    }

    /// Whether the n-th effect, from 0, runs for a message.
    ///
    /// # Errors
    /// A rejection of class `condition`: its condition has no answer.
    pub fn meets(&self, effect: usize, view: &MessageView<'_>) -> Result<bool, HandlerError> {
        let Some(Some(condition)) = self.conditions.get(effect) else { return Ok(true) };
        condition.holds(view).map_err(|fault| {
            let reason = format!("effect {}: when: {fault}", effect + 1);
            HandlerError::reject(reason).with_class(FailureClass::Condition)
        })
    }

    /// What becomes of a message by the conditions alone.
    #[must_use]
    pub fn route(&self, message: &Message) -> Route {
        if !self.is_conditional {
            return Route::Run;
        }
        match self.meets_any(&MessageView::new(message)) {
            Ok(true) => Route::Run,
            Ok(false) if self.ignores_unmatched => Route::PassOver,
            Ok(false) => Route::Reject(unmatched(self.conditions.len())),
            Err(error) => Route::Reject(error),
        }
    }

    fn meets_any(&self, view: &MessageView<'_>) -> Result<bool, HandlerError> {
        // No answer is left out behind the first that is yes.
        (0..self.conditions.len()).try_fold(false, |any, effect| Ok(self.meets(effect, view)? || any))
    }
}

fn unmatched(effects: usize) -> HandlerError {
    let reason = match effects {
        1 => "the condition of the only effect does not hold for it".to_owned(),
        count => format!("none of the conditions of {count} effects holds for it"),
    };
    HandlerError::reject(reason).with_class(FailureClass::Unmatched)
}

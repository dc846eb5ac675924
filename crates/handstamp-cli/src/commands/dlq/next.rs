//! What has to happen for what was sent back to be applied, and what becomes of its order.

use crate::config::Config;
use crate::output::width;
use handstamp_core::Order;
use serde_json::{Value, json};

/// The next step.
pub(super) struct Next {
    command: String,
    order: &'static str,
    /// Only what is newer is applied.
    has_versions: bool,
}

impl Next {
    /// Of a pipeline.
    pub(super) fn of(config: &Config) -> Self {
        let order = match config.options.order {
            Order::Partition => "they are applied later than the messages that followed them",
            Order::Key => {
                "each goes behind what is parked of its key, and later ones of its key go behind it"
            }
            Order::None => "none is kept",
        };
        let command = format!("handstamp run {}", config.file.display());
        Self { command, order, has_versions: config.options.version.is_some() }
    }

    /// For people, in lines of so many columns; the command stands alone, so that it can be copied.
    pub(super) fn text(&self, columns: usize) -> String {
        let mut out = width::behind(
            "",
            "A consumer applies them: one that runs takes them now, or start one:",
            columns,
        );
        out.push_str(&format!("  {}\n", self.command));
        out.push_str(&width::behind("", &format!("Order: {}.", self.order), columns));
        if self.has_versions {
            let stale = "What is not newer than what is applied of its key is settled as stale.";
            out.push_str(&width::behind("", stale, columns));
        }
        out
    }

    /// For programs.
    pub(super) fn object(&self) -> Value {
        json!({ "needs": "a running consumer", "command": self.command, "order": self.order })
    }
}

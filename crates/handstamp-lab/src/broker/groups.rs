//! Consumer groups of the lab on a real broker, deleted at the end.
//!
//! ```text
//!  a run's end ─► deleted │ not empty ─► kept here ─► the last user of the address is gone: asked again, with a limit
//! ```
//!
//! A broker deletes only an empty group, and counts a killed member as one until its session is over. Waiting there
//! once, for the groups of all runs, costs one session and not one for each run.
//!
//! Authoritative: the broker, for whether a group is gone.

use super::kafka::{block_on, options};
use crate::cancel::Cancel;
use crate::error::Result;
use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long groups with members are waited for: longer than the usual session timeout, 45 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same once the lab was told to stop.
const PATIENCE_STOPPED: Duration = Duration::from_secs(10);
/// How often they are asked for.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Groups that could not be deleted yet, and how the broker is asked.
pub(super) struct Groups {
    config: ClientConfig,
    left: Mutex<Vec<String>>,
    cancel: OnceLock<Cancel>,
}

impl Groups {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self { config, left: Mutex::default(), cancel: OnceLock::new() }
    }

    /// Shortens the wait once this is told to stop; the first one counts.
    pub(super) fn stops_with(&self, cancel: &Cancel) {
        let _ = self.cancel.set(cancel.clone());
    }

    /// Deletes a group whose consumers are gone, or keeps it for later.
    pub(super) fn delete(&self, group: &str) {
        let left = self.try_all(&[group.to_owned()]);
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(left.into_iter().map(|(name, _)| name));
    }

    /// Asks once; those that are still there, each with why.
    fn try_all(&self, groups: &[String]) -> Vec<(String, String)> {
        let names: Vec<&str> = groups.iter().map(String::as_str).collect();
        let ask = || -> Result<Vec<(String, String)>> {
            let admin: AdminClient<DefaultClientContext> =
                self.config.create().map_err(|error| super::unreachable("no client", error))?;
            let answers = block_on(admin.delete_groups(&names, &options()))?;
            let answers = answers.map_err(|error| super::unreachable("groups", error))?;
            Ok(answers
                .into_iter()
                .filter_map(std::result::Result::err)
                .filter(|(_, code)| *code != RDKafkaErrorCode::GroupIdNotFound)
                .map(|(group, code)| (group, code.to_string()))
                .collect())
        };
        ask().unwrap_or_else(|error| groups.iter().map(|name| (name.clone(), error.to_string())).collect())
    }

    fn patience(&self) -> Duration {
        if self.cancel.get().is_some_and(Cancel::is_cancelled) { PATIENCE_STOPPED } else { PATIENCE }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let mut left = std::mem::take(self.left.get_mut().unwrap_or_else(PoisonError::into_inner));
        if left.is_empty() {
            return;
        }
        let began = Instant::now();
        let mut told = false;
        loop {
            let refused = self.try_all(&left);
            if refused.is_empty() {
                return;
            }
            if began.elapsed() >= self.patience() {
                for (group, why) in refused {
                    tracing::warn!(group, why, "the lab's group is left behind: see `lab clean`");
                }
                return;
            }
            if !told {
                tracing::info!(
                    groups = refused.len(),
                    "waiting until the broker has forgotten killed members, to delete their groups"
                );
                told = true;
            }
            left = refused.into_iter().map(|(name, _)| name).collect();
            std::thread::sleep(ASK_EVERY);
        }
    }
}

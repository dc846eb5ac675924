//! What goes wrong beside the processes: the store's answers, and the broker's.

use super::{GROUP, Schedule};
use handstamp_core::StoreErrorKind;
use handstamp_core::delivery::Settled;
use handstamp_testkit::fakes::StorePoint;

impl Schedule {
    /// The next fault of the store, as soon as the last one has struck.
    pub(super) fn fail_store(&mut self) {
        use StorePoint::*;
        if self.fault.is_some() {
            return;
        }
        // The more seldom something meets it, or the fewer schedules have it, the more often it is chosen.
        let weights = [
            (vec![Begin, Commit, TakeDue, Start, TakeOver], 4),
            (vec![CommitThenLost, Resume], 6),
            (vec![Park, NoteAttempts, ParkedKeys, TakeAgain], 8),
            (vec![Record], 26),
            (vec![Forget], 30),
        ];
        let choices: Vec<StorePoint> =
            weights.into_iter().flat_map(|(points, weight)| points.repeat(weight)).collect();
        let point = self.random.one_of(&choices);
        let kind = match point {
            // Whatever the answer says, it did not come from a rollback.
            CommitThenLost if self.polite => return,
            // No answer from a commit: it may be durable.
            Commit if self.polite => self.random.one_of(&[StoreErrorKind::Conflict, StoreErrorKind::Timeout]),
            CommitThenLost => StoreErrorKind::Unavailable,
            _ => {
                use StoreErrorKind::*;
                self.random.one_of(&[Unavailable, Conflict, Timeout])
            }
        };
        self.store.fail_next(point, kind);
        self.fault = Some((point, 0));
    }

    /// Counts a fault once it has struck; one that nothing meets makes room.
    pub(super) fn watch_fault(&mut self) {
        let Some((point, waited)) = self.fault else { return };
        if self.store.faults_left() == 0 {
            self.fault = None;
            self.event(match point {
                StorePoint::Begin => "fault in begin",
                StorePoint::Record => "fault in record",
                StorePoint::Commit => "fault in commit",
                StorePoint::CommitThenLost => "answer to a commit lost",
                StorePoint::Park => "fault in park",
                StorePoint::NoteAttempts => "fault in note_attempts",
                StorePoint::ParkedKeys => "fault in parked_keys",
                StorePoint::TakeDue => "fault in take_due",
                StorePoint::TakeAgain => "fault in take_again",
                StorePoint::Resume => "fault in resume",
                StorePoint::Start => "fault in a start",
                StorePoint::TakeOver => "fault in take_over",
                StorePoint::Forget => "fault in forget",
                _ => "fault elsewhere",
            });
        } else if waited > 6 {
            self.store.clear_faults();
            self.fault = None;
        } else {
            self.fault = Some((point, waited + 1));
        }
    }

    pub(super) fn disturb(&mut self) {
        match self.random.below(10) {
            0..=3 => {
                self.broker.rebalance(GROUP);
                self.event("rebalance");
            }
            4..=5 => {
                self.broker.evict_all(GROUP);
                self.event("eviction");
            }
            6..=7 => {
                let answer = self.random.one_of(&[Settled::Unknown, Settled::Failed]);
                self.broker.refuse_commits(GROUP, &[answer; 3]);
                self.event("commits of offsets refused");
            }
            _ => {
                self.broker.rewind(GROUP);
                self.event("rewind");
            }
        }
    }
}

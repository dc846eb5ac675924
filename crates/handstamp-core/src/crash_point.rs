//! Named places where the crash lab ends the process, to see that what is promised holds there too.
//!
//! Each part of the product says at its own places that the point is reached. Without the feature
//! `crash-points`, which an ordinary build lacks, saying so is an empty inlined function and no point has a
//! name. With it one point can be armed: the n-th time it is reached, what was armed with it runs. What that
//! is (SIGKILL, as a rule) and where its choice comes from is the program's affair: nothing here knows a
//! signal or the environment.
//!
//! ```text
//!  register ─► assigned ─► polled ─► start ─► begin, claim ─► effects ─► record ─► COMMIT ─► settle ─► … ─► close
//!  migrate     on-assign   after-    after-   mid-claim       between-   mid-dead- before-,  after-         on-
//!  mid-                    poll      start    after-claim     effects    letter,   sent,     commit,        shutdown
//!  migrate                                                    before-    mid-park  after-    after-park,
//!                          revoke-before/after-drain          rollback             commit    mid-, after-settle
//!
//!  parked ─► due ─► taken ─► effects ─► what became of it ─► COMMIT     dead letter ─► moved ─► COMMIT ─► told
//!            retry-taken                before-retry-commit,            mid-redrive      after-redrive
//!                                       retry-commit-sent               mid-discard      after-discard
//! ```
//!
//! Authoritative: the one table at the end of this file, for names and for what each point is about.

#[cfg(feature = "crash-points")]
pub use armed::{arm, is_armed};

/// A place where the process may be made to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CrashPoint {
    /// A migration has changed tables and is not committed.
    MidMigrate,
    /// The source was given lanes and has not said so yet.
    OnAssign,
    /// The source has read a batch and not handed it over.
    AfterPoll,
    /// A start record is written, the transaction that it announces has not begun.
    AfterStart,
    /// Some of a batch's ids are claimed, or the claim is on its way.
    MidClaim,
    /// The ids are claimed, no effect has run.
    AfterClaim,
    /// One effect of a transaction has run, the next one has not.
    BetweenEffects,
    /// A message has failed and its transaction is still open.
    BeforeRollback,
    /// A dead letter is written and its inbox row does not say so yet.
    MidDeadLetter,
    /// A parked message is written, or on its way, and its inbox row does not say so yet.
    MidPark,
    /// Everything is written, COMMIT is not sent.
    BeforeCommit,
    /// COMMIT is sent and not answered: whether it is durable nobody here knows.
    CommitSent,
    /// The commit is durable, nothing of it is settled.
    AfterCommit,
    /// A message is durably parked, its delivery is not settled.
    AfterPark,
    /// The new position is on its way to where it is kept.
    MidSettle,
    /// The position is known to be kept.
    AfterSettle,
    /// A parked message that is due is taken, nothing has run.
    RetryTaken,
    /// What became of a parked message is written, COMMIT is not sent.
    BeforeRetryCommit,
    /// That COMMIT is sent, and its answer is not looked at.
    RetryCommitSent,
    /// Lanes are being taken away and the engine does not know it yet.
    RevokeBeforeDrain,
    /// The engine has finished lanes that are taken away, and they are not given up yet.
    RevokeAfterDrain,
    /// The engine has stopped and the source is not told to close yet.
    OnShutdown,
    /// Dead letters are moved among the parked messages, the audit does not say so and nothing is committed.
    MidRedrive,
    /// Dead letters are sent back durably, and whoever asked has not been told.
    AfterRedrive,
    /// Dead letters are given up, nothing is committed.
    MidDiscard,
    /// Dead letters are given up durably, and whoever asked has not been told.
    AfterDiscard,
}

impl CrashPoint {
    /// The process is at this point.
    #[inline(always)]
    pub fn reached(self) {
        #[cfg(feature = "crash-points")]
        armed::reached(self);
    }

    /// The same where something was handed to another task of this thread for sending: gives it time to
    /// be sent before the process ends.
    #[inline(always)]
    #[cfg_attr(not(feature = "crash-points"), expect(clippy::unused_async, reason = "waits when armed"))]
    pub async fn reached_when_sent(self) {
        #[cfg(feature = "crash-points")]
        armed::reached_when_sent(self).await;
    }

    /// Runs a future that sends something and waits for the answer. The point lies behind the sending and
    /// before the answer.
    #[inline(always)]
    pub fn between_sending_and_answer<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        #[cfg(feature = "crash-points")]
        let request = armed::between_sending_and_answer(self, request);
        request
    }
}

#[cfg(feature = "crash-points")]
mod armed {
    use super::CrashPoint;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Poll;

    /// Turns given to other tasks of the thread, so that what was handed over is sent.
    const TURNS: u32 = 16;

    static ARMED: OnceLock<Armed> = OnceLock::new();

    /// A point that is waited for.
    struct Armed {
        point: CrashPoint,
        nth: u32,
        seen: AtomicU32,
        end: Box<dyn Fn() + Send + Sync>,
    }

    impl Armed {
        /// Counts; true when this is the one.
        fn hits(&self, point: CrashPoint) -> bool {
            self.point == point && self.seen.fetch_add(1, Ordering::Relaxed).wrapping_add(1) == self.nth
        }

        fn end_here(&self) {
            (self.end)();
            // It did not end the process, and behind the point nothing may happen.
            std::process::abort();
        }
    }

    /// Arms a point: the `nth` time it is reached (from 1), `end` runs on the thread that reached it and
    /// must end the process. Once in a process; false when a point was armed before.
    pub fn arm(point: CrashPoint, nth: u32, end: impl Fn() + Send + Sync + 'static) -> bool {
        ARMED.set(Armed { point, nth, seen: AtomicU32::new(0), end: Box::new(end) }).is_ok()
    }

    /// True when a point was armed in this process.
    #[must_use]
    pub fn is_armed() -> bool {
        ARMED.get().is_some()
    }

    fn hit(point: CrashPoint) -> Option<&'static Armed> {
        ARMED.get().filter(|armed| armed.hits(point))
    }

    pub(super) fn reached(point: CrashPoint) {
        if let Some(armed) = hit(point) {
            armed.end_here();
        }
    }

    pub(super) async fn reached_when_sent(point: CrashPoint) {
        if let Some(armed) = hit(point) {
            give_turns().await;
            armed.end_here();
        }
    }

    async fn give_turns() {
        let mut left = TURNS;
        poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    pub(super) async fn between_sending_and_answer<F: Future>(point: CrashPoint, request: F) -> F::Output {
        let mut request = pin!(request);
        // The first poll hands it over. An answer that is there already has been sent, too.
        let early = poll_fn(|context| Poll::Ready(request.as_mut().poll(context))).await;
        reached_when_sent(point).await;
        match early {
            Poll::Ready(answer) => answer,
            Poll::Pending => request.await,
        }
    }

    impl CrashPoint {
        /// The point of that name.
        #[must_use]
        pub fn from_name(name: &str) -> Option<Self> {
            POINTS.iter().find(|(_, known, _)| *known == name).map(|(point, _, _)| *point)
        }

        /// Its name on command lines and in reports.
        #[must_use]
        pub fn name(self) -> &'static str {
            self.row().1
        }

        /// What is done and what is not, in a line.
        #[must_use]
        pub fn about(self) -> &'static str {
            self.row().2
        }

        /// Every point, in the order in which a message meets them.
        pub fn all() -> impl Iterator<Item = Self> {
            POINTS.iter().map(|(point, _, _)| *point)
        }

        fn row(self) -> &'static (Self, &'static str, &'static str) {
            // A test goes through every point.
            POINTS.iter().find(|(point, _, _)| *point == self).unwrap_or(&POINTS[0])
        }
    }

    const POINTS: [(CrashPoint, &str, &str); 26] = [
        (CrashPoint::MidMigrate, "mid-migrate", "tables are changed, the migration is not committed"),
        (CrashPoint::OnAssign, "on-assign", "the source was given lanes and has not said so"),
        (CrashPoint::AfterPoll, "after-poll", "the source has read a batch and not handed it over"),
        (CrashPoint::AfterStart, "after-start", "a start record is written, its transaction has not begun"),
        (CrashPoint::MidClaim, "mid-claim", "some ids are claimed, or the claim is on its way"),
        (CrashPoint::AfterClaim, "after-claim", "the ids are claimed, no effect has run"),
        (CrashPoint::BetweenEffects, "between-effects", "one effect has run, the next one has not"),
        (CrashPoint::BeforeRollback, "before-rollback", "a message failed, its transaction is open"),
        (CrashPoint::MidDeadLetter, "mid-dead-letter", "the dead letter is written, its inbox row is not"),
        (CrashPoint::MidPark, "mid-park", "the parked message is written, its inbox row is not"),
        (CrashPoint::BeforeCommit, "before-commit", "everything is written, COMMIT is not sent"),
        (CrashPoint::CommitSent, "commit-sent", "COMMIT is sent and not answered"),
        (CrashPoint::AfterCommit, "after-commit", "the commit is durable, nothing is settled"),
        (CrashPoint::AfterPark, "after-park", "a message is parked durably, nothing is settled"),
        (CrashPoint::MidSettle, "mid-settle", "the new position is on its way"),
        (CrashPoint::AfterSettle, "after-settle", "the position is known to be kept"),
        (CrashPoint::RetryTaken, "retry-taken", "a parked message that is due is taken, nothing has run"),
        (CrashPoint::BeforeRetryCommit, "before-retry-commit", "a retry is written, COMMIT is not sent"),
        (CrashPoint::RetryCommitSent, "retry-commit-sent", "a retry's COMMIT is sent, its answer not seen"),
        (CrashPoint::RevokeBeforeDrain, "revoke-before-drain", "lanes go, the engine does not know it"),
        (CrashPoint::RevokeAfterDrain, "revoke-after-drain", "the engine has finished lanes that go"),
        (CrashPoint::OnShutdown, "on-shutdown", "the engine has stopped, the source is open"),
        (CrashPoint::MidRedrive, "mid-redrive", "dead letters are moved, not audited, nothing is committed"),
        (CrashPoint::AfterRedrive, "after-redrive", "dead letters are sent back, nobody has been told"),
        (CrashPoint::MidDiscard, "mid-discard", "dead letters are given up, nothing is committed"),
        (CrashPoint::AfterDiscard, "after-discard", "dead letters are given up, nobody has been told"),
    ];

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::cell::Cell;
        use std::rc::Rc;

        #[test]
        fn every_point_has_one_name_of_its_own_and_is_found_by_it() {
            let points: Vec<CrashPoint> = CrashPoint::all().collect();
            let last = CrashPoint::AfterDiscard as usize;
            assert_eq!(points.len(), last + 1, "a point lacks its row, or has two");
            for (at, point) in points.iter().enumerate() {
                assert_eq!(*point as usize, at, "the rows stand in the order of the points");
                assert_eq!(CrashPoint::from_name(point.name()), Some(*point));
                assert!(!point.about().is_empty());
            }
            assert_eq!(CrashPoint::from_name("nowhere"), None);
        }

        #[test]
        fn only_the_nth_time_of_the_armed_point_counts() {
            let end = Box::new(|| {});
            let armed = Armed { point: CrashPoint::AfterClaim, nth: 3, seen: AtomicU32::new(0), end };
            let mut hits = vec![];
            for nth in 1..=5 {
                assert!(!armed.hits(CrashPoint::AfterCommit), "another point");
                hits.extend(armed.hits(CrashPoint::AfterClaim).then_some(nth));
            }
            assert_eq!(hits, [3]);
        }

        /// What is handed to another task of the thread has gone out before the process would end, and
        /// the answer has not been looked at.
        #[tokio::test]
        async fn other_tasks_send_before_the_point() {
            let local = tokio::task::LocalSet::new();
            let sent = Rc::new(Cell::new(false));
            local
                .run_until(async {
                    let (hand_over, mut handed) = tokio::sync::mpsc::unbounded_channel::<()>();
                    let seen = Rc::clone(&sent);
                    tokio::task::spawn_local(async move {
                        handed.recv().await;
                        seen.set(true);
                    });
                    hand_over.send(()).unwrap();
                    assert!(!sent.get());
                    give_turns().await;
                    assert!(sent.get());
                })
                .await;
        }

        #[tokio::test]
        async fn a_request_is_answered_as_ever_while_nothing_is_armed() {
            let point = CrashPoint::CommitSent;
            assert_eq!(point.between_sending_and_answer(async { 7 }).await, 7);
            let slow = async {
                tokio::task::yield_now().await;
                8
            };
            assert_eq!(point.between_sending_and_answer(slow).await, 8);
        }
    }
}

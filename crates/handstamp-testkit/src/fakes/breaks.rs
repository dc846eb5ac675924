//! Ways to be wrong, each seen in some system that does this job.

/// One fault of a fake broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceBreak {
    /// Settles when handing over, not when asked, as soon as six others are in flight.
    SettlesEarly,
    /// Settles up to the highest position asked for, past what is unfinished.
    PassesUnfinished,
    /// Takes results of an old assignment.
    ForgetsEpoch,
    /// A null header value arrives as an empty one.
    EmptiesNullHeaders,
    /// Of a repeated header only the last arrives.
    FoldsRepeatedHeaders,
    /// Null values arrive empty.
    EmptiesNullValues,
    /// What was handed over once never comes again.
    RedeliversNothing,
    /// Hands over the same again and again, settled or not.
    RedeliversSettled,
    /// Goes on handing over a held lane.
    IgnoresHold,
    /// Never hands over again once held.
    ForgetsRelease,
    /// Settles half a second late, and forgets what is due at the close.
    ClosesWithoutSettling,
    /// Never closes the deliveries.
    NeverCloses,
    /// Settles what was in flight when the engine is gone.
    SettlesForTheDead,
    /// Takes lanes away without waiting.
    RevokesWithoutWaiting,
    /// Says that a lane is assigned after its first delivery.
    AssignsLate,
    /// Never says that it has caught up.
    NeverCatchesUp,
    /// Says that it has caught up before handing over.
    CatchesUpEarly,
    /// Does nothing on `Extend`.
    IgnoresExtend,
    /// A lease never ends.
    LeasesForEver,
    /// Batches are larger than asked.
    IgnoresLimits,
    /// Reads no command while the port is full.
    BlocksOnFullPort,
    /// Hands over in reverse order.
    Reverses,
    /// Never answers a settle.
    AnswersNothing,
    /// Forgets a released delivery.
    LosesReleased,
    /// Tags shrink from delivery to delivery.
    ShrinksTags,
}

impl SourceBreak {
    /// Every fault.
    pub const ALL: [Self; 25] = [
        Self::SettlesEarly,
        Self::PassesUnfinished,
        Self::ForgetsEpoch,
        Self::EmptiesNullHeaders,
        Self::FoldsRepeatedHeaders,
        Self::EmptiesNullValues,
        Self::RedeliversNothing,
        Self::RedeliversSettled,
        Self::IgnoresHold,
        Self::ForgetsRelease,
        Self::ClosesWithoutSettling,
        Self::NeverCloses,
        Self::SettlesForTheDead,
        Self::RevokesWithoutWaiting,
        Self::AssignsLate,
        Self::NeverCatchesUp,
        Self::CatchesUpEarly,
        Self::IgnoresExtend,
        Self::LeasesForEver,
        Self::IgnoresLimits,
        Self::BlocksOnFullPort,
        Self::Reverses,
        Self::AnswersNothing,
        Self::LosesReleased,
        Self::ShrinksTags,
    ];
}

/// One fault of a fake store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreBreak {
    /// Ids that differ only in case are one.
    FoldsIds,
    /// White space at the end of an id does not count.
    TrimsIds,
    /// An id ends at its first NUL.
    CutsIds,
    /// An unregistered consumer gets Duplicate.
    AnswersDuplicateForUnregistered,
    /// The same id twice in one call is First twice.
    TwinIsFirstTwice,
    /// A rollback keeps the claims.
    RollbackKeepsClaims,
    /// A claim counts for others before its commit.
    ClaimsVisibleEarly,
    /// Two open transactions can both be First.
    BothRacersAreFirst,
    /// Commit answers Ok and keeps nothing where effects were written.
    CommitLies,
    /// Commit keeps the claim but not the effect.
    CommitForgetsEffects,
    /// A rollback keeps the effects.
    RollbackKeepsEffects,
    /// Dead letters lose their headers.
    RecordDropsHeaders,
    /// A null header value or value of a dead letter becomes empty.
    RecordEmptiesNulls,
    /// A redelivered bad message gets one more row.
    RecordGrows,
    /// The inbox row of a dead letter says applied.
    RecordLeavesApplied,
    /// The row of a reused id says dead, though its first message was applied.
    RecordMarksReused,
    /// A prefix is kept as if it were the whole.
    RecordForgetsTruncation,
    /// Dead letters are kept though the transaction is rolled back.
    RecordAutocommits,
    /// Nobody knows when a row was written.
    ForgetsFirstSeen,
    /// A batch without ids is refused.
    RefusesEmptyBatches,
    /// A reused id is an ordinary duplicate.
    IgnoresDigest,
    /// The consumer's name does not count.
    ForgetsScope,
    /// Another fingerprint is taken silently.
    AdoptsSilently,
    /// `adopt` is refused like anything else.
    NeverAdopts,
    /// Registering again gives another key.
    RegistersAnew,
    /// Ok for a transaction that the handler ended.
    CommitsEnded,
    /// Ok for a transaction that an SQL error had rolled back.
    CommitsSwallowed,
    /// A dropped transaction keeps its claims.
    DropKeepsClaims,
    /// An abandoned transaction keeps its claims.
    AbandonKeepsClaims,
    /// Claims come in the order of the sorted ids.
    AnswersInOtherOrder,
    /// Claims after the thousandth are all First.
    CountsToAThousand,
    /// A new process has forgotten everything.
    ForgetsAtRestart,
    /// Transactions with nothing in common wait for each other.
    OneAtATime,
    /// What a database says of an error is lost.
    ClassifiesNothing,
    /// A commit with more to do is called durable before it is.
    SaysDurableEarly,
    /// A commit is called durable only when the next claims are answered.
    SaysDurableLate,
    /// After a commit that failed the next transaction is opened all the same.
    BeginsBehindAFailedCommit,
    /// Claims that come with a commit are all First.
    NextClaimsAreFirst,
}

impl StoreBreak {
    /// Every fault.
    pub const ALL: [Self; 38] = [
        Self::FoldsIds,
        Self::TrimsIds,
        Self::CutsIds,
        Self::AnswersDuplicateForUnregistered,
        Self::TwinIsFirstTwice,
        Self::RollbackKeepsClaims,
        Self::ClaimsVisibleEarly,
        Self::BothRacersAreFirst,
        Self::CommitLies,
        Self::CommitForgetsEffects,
        Self::RollbackKeepsEffects,
        Self::RecordDropsHeaders,
        Self::RecordEmptiesNulls,
        Self::RecordGrows,
        Self::RecordLeavesApplied,
        Self::RecordMarksReused,
        Self::RecordForgetsTruncation,
        Self::RecordAutocommits,
        Self::ForgetsFirstSeen,
        Self::RefusesEmptyBatches,
        Self::IgnoresDigest,
        Self::ForgetsScope,
        Self::AdoptsSilently,
        Self::NeverAdopts,
        Self::RegistersAnew,
        Self::CommitsEnded,
        Self::CommitsSwallowed,
        Self::DropKeepsClaims,
        Self::AbandonKeepsClaims,
        Self::AnswersInOtherOrder,
        Self::CountsToAThousand,
        Self::ForgetsAtRestart,
        Self::OneAtATime,
        Self::ClassifiesNothing,
        Self::SaysDurableEarly,
        Self::SaysDurableLate,
        Self::BeginsBehindAFailedCommit,
        Self::NextClaimsAreFirst,
    ];
}

/// One fault of a fake store in what it does with parked messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParkingBreak {
    /// A parked message loses its headers.
    ParkDropsHeaders,
    /// A null key, value or header value of a parked message becomes empty.
    ParkEmptiesNulls,
    /// Of a large value only the first million bytes are kept.
    ParkCutsLarge,
    /// A prefix is parked as if it were the whole.
    ParkForgetsTruncation,
    /// The inbox row of a parked message says applied.
    ParkForgetsInbox,
    /// Messages are parked though the transaction is rolled back.
    ParkAutocommits,
    /// Parking once more replaces what is parked.
    ParkOverwrites,
    /// Of one call the last is parked first.
    ParksInReverse,
    /// Parks in a transaction that the handler ended.
    ParksEnded,
    /// A failed attempt is kept though the transaction is rolled back.
    NoteAutocommits,
    /// The history forgets the database's own code.
    NoteForgetsCode,
    /// What was committed while the claims waited is not seen.
    ParkedKeysOldSnapshot,
    /// What this transaction parked itself is not seen.
    ParkedKeysForgetOwn,
    /// Answers come in another order than the keys.
    ParkedKeysInReverse,
    /// A key counts only while a message of it is parked that failed itself.
    ParkedKeysForgetFollowers,
    /// Keys of another consumer count.
    ParkedKeysOfEverybody,
    /// Rows of another consumer are taken.
    TakesForAllConsumers,
    /// Waits do not count.
    TakesNotDue,
    /// What has a wait is never due.
    WaitsForEver,
    /// The first parked is taken first, not the longest due.
    TakesInParkedOrder,
    /// Everything that is due is taken.
    IgnoresMax,
    /// Two takers get the same rows.
    LocksNothing,
    /// A taker waits until nobody has a row.
    WaitsForLocks,
    /// A rollback keeps the row locks.
    RollbackKeepsLocks,
    /// An abandoned transaction keeps its row locks.
    AbandonKeepsLocks,
    /// A dropped transaction keeps its row locks.
    DropKeepsLocks,
    /// A lost connection keeps its row locks.
    RestartKeepsLocks,
    /// A new process has forgotten what was parked.
    ForgetsAtRestart,
    /// All rows of an order key are due.
    OrderKeyIgnored,
    /// While somebody has the first of an order key, the next is due.
    OrderPassesOverLocks,
    /// The first of an order key is the first of those that are due.
    OrderAmongDueOnly,
    /// What somebody else has is taken again.
    TakesAgainWhatIsHeld,
    /// What is not due is not taken again.
    TakesAgainWhatIsDue,
    /// What is taken again comes in the order of the keys' bytes.
    TakesAgainSorted,
    /// While a message is taken, its id can be claimed anew.
    TakeFreesTheClaim,
    /// An applied message stays parked where effects were written.
    AppliedKeepsRow,
    /// The inbox row of a retried message never says applied.
    AppliedForgetsInbox,
    /// What became of a message is kept though the transaction is rolled back.
    ResumeAutocommits,
    /// Resumes in a transaction that the handler ended.
    ResumesEnded,
    /// Outcomes are given to the rows in the order of the keys' bytes.
    ResumesSorted,
    /// Failing again adds no attempt.
    AgainForgetsAttempt,
    /// Failing again adds nothing to the history.
    AgainForgetsHistory,
    /// Failing again keeps the first failure's reason.
    AgainKeepsOldFailure,
    /// Failing again does not wait.
    AgainIsDueAtOnce,
    /// Failing again loses the headers.
    AgainDropsHeaders,
    /// Failing again makes the message young.
    AgainParksAnew,
    /// Failing again gives the first place of its order key away.
    AgainGoesToTheBack,
    /// The dead letter of a parked message keeps half its value.
    DeadLosesBytes,
    /// A message that is given up stays parked.
    DeadKeepsRow,
    /// The inbox row of a message that is given up says parked.
    DeadForgetsInbox,
    /// Giving up counts as an attempt though no handler ran.
    DeadAlwaysCharges,
    /// The last attempt before giving up is not counted.
    DeadNeverCharges,
    /// What waits behind another counts as due.
    StatusCountsFollowers,
    /// What somebody has taken is not counted.
    StatusForgetsTaken,
    /// The youngest is said to be the oldest.
    StatusSaysTheYoungest,
}

impl ParkingBreak {
    /// Every fault.
    pub const ALL: [Self; 55] = [
        Self::ParkDropsHeaders,
        Self::ParkEmptiesNulls,
        Self::ParkCutsLarge,
        Self::ParkForgetsTruncation,
        Self::ParkForgetsInbox,
        Self::ParkAutocommits,
        Self::ParkOverwrites,
        Self::ParksInReverse,
        Self::ParksEnded,
        Self::NoteAutocommits,
        Self::NoteForgetsCode,
        Self::ParkedKeysOldSnapshot,
        Self::ParkedKeysForgetOwn,
        Self::ParkedKeysInReverse,
        Self::ParkedKeysForgetFollowers,
        Self::ParkedKeysOfEverybody,
        Self::TakesForAllConsumers,
        Self::TakesNotDue,
        Self::WaitsForEver,
        Self::TakesInParkedOrder,
        Self::IgnoresMax,
        Self::LocksNothing,
        Self::WaitsForLocks,
        Self::RollbackKeepsLocks,
        Self::AbandonKeepsLocks,
        Self::DropKeepsLocks,
        Self::RestartKeepsLocks,
        Self::ForgetsAtRestart,
        Self::OrderKeyIgnored,
        Self::OrderPassesOverLocks,
        Self::OrderAmongDueOnly,
        Self::TakesAgainWhatIsHeld,
        Self::TakesAgainWhatIsDue,
        Self::TakesAgainSorted,
        Self::TakeFreesTheClaim,
        Self::AppliedKeepsRow,
        Self::AppliedForgetsInbox,
        Self::ResumeAutocommits,
        Self::ResumesEnded,
        Self::ResumesSorted,
        Self::AgainForgetsAttempt,
        Self::AgainForgetsHistory,
        Self::AgainKeepsOldFailure,
        Self::AgainIsDueAtOnce,
        Self::AgainDropsHeaders,
        Self::AgainParksAnew,
        Self::AgainGoesToTheBack,
        Self::DeadLosesBytes,
        Self::DeadKeepsRow,
        Self::DeadForgetsInbox,
        Self::DeadAlwaysCharges,
        Self::DeadNeverCharges,
        Self::StatusCountsFollowers,
        Self::StatusForgetsTaken,
        Self::StatusSaysTheYoungest,
    ];
}

/// One fault of a fake sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkBreak {
    /// A large record is answered Ok and lost.
    LosesLarge,
    /// A large record is there twice, as after a retry that nobody noticed.
    DoublesLarge,
    /// Keys do not travel.
    DropsKeys,
    /// Headers do not travel.
    DropsHeaders,
    /// Of a repeated header only the last travels.
    FoldsRepeatedHeaders,
    /// A null value becomes an empty one.
    EmptiesNullValues,
    /// An empty value becomes null.
    NullsEmptyValues,
    /// A value ends at its first NUL.
    CutsAtNul,
    /// What cannot be a record is kept all the same.
    KeepsUnfit,
    /// What cannot be a record is answered Ok and dropped.
    DropsUnfit,
    /// What can never be a record is said to fit later.
    CallsUnfitTransient,
    /// What lies behind a refused record is not published.
    StopsAtUnfit,
    /// One refused record takes its whole call along.
    FailsTheCall,
    /// A refused record gets no answer.
    AnswersOnlyOk,
    /// Refusals are answered last.
    AnswersInOtherOrder,
    /// A call without records gets an answer.
    AnswersForNothing,
    /// Each call begins its destination anew.
    Overwrites,
    /// The records of a call come in reverse order.
    Reverses,
    /// Records after the thousandth of a call are lost.
    CountsToAThousand,
    /// Everything goes to one destination.
    IgnoresDestinations,
    /// Of two calls at once one overwrites the other.
    RacesItself,
    /// Ok while the destination is away.
    AnswersOkWhileAway,
    /// A destination that is away is said to be gone for good.
    CallsAwayLasting,
}

impl SinkBreak {
    /// Every fault.
    pub const ALL: [Self; 23] = [
        Self::LosesLarge,
        Self::DoublesLarge,
        Self::DropsKeys,
        Self::DropsHeaders,
        Self::FoldsRepeatedHeaders,
        Self::EmptiesNullValues,
        Self::NullsEmptyValues,
        Self::CutsAtNul,
        Self::KeepsUnfit,
        Self::DropsUnfit,
        Self::CallsUnfitTransient,
        Self::StopsAtUnfit,
        Self::FailsTheCall,
        Self::AnswersOnlyOk,
        Self::AnswersInOtherOrder,
        Self::AnswersForNothing,
        Self::Overwrites,
        Self::Reverses,
        Self::CountsToAThousand,
        Self::IgnoresDestinations,
        Self::RacesItself,
        Self::AnswersOkWhileAway,
        Self::CallsAwayLasting,
    ];
}

/// What a broken source makes of a record.
pub(crate) fn damage(mut payload: crate::Payload, broken: Option<SourceBreak>) -> crate::Payload {
    match broken {
        Some(SourceBreak::EmptiesNullHeaders) => {
            for header in &mut payload.headers {
                header.value.get_or_insert_default();
            }
        }
        Some(SourceBreak::FoldsRepeatedHeaders) => {
            let all = std::mem::take(&mut payload.headers);
            for (at, header) in all.iter().enumerate() {
                if !all[at + 1..].iter().any(|later| later.name == header.name) {
                    payload.headers.push(header.clone());
                }
            }
        }
        Some(SourceBreak::EmptiesNullValues) => {
            payload.value.get_or_insert_default();
        }
        _ => {}
    }
    payload
}

/// How late a broken source settles.
pub(crate) const LATE: std::time::Duration = std::time::Duration::from_millis(500);

/// A tag as a source that shrinks its tags shows it; the same again for the way back.
pub(crate) fn shown_tag(tag: u64, broken: Option<SourceBreak>) -> u64 {
    if broken == Some(SourceBreak::ShrinksTags) { u64::MAX / 2 - tag } else { tag }
}

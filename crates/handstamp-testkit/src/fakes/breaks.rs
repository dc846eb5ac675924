//! Ways to be wrong, each seen in some system that does this job.

/// A list of faults, and the list of them all.
macro_rules! faults {
    ($($(#[$doc:meta])* pub enum $name:ident { $($(#[$fault_doc:meta])* $fault:ident,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub enum $name { $($(#[$fault_doc])* $fault,)* }

            impl $name {
                /// Every fault.
                pub const ALL: [Self; [$(Self::$fault),*].len()] = [$(Self::$fault),*];
            }
        )*
    };
}
pub(super) use faults;

faults! {
    /// One fault of a fake broker.
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

    /// One fault of a fake store.
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

    /// One fault of a fake store in what it does with parked messages.
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
        /// What a message is to have taken back stays.
        TakesNothingBack,
        /// With one message everything in front of it is taken back.
        TakesEverythingBack,
        /// Only the first time is taken back.
        TakesBackOnce,
        /// Rows are free once something is taken back.
        TakeBackFreesRows,
        /// A savepoint says nothing of an error that was swallowed.
        SavepointSwallows,
        /// A savepoint says nothing of a transaction that the handler ended.
        SavepointsEnded,
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
        /// A dead letter of another consumer is read back.
        ReadsLettersOfOthers,
        /// Dead letters are answered in another order than that of their keys.
        ReadsLettersInReverse,
    }

    /// One fault of a fake store in what it does with start records.
    pub enum StartBreak {
        /// A start is written with the commit of the transaction behind it.
        StartsWithTheCommit,
        /// A transaction that is rolled back takes its start along.
        RollbackTakesTheStart,
        /// The first start of an owner and lane stays.
        KeepsTheFirstStart,
        /// A start of many keeps the message that was alone before it.
        KeepsTheOldAlone,
        /// A start ends those of its owner on other lanes.
        StartEndsOtherLanes,
        /// A start ends those of other owners on its lane.
        StartEndsOtherOwners,
        /// Claims behind a start are all First.
        StartClaimsAreFirst,
        /// The start of an unregistered consumer fails as a message's own statement does.
        StartHidesTheUnregistered,
        /// A new process has forgotten what was started.
        ForgetsAtRestart,
        /// Nobody knows which process a start was of.
        OrphanForgetsNode,
        /// Nobody knows when a start was written.
        OrphanForgetsTime,
        /// Positions are kept in four bytes.
        OrphanCutsPositions,
        /// A start of many is said to be one of one.
        OrphanCountsOne,
        /// Lanes that differ only in case are one.
        FoldsLanes,
        /// A start behind a commit is not written.
        ChainStartsNothing,
        /// With a start behind it, a commit is called durable only when the next claims are answered.
        ChainSaysDurableLate,
        /// After a commit that failed the next transaction is started all the same.
        ChainBeginsBehindAFailedCommit,
        /// What is taken over is gone.
        TakeOverRemoves,
        /// Each look charges an orphan again.
        ChargesTwice,
        /// Whoever died, a message has one crash.
        ChargesOnceAMessage,
        /// An owner is its own orphan.
        TakesOverItself,
        /// Lanes that nobody asked for are taken over.
        TakesOverAllLanes,
        /// Orphans of another consumer are taken over.
        TakesOverAllConsumers,
        /// Nobody asks the inbox.
        ChargesKnown,
        /// Only an applied message is known.
        ChargesUnlessApplied,
        /// A discarded message is charged.
        ChargesDiscarded,
        /// An orphan of a message that the inbox knows stays.
        KeepsKnownOrphans,
        /// An orphan of a message at its end leaves the message its crashes.
        KnownKeepsCrashes,
        /// An orphan of a message that is parked takes the message's crashes along.
        KnownForgetsParkedCrashes,
        /// Who is found alone on a lane is charged at first sight.
        TakeOverChargesAtOnce,
        /// Who is found alone on a lane a second time is charged, though it moved.
        TakeOverForgetsWhen,
        /// A crash that was told before is new.
        AlwaysNew,
        /// No crash is new.
        NeverNew,
        /// The newest crash comes first.
        CrashesNewestFirst,
        /// Crashes are told only of owners that left an orphan.
        TellsCrashesOfOrphansOnly,
        /// Crashes of messages that no orphan names are told.
        TellsEveryCrash,
        /// Nobody knows which process died.
        CrashForgetsNode,
        /// Nobody knows when a message had started that killed its process.
        CrashForgetsTime,
        /// Ending a lane's start ends those of all lanes.
        EndsAllLanes,
        /// Ending starts ends those of every owner.
        EndsAllOwners,
        /// Ending starts ends those of every consumer.
        EndsForAllConsumers,
        /// Ending all starts leaves those of parked messages.
        EndKeepsParkedStarts,
        /// Ending starts takes crashes back.
        EndTakesCrashes,
        /// Who withdraws leaves its starts.
        WithdrawKeepsStarts,
        /// Who withdraws leaves its starts of parked messages.
        WithdrawKeepsParkedStarts,
        /// Who withdraws stays charged.
        WithdrawKeepsCrashes,
        /// Who withdraws loses what it holds elsewhere.
        WithdrawTakesEverything,
        /// Who withdraws takes everybody's crashes back.
        WithdrawTakesAllCrashes,
        /// Who withdraws takes starts of other consumers along.
        WithdrawsForAllConsumers,
        /// What is passed stays.
        ForgetKeepsPassed,
        /// All orphans of a lane are forgotten.
        ForgetsWholeLanes,
        /// What is decided keeps its crashes.
        AbsolveKeepsCrashes,
        /// The crashes of all messages are forgotten.
        AbsolveTakesAllCrashes,
        /// Crashes are forgotten by a transaction that is rolled back.
        AbsolveAutocommits,
        /// Orphans of another consumer are forgotten.
        ForgetsForAllConsumers,
        /// Parked messages are taken without a start.
        DueStartsNothing,
        /// A suspect is answered together with others.
        SuspectsTogether,
        /// A suspect is answered before those in front of it.
        SuspectsFirst,
        /// What somebody still has is charged.
        SuspectsTheLiving,
        /// An owner suspects what it started itself.
        SuspectsItself,
        /// A suspect is never charged.
        DueNeverCharges,
        /// Who was alone with a parked message is charged at first sight.
        DueChargesAtOnce,
        /// Who was alone with a parked message is charged at second sight, though it moved.
        DueForgetsWhen,
        /// Nobody says that a message is suspected.
        SuspectsSilently,
        /// What has company is started as if it had none.
        CompanyIsNone,
        /// Who starts a parked message stays charged.
        StarterStaysCharged,
        /// Of what was started together each is charged.
        DueChargesTogether,
        /// Crashes of what is due are not told.
        DueTellsNoCrashes,
        /// Parked messages are taken again without a start.
        AgainStartsNothing,
        /// Parked messages that are not taken again stay started.
        AgainKeepsOldStarts,
        /// Crashes of what is taken again are not told.
        AgainTellsNoCrashes,
        /// What is resumed stays started.
        ResumeKeepsStarts,
        /// What others had started stays started.
        ResumeEndsItsOwnStarts,
        /// Starts end before the outcome is committed.
        ResumeEndsStartsAtOnce,
        /// An applied message keeps its crashes.
        AppliedKeepsCrashes,
        /// A message that is given up keeps its crashes.
        DeadKeepsCrashes,
        /// Failing again takes crashes back.
        FailingForgetsCrashes,
        /// A dead letter that is sent back keeps its crashes.
        RedriveKeepsCrashes,
    }

    /// One fault of a fake store in what it does with marks of versions.
    pub enum VersionBreak {
        /// A key without a mark is told that of another one of its call.
        InventsMarks,
        /// A version below zero is taken, whatever the mark.
        TakesNegatives,
        /// A version of another kind is taken, whatever the mark.
        MixesKinds,
        /// Of a version only the first hundred bytes are kept.
        CutsVersions,
        /// The first byte of a key does not count.
        ForgetsKeyStart,
        /// Keys after the thousandth of a call are neither raised nor answered.
        CountsToAThousand,
        /// The consumer does not count.
        ForgetsScope,
        /// A rollback keeps the marks.
        RollbackKeepsMarks,
        /// A rollback keeps the locks of the marks.
        RollbackKeepsLocks,
        /// What a transaction has raised it does not see.
        ForgetsOwn,
        /// A commit that writes effects too forgets the marks.
        CommitForgetsMarks,
        /// A new process has forgotten the marks.
        ForgetsAtRestart,
        /// Raises in a transaction that the handler ended.
        RaisesEnded,
        /// A call without keys is told all marks.
        AnswersForNothing,
        /// A key that another transaction has is not waited for.
        WaitsForNobody,
        /// What was committed while a key was waited for is not seen.
        OldSnapshot,
        /// Keys are not locked in one order.
        LocksInTwoOrders,
        /// Transactions with no key in common wait for each other.
        OneAtATime,
    }

    /// One fault of a fake sink.
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

//! Ways to forget what must not be forgotten.

use super::breaks::faults;

faults! {
    /// One fault of a fake store in how it forgets.
    pub enum PruneBreak {
        /// The age does not count.
        TakesRecent,
        /// Ids of parked messages go.
        TakesParked,
        /// Ids of dead messages go.
        TakesDead,
        /// Ids of discarded messages stay.
        KeepsDiscarded,
        /// Ids of other consumers go.
        ForgetsScope,
        /// Everything goes at once.
        IgnoresMax,
        /// What is said to be gone is there.
        DeletesNothing,
        /// Between two steps some are passed over.
        SkipsBetweenSteps,
        /// There is never said to be more.
        EndsEarly,
        /// What another one deleted meanwhile is counted too.
        CountsWhatOthersTook,
        /// An open transaction has to end first.
        WaitsForClaims,
        /// Counting deletes.
        CountDeletes,
        /// What may not go is counted too.
        CountsEverything,
        /// Everything is counted, however much it is.
        CountIgnoresMax,
        /// Nobody knows up to when ids are forgotten.
        ForgetsHorizon,
        /// Ids are said to be forgotten though none went.
        NotesWithoutDeleting,
        /// Ids that are gone are said to be there again.
        MovesTheHorizonBack,
        /// What one consumer forgot, all have.
        HorizonOfEverybody,
        /// Marks of versions go along.
        TakesMarks,
        /// Failed attempts stay.
        KeepsHistories,
        /// All failed attempts go at once.
        HistoriesIgnoreMax,
        /// Failed attempts of other consumers go.
        TakesHistoriesOfEverybody,
        /// Failed attempts of parked messages go.
        TakesParkedHistories,
        /// Failed attempts of dead messages go.
        TakesDeadHistories,
        /// The age of failed attempts does not count.
        TakesRecentHistories,
    }
}

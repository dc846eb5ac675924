//! Figures of a published Python lab (confluent-kafka 2.15, Kafka 4.3, PostgreSQL 18, one broker on one
//! machine), shown beside ours: another language and another machine, so the order of magnitude is what
//! can be compared.

/// Doubled and lost effects of 20 kills: median, least and most of five runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KillFigure {
    /// The subject's name.
    pub subject: &'static str,
    /// Doubled a run.
    pub doubled: (u64, u64, u64),
    /// Lost a run.
    pub lost: (u64, u64, u64),
}

/// The kill lab.
pub const KILL: [KillFigure; 4] = [
    KillFigure { subject: "a1", doubled: (3648, 2777, 4525), lost: (0, 0, 0) },
    KillFigure { subject: "a2", doubled: (2881, 1823, 3622), lost: (63, 48, 147) },
    KillFigure { subject: "b", doubled: (5, 0, 7), lost: (0, 0, 0) },
    KillFigure { subject: "c", doubled: (0, 0, 0), lost: (0, 0, 0) },
];

/// Messages a second of one consumer, 100,000 messages, median of five.
pub const THROUGHPUT: [(&str, f64); 4] = [("a1", 445.1), ("a2", 447.5), ("b", 347.8), ("c", 323.0)];

/// Bytes per remembered id, a million rows, after VACUUM: heap, index, together.
pub const STORAGE: [(&str, f64, f64, f64); 3] =
    [("text", 93.1, 101.3, 194.5), ("uuid v4", 68.3, 65.6, 134.0), ("uuid v7", 68.3, 49.7, 118.1)];

/// Of 50 evictions, how many doubled their effect.
pub const ZOMBIE: [(&str, u64); 2] = [("b", 50), ("c", 0)];

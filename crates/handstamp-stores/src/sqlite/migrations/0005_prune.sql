-- What finds old attempts, and up to when ids are forgotten.
-- Lock: the write lock of the migration's transaction.

CREATE INDEX handstamp_attempts_by_time ON handstamp_attempts (consumer, at_ms);

-- One row for each consumer of which ids were deleted. The inbox has no index by time: it would hold each id a second
-- time. Old ids are found by going through it in the order of its key, some of it at each step.
--   horizon  seconds since 2020-01-01 00:00 UTC: an id that was first seen before may be forgotten
CREATE TABLE handstamp_pruned (
    consumer INTEGER PRIMARY KEY REFERENCES handstamp_consumers (id),
    horizon  INTEGER NOT NULL,
    at       INTEGER NOT NULL DEFAULT (unixepoch())
) STRICT;

-- What processes are about to hand to a handler, and which messages killed one.
-- Lock: the write lock of the migration's transaction.

-- Start records of lanes, one row a lane and owner. They have to survive the process, not a power cut: they are
-- written without waiting for the disk.
--   owner       one run of a consumer: 16 random bytes
--   node        what its process is called
--   first_position, last_position, count   the span
--   alone       the message's id where it is one alone, as the inbox has it, and alone_dedup its key
CREATE TABLE handstamp_starts (
    consumer       INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    lane           TEXT    NOT NULL,
    owner          BLOB    NOT NULL CHECK (length(owner) = 16),
    node           TEXT    NOT NULL,
    at_ms          INTEGER NOT NULL,
    first_position INTEGER NOT NULL,
    last_position  INTEGER NOT NULL,
    count          INTEGER NOT NULL,
    alone          BLOB,
    alone_dedup    BLOB    CHECK (length(alone_dedup) = 16),
    PRIMARY KEY (consumer, lane, owner)
) STRICT, WITHOUT ROWID;

-- Start records of parked messages, one row a message and owner.
--   alone       1: it was the only one
CREATE TABLE handstamp_parked_starts (
    consumer INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    dedup    BLOB    NOT NULL CHECK (length(dedup) = 16),
    owner    BLOB    NOT NULL CHECK (length(owner) = 16),
    node     TEXT    NOT NULL,
    at_ms    INTEGER NOT NULL,
    alone    INTEGER NOT NULL CHECK (alone IN (0, 1)),
    PRIMARY KEY (consumer, dedup, owner)
) STRICT, WITHOUT ROWID;

CREATE INDEX handstamp_parked_starts_by_owner ON handstamp_parked_starts (consumer, owner);

-- A process died while it handled this message alone: one row an owner.
CREATE TABLE handstamp_crashes (
    consumer INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    dedup    BLOB    NOT NULL CHECK (length(dedup) = 16),
    owner    BLOB    NOT NULL CHECK (length(owner) = 16),
    node     TEXT    NOT NULL,
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY (consumer, dedup, owner)
) STRICT, WITHOUT ROWID;

CREATE INDEX handstamp_crashes_by_owner ON handstamp_crashes (consumer, owner);

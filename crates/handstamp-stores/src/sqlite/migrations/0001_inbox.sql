-- Inbox, consumers, dead letters and what was run to make them.
-- Lock: the write lock of the migration's transaction.

-- A consumer is a namespace of inbox ids. Rows of the inbox carry its number, not its name.
CREATE TABLE handstamp_consumers (
    id            INTEGER PRIMARY KEY CHECK (id BETWEEN 1 AND 32767),
    name          TEXT    NOT NULL UNIQUE,
    fingerprint   TEXT,
    registered_at INTEGER NOT NULL DEFAULT (unixepoch())
) STRICT;

-- One row for each message id whose outcome is durable. WITHOUT ROWID: the row lies in the index itself,
-- about 38 bytes for a UUID instead of 67. STRICT and BLOB: no affinity ever changes an id.
--   id       16 bytes: a UUID; other lengths: the id's bytes, with one 0x00 behind 16 or more
--   digest   first 64 bits of BLAKE3 over the value; NULL: reuse of the id goes unnoticed
--   seen_at  seconds since 2020-01-01 00:00 UTC, by this machine's clock
--   state    a applied, p parked, d dead, x discarded
CREATE TABLE handstamp_inbox (
    id       BLOB    NOT NULL,
    consumer INTEGER NOT NULL,
    digest   INTEGER,
    seen_at  INTEGER NOT NULL,
    state    TEXT    NOT NULL,
    PRIMARY KEY (id, consumer)
) STRICT, WITHOUT ROWID;

-- Messages that were given up, byte for byte. Times are milliseconds since 1970-01-01 UTC.
CREATE TABLE handstamp_dead_letters (
    consumer         INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    dedup            BLOB    NOT NULL CHECK (length(dedup) = 16),
    failed_at_ms     INTEGER NOT NULL,
    received_at_ms   INTEGER NOT NULL,
    attempts         INTEGER NOT NULL,
    class            TEXT    NOT NULL,
    code             TEXT,
    reason           TEXT    NOT NULL,
    id               BLOB,
    digest           INTEGER NOT NULL,
    topic            TEXT    NOT NULL,
    partition        INTEGER NOT NULL,
    position         INTEGER NOT NULL,
    line             INTEGER,
    timestamp_ms     INTEGER,
    key              BLOB,
    headers          BLOB    NOT NULL,
    value_full_bytes INTEGER,
    value_blake3     BLOB,
    value            BLOB,
    UNIQUE (consumer, dedup)
) STRICT;

CREATE INDEX handstamp_dead_letters_by_time ON handstamp_dead_letters (consumer, failed_at_ms, dedup);

-- The user's own schema file: run once, and known again by its checksum.
CREATE TABLE handstamp_setup (
    name     TEXT    NOT NULL PRIMARY KEY,
    checksum BLOB    NOT NULL,
    run_at   INTEGER NOT NULL DEFAULT (unixepoch())
) STRICT;

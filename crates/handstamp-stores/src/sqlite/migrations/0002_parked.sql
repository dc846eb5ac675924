-- Messages that wait for a retry, failed attempts, and what operators did.
-- Lock: the write lock of the migration's transaction.

-- Messages that wait for a retry, byte for byte. The columns are those of handstamp_dead_letters and:
--   seq           the order in which messages were parked; decides among those of one order key
--   due_at_ms     not before this time, by this machine's clock
--   parked_at_ms  when the message was parked, by this machine's clock
--   order_key     BLAKE3-128 of topic and key, where the order of its key must hold
--   behind        1: another of its order key was parked before it and is still here. So no index of what is due
--                 holds the thousands that wait behind one key.
CREATE TABLE handstamp_parked (
    seq              INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer         INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    dedup            BLOB    NOT NULL CHECK (length(dedup) = 16),
    due_at_ms        INTEGER NOT NULL,
    parked_at_ms     INTEGER NOT NULL,
    order_key        BLOB,
    behind           INTEGER NOT NULL CHECK (behind IN (0, 1)),
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

CREATE INDEX handstamp_parked_by_due ON handstamp_parked (consumer, due_at_ms, seq) WHERE NOT behind;
CREATE INDEX handstamp_parked_by_order ON handstamp_parked (consumer, order_key, seq) WHERE order_key IS NOT NULL;
-- In the order of parking within each consumer: an index ends with the row's number, which is seq.
CREATE INDEX handstamp_parked_by_seq ON handstamp_parked (consumer);

-- Whoever takes the first of an order key out, a person included, lets the next one be the first.
CREATE TRIGGER handstamp_parked_next AFTER DELETE ON handstamp_parked
WHEN OLD.order_key IS NOT NULL AND NOT OLD.behind
BEGIN
    UPDATE handstamp_parked SET behind = 0 WHERE seq = (
        SELECT n.seq FROM handstamp_parked AS n INDEXED BY handstamp_parked_by_order
        WHERE n.consumer = OLD.consumer AND n.order_key = OLD.order_key
        ORDER BY n.seq LIMIT 1
    );
END;

-- Failed attempts of messages that were parked or given up, oldest first by number.
CREATE TABLE handstamp_attempts (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    dedup    BLOB    NOT NULL CHECK (length(dedup) = 16),
    at_ms    INTEGER NOT NULL,
    node     TEXT    NOT NULL,
    class    TEXT    NOT NULL,
    code     TEXT,
    reason   TEXT    NOT NULL
) STRICT;

CREATE INDEX handstamp_attempts_by_message ON handstamp_attempts (consumer, dedup, number);

-- What operators did to dead letters, one row a message. Rows of one command share its operation.
--   action  redrive, discard
CREATE TABLE handstamp_audit (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer  INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    operation BLOB    NOT NULL CHECK (length(operation) = 16),
    at_ms     INTEGER NOT NULL,
    action    TEXT    NOT NULL,
    done_by   TEXT    NOT NULL,
    why       TEXT    NOT NULL,
    dedup     BLOB    NOT NULL CHECK (length(dedup) = 16),
    id        BLOB
) STRICT;

CREATE INDEX handstamp_audit_by_message ON handstamp_audit (consumer, dedup, number);
-- In the order of the lines within each consumer, as with handstamp_parked_by_seq.
CREATE INDEX handstamp_audit_by_number ON handstamp_audit (consumer);

-- Inbox, consumers and dead letters.
-- Lock: CREATE takes ACCESS EXCLUSIVE on the new relations only; nothing that exists is touched.

-- A consumer is a namespace of inbox ids. Rows of the inbox carry its number, not its name.
CREATE TABLE {schema}.consumers (
    id            int2        PRIMARY KEY CHECK (id > 0),
    name          text        NOT NULL UNIQUE,
    fingerprint   text,
    registered_at timestamptz NOT NULL DEFAULT now()
);

-- One row for each message id whose outcome is durable. The columns are ordered by size so that no
-- byte is padding. There is no index for cleanup and no foreign key: the claim checks the consumer.
--   digest   first 64 bits of BLAKE3 over the value; NULL: reuse of the id goes unnoticed
--   seen_at  seconds since 2020-01-01 00:00 UTC, by this server's clock
--   state    a applied, p parked, d dead, x discarded
--   id       16 bytes: a UUID; other lengths: the id's bytes, with one 0x00 behind 16 or more
CREATE TABLE {schema}.inbox (
    digest   int8,
    seen_at  int4   NOT NULL,
    consumer int2   NOT NULL,
    state    "char" NOT NULL,
    id       bytea  NOT NULL,
    PRIMARY KEY (id, consumer)
);

-- Messages that were given up, byte for byte. Times are milliseconds since 1970-01-01 UTC, kept as
-- numbers because a producer's time may be outside of what timestamptz holds.
CREATE TABLE {schema}.dead_letters (
    consumer         int2    NOT NULL REFERENCES {schema}.consumers (id),
    dedup            bytea   NOT NULL CHECK (length(dedup) = 16),
    failed_at_ms     int8    NOT NULL,
    received_at_ms   int8    NOT NULL,
    attempts         int8    NOT NULL,
    class            text    NOT NULL,
    code             text,
    reason           text    NOT NULL,
    id               bytea,
    digest           int8    NOT NULL,
    topic            text    NOT NULL,
    partition        int4    NOT NULL,
    position         int8    NOT NULL,
    line             int8,
    timestamp_ms     int8,
    key              bytea,
    value            bytea,
    header_names     bytea[] NOT NULL,
    header_values    bytea[] NOT NULL,
    value_full_bytes int8,
    value_blake3     bytea,
    PRIMARY KEY (consumer, dedup)
);

CREATE INDEX dead_letters_by_time ON {schema}.dead_letters (consumer, failed_at_ms, dedup);

-- The user's own setup files that were run, and the relations that each of them made.
CREATE TABLE {schema}.setups (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    relations  text[]      NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

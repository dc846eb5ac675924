-- What processes are about to hand to a handler, and which messages killed one.
-- Lock: CREATE takes ACCESS EXCLUSIVE on the new relations only; nothing that exists is touched.

-- Start records of lanes, one row a lane and owner. Unlogged: no WAL, no wait for a disk. A crash of the server
-- empties it, a standby has none: it has to survive our process only. No foreign key: its check locks the consumer's
-- row, and that is written to the WAL and waited for.
--   owner       one run of a consumer: 16 random bytes
--   node        what its process is called
--   first_position, last_position, count   the span
--   alone       the message's id where it is one alone, as the inbox has it, and alone_dedup its key
-- Rows are overwritten all the time: room in each page keeps that within the page.
CREATE UNLOGGED TABLE {schema}.starts (
    consumer       int2  NOT NULL,
    lane           text  NOT NULL,
    owner          bytea NOT NULL CHECK (length(owner) = 16),
    node           text  NOT NULL,
    at_ms          int8  NOT NULL,
    first_position int8  NOT NULL,
    last_position  int8  NOT NULL,
    count          int4  NOT NULL,
    alone          bytea,
    alone_dedup    bytea CHECK (length(alone_dedup) = 16),
    PRIMARY KEY (consumer, lane, owner)
) WITH (fillfactor = 20);

-- Start records of parked messages, one row a message and owner.
--   alone       it was the only one
CREATE UNLOGGED TABLE {schema}.parked_starts (
    consumer int2  NOT NULL,
    dedup    bytea NOT NULL CHECK (length(dedup) = 16),
    owner    bytea NOT NULL CHECK (length(owner) = 16),
    node     text  NOT NULL,
    at_ms    int8  NOT NULL,
    alone    bool  NOT NULL,
    PRIMARY KEY (consumer, dedup, owner)
);

CREATE INDEX parked_starts_by_owner ON {schema}.parked_starts (consumer, owner);

-- A process died while it handled this message alone: one row an owner.
CREATE TABLE {schema}.crashes (
    consumer int2  NOT NULL REFERENCES {schema}.consumers (id),
    dedup    bytea NOT NULL CHECK (length(dedup) = 16),
    owner    bytea NOT NULL CHECK (length(owner) = 16),
    node     text  NOT NULL,
    at_ms    int8  NOT NULL,
    PRIMARY KEY (consumer, dedup, owner)
);

CREATE INDEX crashes_by_owner ON {schema}.crashes (consumer, owner);

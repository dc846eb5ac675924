-- Messages that wait for a retry, failed attempts, and what operators did.
-- Lock: CREATE takes ACCESS EXCLUSIVE on the new relations only; nothing that exists is touched.

-- Messages that wait for a retry, byte for byte. The columns are those of dead_letters and:
--   due_at_ms     not before this time, by this server's clock
--   parked_at_ms  when the message was parked, by this server's clock
--   seq           the order in which messages were parked; decides among those of one order key
--   order_key     BLAKE3-128 of topic and key, where the order of its key must hold
--   behind        false: may be the first of its order key. True spares a look: it was parked behind another
--                 one whose lock was held then, and whoever removes that one says false here. So no index of
--                 what is due holds the thousands that wait behind one key.
CREATE TABLE {schema}.parked (
    consumer         int2    NOT NULL REFERENCES {schema}.consumers (id),
    dedup            bytea   NOT NULL CHECK (length(dedup) = 16),
    seq              int8    NOT NULL GENERATED ALWAYS AS IDENTITY,
    due_at_ms        int8    NOT NULL,
    parked_at_ms     int8    NOT NULL,
    order_key        bytea,
    behind           bool    NOT NULL,
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

CREATE INDEX parked_by_due ON {schema}.parked (consumer, due_at_ms, seq) WHERE NOT behind;
CREATE INDEX parked_by_order ON {schema}.parked (consumer, order_key, seq) WHERE order_key IS NOT NULL;
CREATE INDEX parked_by_seq ON {schema}.parked (consumer, seq);

-- Failed attempts of messages that were parked or given up, oldest first by number.
CREATE TABLE {schema}.attempts (
    consumer int2  NOT NULL REFERENCES {schema}.consumers (id),
    dedup    bytea NOT NULL CHECK (length(dedup) = 16),
    number   int8  NOT NULL GENERATED ALWAYS AS IDENTITY,
    at_ms    int8  NOT NULL,
    node     text  NOT NULL,
    class    text  NOT NULL,
    code     text,
    reason   text  NOT NULL,
    PRIMARY KEY (consumer, dedup, number)
);

-- What operators did to dead letters, one row a message. Rows of one command share its operation.
--   action  redrive, discard
CREATE TABLE {schema}.audit (
    number    int8        PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    consumer  int2        NOT NULL REFERENCES {schema}.consumers (id),
    operation bytea       NOT NULL CHECK (length(operation) = 16),
    at        timestamptz NOT NULL DEFAULT now(),
    action    text        NOT NULL,
    done_by   text        NOT NULL,
    why       text        NOT NULL,
    dedup     bytea       NOT NULL CHECK (length(dedup) = 16),
    id        bytea
);

CREATE INDEX audit_by_message ON {schema}.audit (consumer, dedup, number);

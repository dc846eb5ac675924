-- The greatest version applied of each key.
-- Lock: CREATE takes ACCESS EXCLUSIVE on the new relation only; nothing that exists is touched.

-- One row for each key of which something was applied under a version guard.
--   key       BLAKE3-128 of what versions are compared within
--   version   the mark: bytes whose order is that of the versions; the first is their kind
--   previous  the mark before it was last asked for, so that one statement can raise it and answer what it was
-- The number of the consumer is checked by the claim, as in the inbox. Rows are overwritten all the time: room in
-- each page keeps that within the page.
CREATE TABLE {schema}.versions (
    consumer int2  NOT NULL,
    key      bytea NOT NULL CHECK (length(key) = 16),
    version  bytea NOT NULL CHECK (length(version) > 0),
    previous bytea,
    PRIMARY KEY (consumer, key)
) WITH (fillfactor = 70);

-- The greatest version applied of each key.
-- Lock: the write lock of the migration's transaction.

-- One row for each key of which something was applied under a version guard.
--   key       BLAKE3-128 of what versions are compared within
--   version   the mark: bytes whose order is that of the versions; the first is their kind
--   previous  the mark before it was last asked for, so that one statement can raise it and answer what it was
CREATE TABLE handstamp_versions (
    consumer INTEGER NOT NULL REFERENCES handstamp_consumers (id),
    key      BLOB    NOT NULL CHECK (length(key) = 16),
    version  BLOB    NOT NULL CHECK (length(version) > 0),
    previous BLOB,
    PRIMARY KEY (consumer, key)
) STRICT, WITHOUT ROWID;

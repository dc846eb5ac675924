-- The wallet's own tables: run once by `migrate`, recorded by checksum.
CREATE TABLE accounts (
    id      INTEGER PRIMARY KEY,
    balance INTEGER NOT NULL DEFAULT 0 CHECK (balance >= 0)
) STRICT;

-- No unique key here on purpose: that nothing is doubled is the inbox's doing alone.
CREATE TABLE ledger (
    event_id   TEXT    NOT NULL,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    amount     INTEGER NOT NULL
) STRICT;

INSERT INTO accounts (id) VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10);

-- Your own tables. Run once, together with Handstamp's own, and remembered by its checksum.
CREATE TABLE accounts (
    id      INTEGER PRIMARY KEY,
    balance INTEGER NOT NULL DEFAULT 0 CHECK (balance >= 0)
) STRICT;

-- No unique key is needed here: that a credit is written once is the inbox's doing.
CREATE TABLE ledger (
    event_id   TEXT    NOT NULL,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    amount     INTEGER NOT NULL
) STRICT;

INSERT INTO accounts (id) VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10);

-- Your own tables. Run once by `handstamp migrate`, together with Handstamp's own, and remembered by its checksum.
CREATE TABLE accounts (
    id      bigint PRIMARY KEY,
    balance bigint NOT NULL DEFAULT 0 CHECK (balance >= 0)
);

-- No unique key is needed here: that a credit is written once is the inbox's doing.
CREATE TABLE ledger (
    event_id   text   NOT NULL,
    account_id bigint NOT NULL REFERENCES accounts (id),
    amount     bigint NOT NULL
);

INSERT INTO accounts (id) SELECT generate_series(1, 10);

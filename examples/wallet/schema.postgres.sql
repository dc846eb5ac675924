-- The wallet's own tables: run once by `migrate`, recorded by checksum.
CREATE TABLE accounts (
    id      bigint PRIMARY KEY,
    balance bigint NOT NULL DEFAULT 0 CHECK (balance >= 0)
);

-- No unique key here on purpose: that nothing is doubled is the inbox's doing alone.
CREATE TABLE ledger (
    event_id   text   NOT NULL,
    account_id bigint NOT NULL REFERENCES accounts (id),
    amount     bigint NOT NULL
);

INSERT INTO accounts (id) SELECT generate_series(1, 10);

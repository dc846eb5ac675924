CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
INSERT INTO accounts (id) SELECT generate_series(1, 100);
-- No unique key on the id: the ledger shows what ran twice.
CREATE TABLE ledger (event_id text NOT NULL, account_id bigint NOT NULL, amount bigint NOT NULL);

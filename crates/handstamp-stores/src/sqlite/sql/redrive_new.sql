-- Claims a new id for a dead letter, as parked: one changed row means that it was free.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_inbox.
INSERT INTO handstamp_inbox (id, consumer, digest, seen_at, state)
VALUES (?1, ?2, ?3, unixepoch() - 1577836800, 'p')
ON CONFLICT (id, consumer) DO NOTHING

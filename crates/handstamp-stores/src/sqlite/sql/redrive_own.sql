-- Says parked in the inbox for an id whose own message is a dead letter: one changed row means that it now does.
-- A row that was cleaned up meanwhile is written again.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_inbox.
INSERT INTO handstamp_inbox (id, consumer, digest, seen_at, state)
VALUES (?1, ?2, ?3, unixepoch() - 1577836800, 'p')
ON CONFLICT (id, consumer) DO UPDATE SET state = 'p' WHERE state = 'd'

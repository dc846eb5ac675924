-- Claims one id of a registered consumer: one changed row means First.
-- Lock: the write lock, taken by BEGIN IMMEDIATE before. Index: primary key of handstamp_inbox.
INSERT INTO handstamp_inbox (id, consumer, digest, seen_at, state)
VALUES (?1, ?2, ?3, unixepoch() - 1577836800, 'a')
ON CONFLICT (id, consumer) DO NOTHING

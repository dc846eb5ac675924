-- Takes an id that another table knew as applied into a consumer's inbox: one changed row means that it was new.
-- Lock: the write lock, taken by BEGIN IMMEDIATE before. Index: primary key of handstamp_inbox.
INSERT INTO handstamp_inbox (id, consumer, digest, seen_at, state)
VALUES (?1, ?2, NULL, coalesce(?3, unixepoch() - 1577836800), 'a')
ON CONFLICT (id, consumer) DO NOTHING

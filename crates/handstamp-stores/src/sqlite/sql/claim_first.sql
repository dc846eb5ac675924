-- The same, and nothing when the consumer is not registered: the first claim of a call.
-- Lock: the write lock; in a deferred transaction it is taken here. Index: primary keys of both tables.
INSERT INTO handstamp_inbox (id, consumer, digest, seen_at, state)
SELECT ?1, c.id, ?3, unixepoch() - 1577836800, 'a' FROM handstamp_consumers AS c WHERE c.id = ?2 AND c.name = ?4
ON CONFLICT (id, consumer) DO NOTHING

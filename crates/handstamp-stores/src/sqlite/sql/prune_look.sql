-- Goes through the inbox in the order of its key, from behind a row on: each row's key, and whether it is one of the
-- consumer's that is old and applied or discarded.
-- Lock: none (a snapshot). Index: primary key of handstamp_inbox.
SELECT id, consumer, consumer = ?1 AND seen_at < unixepoch() - 1577836800 - ?2 AND state IN ('a', 'x')
FROM handstamp_inbox
WHERE (id, consumer) > (?3, ?4)
ORDER BY id, consumer
LIMIT ?5

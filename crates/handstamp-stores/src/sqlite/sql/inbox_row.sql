-- One inbox row by the consumer's name.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, primary key of handstamp_inbox.
SELECT i.state, i.seen_at, i.digest
FROM handstamp_consumers AS c JOIN handstamp_inbox AS i ON i.consumer = c.id AND i.id = ?2
WHERE c.name = ?1

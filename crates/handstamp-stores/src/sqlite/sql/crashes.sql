-- The crashes of one message, the oldest first.
-- Lock: none beyond the transaction's. Index: primary key of handstamp_crashes; the few rows are sorted.
SELECT c.owner, c.node, c.at_ms FROM handstamp_crashes AS c
WHERE c.consumer = ?1 AND c.dedup = ?2
ORDER BY c.at_ms, c.owner

-- Adds a failed attempt to the history of its message, unless it has a hundred.
-- Lock: the write lock of the transaction. Index: handstamp_attempts_by_message gets an entry, and a hundred are
-- looked at, at most.
INSERT INTO handstamp_attempts (consumer, dedup, at_ms, node, class, code, reason)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
WHERE (SELECT count(*) FROM (
    SELECT 1 FROM handstamp_attempts AS o INDEXED BY handstamp_attempts_by_message
    WHERE o.consumer = ?1 AND o.dedup = ?2 LIMIT 100)) < 100

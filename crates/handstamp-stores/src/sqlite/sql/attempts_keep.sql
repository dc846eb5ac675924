-- Keeps why a dead letter was given up in the history of its message, where that says nothing of it.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup); handstamp_attempts_by_message, one look.
INSERT INTO handstamp_attempts (consumer, dedup, at_ms, node, class, code, reason)
SELECT d.consumer, d.dedup, d.failed_at_ms, '', d.class, d.code, d.reason
FROM handstamp_dead_letters AS d
WHERE d.consumer = ?1 AND d.dedup = ?2
  AND NOT EXISTS (SELECT 1 FROM handstamp_attempts AS o INDEXED BY handstamp_attempts_by_message
    WHERE o.consumer = ?1 AND o.dedup = ?2)

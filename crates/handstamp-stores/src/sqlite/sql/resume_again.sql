-- Makes a parked message due later, with one attempt more and its last failure.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup).
UPDATE handstamp_parked
SET attempts = attempts + 1, failed_at_ms = ?3, class = ?4, code = ?5, reason = ?6,
    due_at_ms = CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) + ?7
WHERE consumer = ?1 AND dedup = ?2

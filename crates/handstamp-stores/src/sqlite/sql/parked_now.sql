-- Makes a parked message due at once.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup).
UPDATE handstamp_parked SET due_at_ms = CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)
WHERE consumer = ?1 AND dedup = ?2

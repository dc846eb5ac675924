-- Adds a failed attempt to the history of its message.
-- Lock: the write lock of the transaction. Index: handstamp_attempts_by_message gets an entry.
INSERT INTO handstamp_attempts (consumer, dedup, at_ms, node, class, code, reason)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- Says what was done to a message.
-- Lock: the write lock of the transaction. Index: handstamp_audit_by_message gets an entry.
INSERT INTO handstamp_audit (consumer, operation, at_ms, action, done_by, why, dedup, id)
VALUES (?1, ?2, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER), ?3, ?4, ?5, ?6, ?7)

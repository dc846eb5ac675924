-- Deletes one inbox row, if it is still old and applied or discarded.
-- Lock: the write lock, taken by BEGIN IMMEDIATE before. Index: primary key of handstamp_inbox.
DELETE FROM handstamp_inbox
WHERE id = ?1 AND consumer = ?2 AND seen_at < unixepoch() - 1577836800 - ?3 AND state IN ('a', 'x')

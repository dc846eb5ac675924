-- Writes a consumer's fingerprint: where there was none, or where it may be replaced (?3).
-- Lock: the write lock. Index: unique name of handstamp_consumers.
UPDATE handstamp_consumers SET fingerprint = ?2 WHERE name = ?1 AND (fingerprint IS NULL OR ?3)

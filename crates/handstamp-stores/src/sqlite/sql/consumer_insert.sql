-- Registers a name under the next free number; nothing when it is registered.
-- Lock: the write lock. Index: unique name of handstamp_consumers.
INSERT INTO handstamp_consumers (id, name, fingerprint)
SELECT coalesce(max(id), 0) + 1, ?1, ?2 FROM handstamp_consumers WHERE true
ON CONFLICT (name) DO NOTHING

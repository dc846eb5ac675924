-- A consumer's number and fingerprint.
-- Lock: none beyond the transaction's. Index: unique name of handstamp_consumers.
SELECT id, fingerprint FROM handstamp_consumers WHERE name = ?1

-- Writes a consumer's fingerprint: where there was none, or where it may be replaced ($3).
-- Lock: ROW EXCLUSIVE on consumers and the row's lock. Index: consumers_pkey.
UPDATE {schema}.consumers SET fingerprint = $2 WHERE id = $1 AND (fingerprint IS NULL OR $3)

-- A consumer's row, by name.
-- Lock: ACCESS SHARE on consumers. Index: consumers_name_key.
SELECT id, fingerprint FROM {schema}.consumers WHERE name = $1

-- Registers a name under the next free number. No row when the name, or the number, was taken by
-- another process meanwhile: look again. No sequence, so that nothing is burned.
-- Lock: ROW EXCLUSIVE on consumers. Index: consumers_pkey (backwards, one row), consumers_name_key.
INSERT INTO {schema}.consumers (id, name, fingerprint)
SELECT (coalesce((SELECT max(id) FROM {schema}.consumers), 0) + 1)::int2, $1, $2
ON CONFLICT DO NOTHING
RETURNING id

-- Says what was done to some messages, in the order given. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on audit. Index: audit_pkey, audit_by_message.
INSERT INTO {schema}.audit (consumer, operation, action, done_by, why, dedup, id)
SELECT $1, $2, $3, $4, $5, m.dedup, m.id
FROM unnest($6::bytea[], $7::bytea[]) WITH ORDINALITY AS m (dedup, id, place)
WHERE {guard}
ORDER BY m.place

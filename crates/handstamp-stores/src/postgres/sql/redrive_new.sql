-- Claims new ids for dead letters, as parked; answers those that were free. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on inbox; waits, in the order of the ids, for transactions that claim them.
-- Index: inbox_pkey for the conflict.
INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
SELECT u.digest, (floor(date_part('epoch', now())) - 1577836800)::int4, $1, 'p', u.id
FROM unnest($2::bytea[], $3::int8[]) AS u (id, digest)
WHERE {guard}
ORDER BY u.id
ON CONFLICT DO NOTHING
RETURNING id

-- Says `parked` in the inbox for ids whose own messages are dead letters; answers those for which it now does.
-- A row that was cleaned up meanwhile is written again. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on inbox; waits, in the order of the ids, for transactions that claim them.
-- Index: inbox_pkey.
INSERT INTO {schema}.inbox AS i (digest, seen_at, consumer, state, id)
SELECT u.digest, (floor(extract(epoch FROM now())) - 1577836800)::int4, $1, 'p', u.id
FROM unnest($2::bytea[], $3::int8[]) AS u (id, digest)
WHERE {guard}
ORDER BY u.id
ON CONFLICT (id, consumer) DO UPDATE SET state = 'p' WHERE i.state = 'd'
RETURNING i.id

-- Claims many distinct ids, given in sorted order, inside our own transaction: a row for each that is
-- ours now. The others are read by a second statement, which most batches never need.
-- Lock: ROW EXCLUSIVE on inbox; waits, in the order given, for other transactions inserting the same ids.
-- Index: inbox_pkey for the conflicts; consumers_pkey.
-- The arrays stand in sub-selects so that the planner's guess does not depend on their length: one
-- generic plan then serves every batch.
INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
SELECT c.digest, (SELECT (extract(epoch FROM now())::int8 - 1577836800)::int4), $3::int2, 'a', c.id
FROM unnest((SELECT $1::bytea[]), (SELECT $2::int8[])) AS c (id, digest)
WHERE {guard}
  AND (SELECT true FROM {schema}.consumers AS k WHERE k.id = $3::int2 AND k.name = $4::text)
ON CONFLICT DO NOTHING
RETURNING id, seen_at

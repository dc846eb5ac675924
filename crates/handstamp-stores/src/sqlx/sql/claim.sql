-- Claims distinct ids, given in sorted order: a row for each that is ours now.
-- Lock: ROW EXCLUSIVE on inbox; waits, in the order given, for other transactions inserting the same ids.
-- Index: inbox_pkey for the conflicts; consumers_pkey.
INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
SELECT c.digest, (date_part('epoch', now()) - 1577836800)::int4, $3::int2, 'a', c.id
FROM unnest($1::bytea[], $2::int8[]) AS c (id, digest)
WHERE (SELECT true FROM {schema}.consumers AS k WHERE k.id = $3::int2 AND k.name = $4::text)
ON CONFLICT DO NOTHING
RETURNING id, seen_at

-- Claims one id inside our own transaction: one row when it is ours now, none when it was known, or
-- nothing was allowed.
-- Lock: ROW EXCLUSIVE on inbox; waits for another transaction that is inserting the same id.
-- Index: inbox_pkey for the conflict; consumers_pkey.
INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
SELECT $2::int8, (floor(date_part('epoch', now())) - 1577836800)::int4, $3::int2, 'a', $1::bytea
WHERE {guard}
  AND (SELECT true FROM {schema}.consumers AS k WHERE k.id = $3::int2 AND k.name = $4::text)
ON CONFLICT DO NOTHING
RETURNING id, seen_at

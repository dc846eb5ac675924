-- Claims one id: one row with state NULL when it is ours now, one with its state when it was known,
-- none when the id is held by a transaction that this statement waited for, or nothing was allowed.
-- Lock: ROW EXCLUSIVE on inbox; waits for another transaction that is inserting the same id.
-- Index: inbox_pkey for the conflict and for the known row; consumers_pkey.
WITH inserted AS (
    INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
    SELECT $2::int8, (floor(date_part('epoch', now())) - 1577836800)::int4, $3::int2, 'a', $1::bytea
    WHERE {guard}
      AND (SELECT true FROM {schema}.consumers AS k WHERE k.id = $3::int2 AND k.name = $4::text)
    ON CONFLICT DO NOTHING
    RETURNING seen_at
)
SELECT $1::bytea AS id, seen_at, NULL::int8 AS digest, NULL::"char" AS state FROM inserted
UNION ALL
SELECT i.id, i.seen_at, i.digest, i.state
FROM {schema}.inbox AS i
WHERE i.id = $1::bytea AND i.consumer = $3::int2 AND (SELECT count(*) FROM inserted) = 0

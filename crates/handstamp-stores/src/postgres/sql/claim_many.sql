-- Claims many distinct ids, given in sorted order: rows with state NULL are ours now, rows with a state
-- were known; ids without a row are held by transactions that this statement waited for.
-- Where every id was new the second half is not run at all.
-- Lock: ROW EXCLUSIVE on inbox; waits, in the order given, for other transactions inserting the same ids.
-- Index: inbox_pkey for the conflicts and, one descent an id, for the known rows; consumers_pkey.
-- The arrays stand in sub-selects so that the planner's guess does not depend on their length: one
-- generic plan then serves every batch.
WITH inserted AS (
    INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
    SELECT c.digest, (SELECT (extract(epoch FROM now())::int8 - 1577836800)::int4), $3::int2, 'a', c.id
    FROM unnest((SELECT $1::bytea[]), (SELECT $2::int8[])) AS c (id, digest)
    WHERE {guard}
      AND (SELECT true FROM {schema}.consumers AS k WHERE k.id = $3::int2 AND k.name = $4::text)
    ON CONFLICT DO NOTHING
    RETURNING id, seen_at
)
SELECT id, seen_at, NULL::int8 AS digest, NULL::"char" AS state FROM inserted
UNION ALL
SELECT u.id, i.seen_at, i.digest, i.state
FROM unnest((SELECT $1::bytea[])) AS u (id)
CROSS JOIN LATERAL (
    SELECT k.seen_at, k.digest, k.state FROM {schema}.inbox AS k
    WHERE k.id = u.id AND k.consumer = $3::int2
    LIMIT 1
) AS i
WHERE (SELECT count(*) FROM inserted) < cardinality($1::bytea[])
  AND u.id NOT IN (SELECT id FROM inserted)

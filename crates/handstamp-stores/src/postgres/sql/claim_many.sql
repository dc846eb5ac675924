-- Claims many distinct ids, given in sorted order: inserts first, and looks up only where not every id was
-- new. `claim_known.sql` gives the same answer the other way round.
-- Three kinds of row, arrays so that an answer is few rows however many ids it is about: without ids and
-- places: every id is ours now. With ids: these are ours. With places (in $1, from 1): these were known.
-- Ids without an answer are held by transactions that this statement waited for.
-- Lock: ROW EXCLUSIVE on inbox; waits, in the order given, for other transactions inserting the same ids.
-- Index: inbox_pkey for the conflicts and, one descent an id, for the known rows; consumers_pkey.
-- The arrays stand in sub-selects so that the planner's guess does not depend on their length: one
-- generic plan then serves every batch.
WITH inserted AS (
    INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
    SELECT c.digest, (SELECT (floor(date_part('epoch', now())) - 1577836800)::int4), $3::int2, 'a', c.id
    FROM unnest((SELECT $1::bytea[]), (SELECT $2::int8[])) AS c (id, digest)
    WHERE {guard}
      AND (SELECT true FROM {schema}.consumers AS k WHERE k.id = $3::int2 AND k.name = $4::text)
    ON CONFLICT DO NOTHING
    RETURNING id, seen_at
)
SELECT NULL::bytea[] AS ids, NULL::int4[] AS places, ARRAY[min(seen_at)] AS seen_at, NULL::int8[] AS digests,
       NULL::text AS states
FROM inserted
HAVING count(*) = cardinality($1::bytea[])
UNION ALL
SELECT array_agg(id), NULL, ARRAY[min(seen_at)], NULL, NULL
FROM inserted
WHERE (SELECT count(*) FROM inserted) < cardinality($1::bytea[])
HAVING count(*) > 0
UNION ALL
SELECT NULL, array_agg(u.place::int4), array_agg(i.seen_at), array_agg(i.digest), string_agg(i.state::text, '')
FROM unnest((SELECT $1::bytea[])) WITH ORDINALITY AS u (id, place)
CROSS JOIN LATERAL (
    SELECT k.seen_at, k.digest, k.state FROM {schema}.inbox AS k
    WHERE k.id = u.id AND k.consumer = $3::int2
    LIMIT 1
) AS i
WHERE (SELECT count(*) FROM inserted) < cardinality($1::bytea[])
  AND u.id NOT IN (SELECT id FROM inserted)
HAVING count(*) > 0

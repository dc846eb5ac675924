-- Claims many distinct ids, given in sorted order: looks up first and inserts what was not known, which costs
-- less where most ids are. The answer is that of `claim_many.sql`.
-- Lock: ROW EXCLUSIVE on inbox; waits, in the order given, for other transactions inserting the same ids.
-- Index: inbox_pkey, one descent an id for the known rows and one for the conflicts; consumers_pkey.
-- What opens the transaction is asked first and once, also where nothing is left to insert.
WITH allowed AS MATERIALIZED (
    SELECT {guard} AND (SELECT true FROM {schema}.consumers AS k WHERE k.id = $3::int2 AND k.name = $4::text) AS ok
), known AS MATERIALIZED (
    SELECT u.id, u.place::int4 AS place, i.seen_at, i.digest, i.state
    FROM unnest((SELECT $1::bytea[])) WITH ORDINALITY AS u (id, place)
    CROSS JOIN LATERAL (
        SELECT k.seen_at, k.digest, k.state FROM {schema}.inbox AS k
        WHERE k.id = u.id AND k.consumer = $3::int2
        LIMIT 1
    ) AS i
    WHERE (SELECT ok FROM allowed)
), inserted AS (
    INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
    SELECT c.digest, (SELECT (floor(date_part('epoch', now())) - 1577836800)::int4), $3::int2, 'a', c.id
    FROM unnest((SELECT $1::bytea[]), (SELECT $2::int8[])) AS c (id, digest)
    WHERE (SELECT ok FROM allowed)
      AND (SELECT count(*) FROM known) < cardinality($1::bytea[])
      AND c.id NOT IN (SELECT id FROM known)
    ON CONFLICT DO NOTHING
    RETURNING id, seen_at
)
SELECT array_agg(id) AS ids, NULL::int4[] AS places, ARRAY[min(seen_at)] AS seen_at, NULL::int8[] AS digests,
       NULL::text AS states
FROM inserted
HAVING count(*) > 0
UNION ALL
SELECT NULL, array_agg(place), array_agg(seen_at), array_agg(digest), string_agg(state::text, '')
FROM known
HAVING count(*) > 0

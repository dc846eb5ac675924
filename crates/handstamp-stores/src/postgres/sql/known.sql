-- Reads the inbox rows of some ids with a new snapshot.
-- Lock: ACCESS SHARE on inbox. Index: inbox_pkey, one descent an id.
SELECT u.id, i.seen_at, i.digest, i.state
FROM unnest((SELECT $1::bytea[])) AS u (id)
CROSS JOIN LATERAL (
    SELECT k.seen_at, k.digest, k.state FROM {schema}.inbox AS k
    WHERE k.id = u.id AND k.consumer = $2::int2
    LIMIT 1
) AS i

-- Adds failed attempts to the history of their messages, in the order given; none to a history that has a hundred.
-- Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on attempts. Index: attempts_pkey, a hundred entries a message at most.
INSERT INTO {schema}.attempts (consumer, dedup, at_ms, node, class, code, reason)
SELECT $1::int2, a.dedup, a.at_ms, a.node, a.class, a.code, a.reason
FROM unnest($2::bytea[], $3::int8[], $4::text[], $5::text[], $6::text[], $7::text[])
    WITH ORDINALITY AS a (dedup, at_ms, node, class, code, reason, place)
WHERE {guard} AND (SELECT count(*) FROM (
    SELECT FROM {schema}.attempts AS o WHERE o.consumer = $1::int2 AND o.dedup = a.dedup LIMIT 100
) AS kept) < 100
ORDER BY a.place

-- What other owners left behind on some lanes, and every crash of the messages that they name alone, the oldest
-- first: rows with a lane are orphans, rows without one are crashes. An orphan whose message alone has an inbox row
-- is removed, and the crashes of that message with it unless it is parked. Any other with a message alone is written
-- down as a crash of it, once an owner, if it is one of those seen before ($4 to $6: lane, owner, time): who moved
-- since then lives. The last column says of an orphan that nothing is to be waited for, of a crash that it is new.
-- Who withdraws meanwhile waits for the rows' locks and then takes the crashes back; where it was faster, the row
-- is gone and nobody is charged.
-- Lock: ROW EXCLUSIVE on starts and crashes; FOR UPDATE of the rows answered, in the order of their keys.
-- Index: starts_pkey, inbox_pkey, crashes_pkey.
WITH found AS MATERIALIZED (
    SELECT s.lane, s.owner, s.node, s.at_ms, s.first_position, s.last_position, s.count, s.alone, s.alone_dedup
    FROM {schema}.starts AS s
    WHERE s.consumer = $1::int2 AND s.lane = ANY ($2::text[]) AND s.owner <> $3::bytea
    ORDER BY s.lane, s.owner
    FOR UPDATE
), looked AS MATERIALIZED (
    SELECT f.*, (SELECT i.state FROM {schema}.inbox AS i WHERE i.id = f.alone AND i.consumer = $1::int2) AS state
    FROM found AS f
), removed AS (
    DELETE FROM {schema}.starts AS s USING looked AS l
    WHERE s.consumer = $1::int2 AND s.lane = l.lane AND s.owner = l.owner AND l.state IS NOT NULL
), absolved AS (
    DELETE FROM {schema}.crashes AS c USING looked AS l
    WHERE c.consumer = $1::int2 AND c.dedup = l.alone_dedup AND l.state <> 'p'
), before AS MATERIALIZED (
    SELECT c.dedup, c.owner, c.node, c.at_ms
    FROM {schema}.crashes AS c
    WHERE c.consumer = $1::int2 AND c.dedup = ANY ((
        SELECT array_agg(l.alone_dedup) FROM looked AS l WHERE l.alone IS NOT NULL AND l.state IS NULL
    )::bytea[])
), died AS MATERIALIZED (
    SELECT DISTINCT ON (l.alone_dedup, l.owner) l.alone_dedup AS dedup, l.owner, l.node, l.at_ms
    FROM looked AS l
    JOIN unnest($4::text[], $5::bytea[], $6::int8[]) AS seen (lane, owner, at_ms) USING (lane, owner, at_ms)
    WHERE l.alone IS NOT NULL AND l.state IS NULL
    ORDER BY l.alone_dedup, l.owner, l.at_ms
), charged AS (
    INSERT INTO {schema}.crashes (consumer, dedup, owner, node, at_ms)
    SELECT $1::int2, dedup, owner, node, at_ms FROM died
    ON CONFLICT DO NOTHING
    RETURNING dedup, owner
)
SELECT l.lane, l.owner, l.node, l.at_ms, l.first_position, l.last_position, l.count, l.alone, NULL::bytea AS dedup,
       l.alone IS NULL
           OR EXISTS (SELECT FROM died AS d WHERE d.dedup = l.alone_dedup AND d.owner = l.owner)
           OR EXISTS (SELECT FROM before AS b WHERE b.dedup = l.alone_dedup AND b.owner = l.owner)
FROM looked AS l WHERE l.state IS NULL
UNION ALL
SELECT NULL, b.owner, b.node, b.at_ms, NULL, NULL, NULL, NULL, b.dedup, false
FROM before AS b
UNION ALL
SELECT NULL, d.owner, d.node, d.at_ms, NULL, NULL, NULL, NULL, d.dedup,
       EXISTS (SELECT FROM charged AS k WHERE k.dedup = d.dedup AND k.owner = d.owner)
FROM died AS d
WHERE NOT EXISTS (SELECT FROM before AS b WHERE b.dedup = d.dedup AND b.owner = d.owner)
ORDER BY at_ms, lane, owner

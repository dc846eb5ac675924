-- Says which parked messages, locked by another transaction of the same process, are about to be handled, in place
-- of those that the same owner had started; answers every crash of them, the oldest first, with whether it is new,
-- and those for which the owner itself was counted. Other owners' start records of them are orphans, their
-- transactions are over: one of a message alone is written down as a crash, once an owner, if it is one of those seen
-- before ($6 to $8: message, owner, time), and stays until the message is resumed.
-- Lock: ROW EXCLUSIVE on parked_starts and crashes; FOR UPDATE of the orphans, for which an owner that withdraws waits.
-- Index: parked_starts_pkey, parked_starts_by_owner, crashes_pkey, crashes_by_owner.
WITH died AS MATERIALIZED (
    SELECT s.dedup, s.owner, s.node, s.at_ms
    FROM {schema}.parked_starts AS s
    JOIN unnest($6::bytea[], $7::bytea[], $8::int8[]) AS seen (dedup, owner, at_ms) USING (dedup, owner, at_ms)
    WHERE s.consumer = $1::int2 AND s.dedup = ANY ($2::bytea[]) AND s.owner <> $3::bytea AND s.alone
    ORDER BY s.dedup, s.owner
    FOR UPDATE OF s
), charged AS (
    INSERT INTO {schema}.crashes (consumer, dedup, owner, node, at_ms)
    SELECT $1::int2, dedup, owner, node, at_ms FROM died
    ON CONFLICT DO NOTHING
    RETURNING dedup, owner
), replaced AS (
    DELETE FROM {schema}.parked_starts
    WHERE consumer = $1::int2 AND owner = $3::bytea AND dedup <> ALL ($2::bytea[])
), started AS (
    INSERT INTO {schema}.parked_starts (consumer, dedup, owner, node, at_ms, alone)
    SELECT $1::int2, u.dedup, $3::bytea, $4::text, floor(extract(epoch FROM clock_timestamp()) * 1000)::int8, $5::bool
    FROM unnest((SELECT $2::bytea[])) AS u (dedup)
    ON CONFLICT (consumer, dedup, owner) DO UPDATE
    SET node = excluded.node, at_ms = excluded.at_ms, alone = excluded.alone
), before AS MATERIALIZED (
    SELECT c.dedup, c.owner, c.node, c.at_ms
    FROM {schema}.crashes AS c
    WHERE c.consumer = $1::int2 AND c.dedup = ANY ($2::bytea[]) AND c.owner <> $3::bytea
    UNION ALL
    SELECT c.dedup, c.owner, c.node, c.at_ms
    FROM {schema}.crashes AS c
    WHERE c.consumer = $1::int2 AND c.owner = $3::bytea
)
SELECT b.dedup, b.owner, b.node, b.at_ms, false FROM before AS b
UNION ALL
SELECT d.dedup, d.owner, d.node, d.at_ms,
       EXISTS (SELECT FROM charged AS k WHERE k.dedup = d.dedup AND k.owner = d.owner)
FROM died AS d
WHERE NOT EXISTS (SELECT FROM before AS b WHERE b.dedup = d.dedup AND b.owner = d.owner)
ORDER BY at_ms, owner

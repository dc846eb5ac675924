-- What version 2 sent, with values in place of its parameters: a claim, parked messages, a retry of each outcome,
-- a dead letter and its redrive. `{n}` tells one run from another.
BEGIN ISOLATION LEVEL READ COMMITTED, DEFERRABLE;
SELECT set_config('handstamp.tx', '1', true);
WITH inserted AS (
    INSERT INTO handstamp.inbox (digest, seen_at, consumer, state, id)
    SELECT c.digest, (SELECT (date_part('epoch', now()) - 1577836800)::int4), 1::int2, 'a', c.id
    FROM unnest((SELECT ARRAY['{n}a', '{n}b', '{n}c', '{n}d', '{n}e']::bytea[]), (SELECT ARRAY[1, 2, 3, 4, 5]::int8[])) AS c (id, digest)
    WHERE (SELECT true FROM handstamp.consumers AS k WHERE k.id = 1::int2 AND k.name = 'wallet'::text)
    ON CONFLICT DO NOTHING
    RETURNING id, seen_at
)
SELECT array_agg(id), min(seen_at) FROM inserted;
INSERT INTO handstamp.parked (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
    value_full_bytes, value_blake3, parked_at_ms, due_at_ms, order_key, behind
)
SELECT 1::int2, decode(md5(m.id), 'hex'), 2, 1, 2, 'failed', NULL, 'r', convert_to(m.id, 'UTF8'), m.digest,
       'credits', 0, m.digest, NULL, NULL, 'k', '{}', '{}', '{}', NULL, NULL, clock.ms, clock.ms, NULL, false
FROM (SELECT ceil(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms) AS clock,
     unnest(ARRAY['{n}a', '{n}b', '{n}c', '{n}d', '{n}e'], ARRAY[1, 2, 3, 4, 5]::int8[]) AS m (id, digest)
WHERE current_setting('handstamp.tx', true) IS NOT DISTINCT FROM '1'
ON CONFLICT DO NOTHING;
UPDATE handstamp.inbox SET state = 'p' WHERE id = ANY (ARRAY['{n}a', '{n}b', '{n}c', '{n}d', '{n}e']::bytea[]) AND consumer = 1::int2;
COMMIT;
BEGIN ISOLATION LEVEL READ COMMITTED, DEFERRABLE;
SELECT p.failed_at_ms, p.received_at_ms, p.attempts, p.class, p.code, p.reason, p.id, p.digest,
       p.topic, p.partition, p.position, p.line, p.timestamp_ms, p.key, p.value,
       p.header_names, p.header_values, p.value_full_bytes, p.value_blake3,
       p.dedup, p.parked_at_ms, p.order_key
FROM handstamp.parked AS p
WHERE p.consumer = (SELECT 1::int2) AND NOT p.behind
  AND CASE WHEN p.order_key IS NULL THEN true ELSE p.seq = (
          SELECT f.seq FROM handstamp.parked AS f
          WHERE f.consumer = p.consumer AND f.order_key = p.order_key
          ORDER BY f.seq LIMIT 1
      ) END
ORDER BY p.due_at_ms, p.seq
LIMIT (SELECT 500::int8)
FOR UPDATE OF p SKIP LOCKED;
WITH gone AS (
    DELETE FROM handstamp.parked
    WHERE consumer = 1::int2 AND dedup = ANY (ARRAY[decode(md5('{n}a'), 'hex')])
    RETURNING id, order_key, seq
), said AS (
    UPDATE handstamp.inbox AS i SET state = 'a'
    FROM gone WHERE i.id = gone.id AND i.consumer = 1::int2 AND i.state = 'p'
)
UPDATE handstamp.parked AS n SET behind = false
FROM gone CROSS JOIN LATERAL (
    SELECT f.dedup FROM handstamp.parked AS f
    WHERE f.consumer = 1::int2 AND f.order_key = gone.order_key AND f.seq > gone.seq
    ORDER BY f.seq LIMIT 1
) AS next
WHERE n.consumer = 1::int2 AND n.dedup = next.dedup AND n.behind;
UPDATE handstamp.parked AS p
SET attempts = p.attempts + 1, failed_at_ms = 3, class = 'sql', code = '23503', reason = 'again',
    due_at_ms = ceil(extract(epoch FROM clock_timestamp()) * 1000)::int8
WHERE p.consumer = 1::int2 AND p.dedup = decode(md5('{n}b'), 'hex');
WITH gone AS (
    DELETE FROM handstamp.parked AS p
    WHERE p.consumer = 1::int2 AND p.dedup = ANY (ARRAY[decode(md5('{n}c'), 'hex'), decode(md5('{n}d'), 'hex')])
    RETURNING p.*
), kept AS (
    INSERT INTO handstamp.dead_letters (
        consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
        topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
        value_full_bytes, value_blake3
    )
    SELECT 1::int2, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
           topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
           value_full_bytes, value_blake3
    FROM gone
    ON CONFLICT (consumer, dedup) DO UPDATE SET failed_at_ms = excluded.failed_at_ms, id = excluded.id
)
UPDATE handstamp.inbox AS i SET state = 'd'
FROM gone WHERE i.id = gone.id AND i.consumer = 1::int2 AND i.state = 'p';
INSERT INTO handstamp.attempts (consumer, dedup, at_ms, node, class, code, reason)
SELECT 1::int2, decode(md5(m), 'hex'), 3, 'host:1', 'sql', '23503', 'again' FROM unnest(ARRAY['{n}b', '{n}c', '{n}d']) AS m;
COMMIT;
BEGIN ISOLATION LEVEL READ COMMITTED, DEFERRABLE;
WITH gone AS (
    DELETE FROM handstamp.dead_letters WHERE consumer = 1::int2 AND dedup = decode(md5('{n}c'), 'hex') RETURNING *
)
INSERT INTO handstamp.parked (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
    value_full_bytes, value_blake3, parked_at_ms, due_at_ms, order_key, behind
)
SELECT consumer, dedup, failed_at_ms, received_at_ms, 0, class, code, reason, id, digest,
       topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
       value_full_bytes, value_blake3, clock.ms, clock.ms, NULL, false
FROM gone, (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms) AS clock
ON CONFLICT DO NOTHING;
UPDATE handstamp.inbox SET state = 'p' WHERE id = '{n}c' AND consumer = 1 AND state = 'd';
INSERT INTO handstamp.audit (consumer, operation, action, done_by, why, dedup, id)
SELECT 1, decode(md5('{n}'), 'hex'), 'redrive', 'o', 'w', decode(md5('{n}c'), 'hex'), '{n}c';
COMMIT;

-- Takes out parked rows whose effect is part of this transaction, says `applied` in their inbox rows, and lets
-- the next of their order keys be the first. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on parked and inbox; FOR UPDATE of the rows, which this transaction holds, of their
-- inbox rows and of the next ones.
-- Index: parked_pkey, inbox_pkey; parked_by_order, one row each.
WITH gone AS (
    DELETE FROM {schema}.parked
    WHERE consumer = $1::int2 AND dedup = ANY ($2::bytea[]) AND {guard}
    RETURNING id, order_key, seq
), said AS (
    UPDATE {schema}.inbox AS i SET state = 'a'
    FROM gone WHERE i.id = gone.id AND i.consumer = $1::int2 AND i.state = 'p'
)
UPDATE {schema}.parked AS n SET behind = false
FROM gone CROSS JOIN LATERAL (
    SELECT f.dedup FROM {schema}.parked AS f
    WHERE f.consumer = $1::int2 AND f.order_key = gone.order_key AND f.seq > gone.seq
    ORDER BY f.seq LIMIT 1
) AS next
WHERE n.consumer = $1::int2 AND n.dedup = next.dedup AND n.behind

-- Locks parked messages by their keys for an operator, passing over those that a worker has locked: it is trying
-- them. A statement of its own in front of what is done to them: that then sees whoever was parked behind them
-- until the lock was granted. Only inside a guarded transaction.
-- Lock: ROW SHARE on parked, and FOR UPDATE of the rows answered, without waiting. Index: parked_pkey.
SELECT p.dedup, p.id, p.order_key FROM {schema}.parked AS p
WHERE p.consumer = $1::int2 AND p.dedup = ANY ($2::bytea[]) AND {guard}
ORDER BY p.dedup
FOR UPDATE OF p SKIP LOCKED

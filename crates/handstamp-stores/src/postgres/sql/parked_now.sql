-- Makes parked messages due at once. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on parked and the rows' locks, which this transaction holds. Index: parked_pkey.
UPDATE {schema}.parked
SET due_at_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::int8
WHERE consumer = $1::int2 AND dedup = ANY ($2::bytea[]) AND {guard}

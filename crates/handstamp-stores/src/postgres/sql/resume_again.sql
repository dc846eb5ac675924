-- Makes parked rows due later, with one attempt more and their last failure. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on parked and the rows' locks, which this transaction holds. Index: parked_pkey.
UPDATE {schema}.parked AS p
SET attempts = p.attempts + 1, failed_at_ms = f.at_ms, class = f.class, code = f.code, reason = f.reason,
    due_at_ms = ceil(extract(epoch FROM clock_timestamp()) * 1000)::int8 + f.wait_ms
FROM unnest($2::bytea[], $3::int8[], $4::int8[], $5::text[], $6::text[], $7::text[])
    AS f (dedup, wait_ms, at_ms, class, code, reason)
WHERE p.consumer = $1::int2 AND p.dedup = f.dedup AND {guard}

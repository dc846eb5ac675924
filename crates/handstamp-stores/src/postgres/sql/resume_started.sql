-- Ends the start records of parked messages, whoever started them, and takes out the crashes of those that came to
-- their end. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on parked_starts and crashes. Index: parked_starts_pkey, crashes_pkey.
WITH ended AS (
    DELETE FROM {schema}.parked_starts WHERE consumer = $1::int2 AND dedup = ANY ($2::bytea[]) AND {guard}
)
DELETE FROM {schema}.crashes WHERE consumer = $1::int2 AND dedup = ANY ($3::bytea[]) AND {guard}

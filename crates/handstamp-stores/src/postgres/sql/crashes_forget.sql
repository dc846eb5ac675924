-- Forgets the crashes of messages that this transaction brings to their end. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on crashes. Index: crashes_pkey.
DELETE FROM {schema}.crashes WHERE consumer = $1::int2 AND dedup = ANY ($2::bytea[]) AND {guard}

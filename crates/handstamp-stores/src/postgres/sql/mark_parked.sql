-- Says in the inbox that some claimed ids are parked. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on inbox and the rows' locks, which this transaction holds. Index: inbox_pkey.
UPDATE {schema}.inbox SET state = 'p' WHERE id = ANY ($1::bytea[]) AND consumer = $2::int2 AND {guard}

-- Says in the inbox that some claimed ids ended as dead letters. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on inbox and the rows' locks, which this transaction holds. Index: inbox_pkey.
UPDATE {schema}.inbox SET state = 'd' WHERE id = ANY ($1) AND consumer = $2 AND {guard}

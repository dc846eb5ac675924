-- Ends everything that an owner started.
-- Lock: ROW EXCLUSIVE on starts and parked_starts; waits for processes that take over from it just now.
-- Index: starts_pkey (a row for each lane of the consumer and its owners), parked_starts_by_owner.
WITH parked AS (
    DELETE FROM {schema}.parked_starts WHERE consumer = $1::int2 AND owner = $2::bytea
)
DELETE FROM {schema}.starts WHERE consumer = $1::int2 AND owner = $2::bytea

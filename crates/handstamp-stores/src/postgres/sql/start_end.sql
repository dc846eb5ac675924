-- Ends what an owner started of some lanes.
-- Lock: ROW EXCLUSIVE on starts; waits for processes that take the lanes over just now. Index: starts_pkey.
DELETE FROM {schema}.starts
WHERE consumer = $1::int2 AND lane = ANY ($2::text[]) AND owner = $3::bytea

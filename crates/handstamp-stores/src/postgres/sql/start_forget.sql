-- Removes orphans whose lane has passed them.
-- Lock: ROW EXCLUSIVE on starts. Index: starts_pkey.
DELETE FROM {schema}.starts AS s USING unnest($2::text[], $3::bytea[]) AS p (lane, owner)
WHERE s.consumer = $1::int2 AND s.lane = p.lane AND s.owner = p.owner

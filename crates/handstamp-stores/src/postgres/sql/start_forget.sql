-- Removes orphans whose lane has passed them, and the crashes of messages whose outcome is durable.
-- Lock: ROW EXCLUSIVE on starts and crashes. Index: starts_pkey, crashes_pkey.
WITH passed AS (
    DELETE FROM {schema}.starts AS s USING unnest($2::text[], $3::bytea[]) AS p (lane, owner)
    WHERE s.consumer = $1::int2 AND s.lane = p.lane AND s.owner = p.owner
)
DELETE FROM {schema}.crashes WHERE consumer = $1::int2 AND dedup = ANY ($4::bytea[])

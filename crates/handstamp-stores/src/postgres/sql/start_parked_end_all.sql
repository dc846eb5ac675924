-- Ends what an owner started of parked messages.
-- Lock: ROW EXCLUSIVE on parked_starts; waits for processes that take over from it just now.
-- Index: parked_starts_by_owner.
DELETE FROM {schema}.parked_starts WHERE consumer = $1::int2 AND owner = $2::bytea

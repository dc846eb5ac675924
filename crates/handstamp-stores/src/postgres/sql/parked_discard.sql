-- Takes parked messages out for good, with what is known of their starts and crashes, and says `discarded` in their
-- inbox rows. Only inside a guarded transaction; `parked_first.sql` follows.
-- Lock: ROW EXCLUSIVE on parked, inbox, parked_starts and crashes; the rows' locks, which this transaction holds, and
-- FOR UPDATE of their inbox rows.
-- Index: parked_pkey, inbox_pkey, parked_starts_pkey, crashes_pkey.
WITH gone AS (
    DELETE FROM {schema}.parked
    WHERE consumer = $1::int2 AND dedup = ANY ($2::bytea[]) AND {guard}
    RETURNING dedup, id
), started AS (
    DELETE FROM {schema}.parked_starts AS s USING gone WHERE s.consumer = $1::int2 AND s.dedup = gone.dedup
), crashed AS (
    DELETE FROM {schema}.crashes AS c USING gone WHERE c.consumer = $1::int2 AND c.dedup = gone.dedup
)
UPDATE {schema}.inbox AS i SET state = 'x'
FROM gone WHERE i.id = gone.id AND i.consumer = $1::int2 AND i.state = 'p'

-- Deletes inbox rows of a consumer that are old and applied or discarded in one part of the inbox, and notes up to
-- when ids are forgotten. One row: how many went.
-- Lock: ROW EXCLUSIVE on inbox and pruned; a row that somebody holds is passed over, the consumer's row of pruned is
-- waited for. Index: none; the rows of 512 pages are read, and deleted by their address.
WITH horizon AS MATERIALIZED (
    SELECT (floor(date_part('epoch', now())) - 1577836800 - $2::int4)::int4 AS before
), gone AS (
    DELETE FROM {schema}.inbox
    WHERE ctid = ANY (ARRAY(
        SELECT i.ctid
        FROM {schema}.inbox AS i
        WHERE i.ctid >= $3::text::tid AND i.ctid < $4::text::tid
          AND i.consumer = $1::int2 AND i.seen_at < (SELECT before FROM horizon) AND i.state IN ('a', 'x')
        LIMIT $5::int8
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
), noted AS (
    INSERT INTO {schema}.pruned AS p (consumer, horizon)
    SELECT $1::int2, before FROM horizon WHERE EXISTS (SELECT FROM gone)
    ON CONFLICT (consumer) DO UPDATE SET horizon = greatest(p.horizon, excluded.horizon), at = now()
)
SELECT count(*) FROM gone

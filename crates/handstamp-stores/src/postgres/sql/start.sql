-- Says what is about to be handed to a handler, in place of what the same owner said of this lane before. A
-- transaction of its own in front of BEGIN, or behind another transaction of the lane part of its commit, in front of
-- COMMIT: it is there before the claim is answered that it announces, whatever becomes of that transaction.
-- Lock: ROW EXCLUSIVE on starts; waits for another process that takes this lane over just now.
-- Index: starts_pkey for the conflict. The row is overwritten within its page, and nothing indexed changes.
INSERT INTO {schema}.starts (
    consumer, lane, owner, node, at_ms, first_position, last_position, count, alone, alone_dedup
)
VALUES ($1::int2, $2::text, $3::bytea, $4::text, floor(extract(epoch FROM clock_timestamp()) * 1000)::int8,
        $5::int8, $6::int8, $7::int4, $8::bytea, $9::bytea)
ON CONFLICT (consumer, lane, owner) DO UPDATE
SET node = excluded.node, at_ms = excluded.at_ms, first_position = excluded.first_position,
    last_position = excluded.last_position, count = excluded.count, alone = excluded.alone,
    alone_dedup = excluded.alone_dedup

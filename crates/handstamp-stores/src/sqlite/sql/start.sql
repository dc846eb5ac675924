-- Says what is about to be handled in a lane, in place of what its owner said there last.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_starts.
INSERT INTO handstamp_starts (
    consumer, lane, owner, node, at_ms, first_position, last_position, count, alone, alone_dedup)
VALUES (?1, ?2, ?3, ?4, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER), ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (consumer, lane, owner) DO UPDATE
SET node = excluded.node, at_ms = excluded.at_ms, first_position = excluded.first_position,
    last_position = excluded.last_position, count = excluded.count, alone = excluded.alone,
    alone_dedup = excluded.alone_dedup

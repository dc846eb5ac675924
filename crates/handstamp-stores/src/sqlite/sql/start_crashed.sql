-- A crash of the message that an owner left alone in a lane, once an owner.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_starts; that of handstamp_crashes for the
-- conflict.
INSERT INTO handstamp_crashes (consumer, dedup, owner, node, at_ms)
SELECT s.consumer, s.alone_dedup, s.owner, s.node, s.at_ms FROM handstamp_starts AS s
WHERE s.consumer = ?1 AND s.lane = ?2 AND s.owner = ?3 AND s.alone_dedup IS NOT NULL
ON CONFLICT (consumer, dedup, owner) DO NOTHING

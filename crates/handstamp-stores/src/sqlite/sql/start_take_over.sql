-- What others left in a lane.
-- Lock: none beyond the transaction's. Index: primary key of handstamp_starts.
SELECT s.owner, s.node, s.at_ms, s.first_position, s.last_position, s.count, s.alone, s.alone_dedup
FROM handstamp_starts AS s
WHERE s.consumer = ?1 AND s.lane = ?2 AND s.owner <> ?3

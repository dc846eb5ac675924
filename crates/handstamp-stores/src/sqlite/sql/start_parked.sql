-- Says that a parked message is about to be handled, alone or not (?5); nothing when it is not there.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup) of handstamp_parked, primary key of
-- handstamp_parked_starts.
INSERT INTO handstamp_parked_starts (consumer, dedup, owner, node, at_ms, alone)
SELECT p.consumer, p.dedup, ?3, ?4, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER), ?5
FROM handstamp_parked AS p WHERE p.consumer = ?1 AND p.dedup = ?2

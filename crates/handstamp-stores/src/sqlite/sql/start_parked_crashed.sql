-- A crash of a parked message for each other owner that had started it alone, once an owner.
-- Lock: the write lock of the transaction. Index: primary keys of handstamp_parked_starts and handstamp_crashes.
INSERT INTO handstamp_crashes (consumer, dedup, owner, node, at_ms)
SELECT s.consumer, s.dedup, s.owner, s.node, s.at_ms FROM handstamp_parked_starts AS s
WHERE s.consumer = ?1 AND s.dedup = ?2 AND s.owner <> ?3 AND s.alone
ON CONFLICT (consumer, dedup, owner) DO NOTHING

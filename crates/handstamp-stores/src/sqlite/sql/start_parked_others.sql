-- Who else had started one parked message alone, did not end it and is not counted for it yet; and when.
-- Lock: the write lock of the transaction: no other transaction is open on the message.
-- Index: primary keys of handstamp_parked_starts and handstamp_crashes.
SELECT s.owner, s.at_ms FROM handstamp_parked_starts AS s
WHERE s.consumer = ?1 AND s.dedup = ?2 AND s.owner <> ?3 AND s.alone
  AND NOT EXISTS (SELECT 1 FROM handstamp_crashes AS c
      WHERE c.consumer = s.consumer AND c.dedup = s.dedup AND c.owner = s.owner)

-- Says in a parked message's inbox row what became of it.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup), primary key of handstamp_inbox.
UPDATE handstamp_inbox SET state = ?3
WHERE consumer = ?1 AND state = 'p'
  AND id = (SELECT p.id FROM handstamp_parked AS p WHERE p.consumer = ?1 AND p.dedup = ?2)

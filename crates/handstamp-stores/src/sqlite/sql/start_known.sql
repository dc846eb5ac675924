-- Takes what others left in a lane away where it is one message alone and the inbox knows its id: it is decided.
-- Lock: the write lock of the transaction. Index: primary keys of handstamp_starts and handstamp_inbox.
DELETE FROM handstamp_starts
WHERE consumer = ?1 AND lane = ?2 AND owner <> ?3 AND alone IS NOT NULL
  AND EXISTS (SELECT 1 FROM handstamp_inbox AS i
      WHERE i.id = handstamp_starts.alone AND i.consumer = handstamp_starts.consumer)

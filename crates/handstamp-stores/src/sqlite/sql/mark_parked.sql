-- Says in the inbox row, claimed by this transaction, that its message is parked.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_inbox.
UPDATE handstamp_inbox SET state = 'p' WHERE id = ?1 AND consumer = ?2

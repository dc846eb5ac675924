-- Says in the inbox row, claimed by this transaction, that its message is a dead letter.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_inbox.
UPDATE handstamp_inbox SET state = 'd' WHERE id = ?1 AND consumer = ?2

-- The mark of our transaction, its limits and its consumer's advisory lock ({lock}; alone when {alone}): an
-- expression that is true when BEGIN opened the transaction. It stands in a sub-select, so that it runs once.
-- Nothing but our BEGIN makes a transaction deferrable, which means nothing at READ COMMITTED. A mark alone would
-- not do: what is sent in one flight without a BEGIN shares a transaction of the server's own.
-- Lock: the advisory lock, shared or exclusive, until the transaction ends. Index: none.
(SELECT CASE WHEN current_setting('transaction_deferrable') = 'on' THEN
    set_config('handstamp.tx', '1', true) IS NOT NULL
    AND set_config('lock_timeout', '{lock_timeout_ms}', true) IS NOT NULL
    AND set_config('statement_timeout', '{statement_timeout_ms}', true) IS NOT NULL
    AND set_config('idle_in_transaction_session_timeout', '{idle_timeout_ms}', true) IS NOT NULL
    AND CASE WHEN {alone} THEN pg_advisory_xact_lock({lock}) IS NOT NULL
             ELSE pg_advisory_xact_lock_shared({lock}) IS NOT NULL END
 END)

-- The limits of a transaction and its consumer's advisory lock, key $1. Prepared and sent right behind BEGIN:
-- in a simple query it would be planned anew for each transaction.
-- Lock: the advisory lock, {lock} until the transaction ends. Index: none.
SELECT set_config('lock_timeout', '{lock_timeout_ms}', true),
       set_config('statement_timeout', '{statement_timeout_ms}', true),
       set_config('idle_in_transaction_session_timeout', '{idle_timeout_ms}', true),
       pg_advisory_xact_lock{suffix}($1)

BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = {lock_timeout_ms};
SET LOCAL statement_timeout = {statement_timeout_ms};
SET LOCAL synchronous_commit = off;
SET LOCAL enable_seqscan = off

-- Keeps a dead letter; no row changed when it is known. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on dead_letters; waits for another transaction that keeps the same message.
-- Index: dead_letters_pkey for the conflict.
INSERT INTO {schema}.dead_letters (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
    value_full_bytes, value_blake3
)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21
WHERE {guard}
ON CONFLICT DO NOTHING

-- One dead letter, whole.
-- Lock: ACCESS SHARE on dead_letters and consumers. Index: consumers_name_key, dead_letters_pkey.
SELECT d.failed_at_ms, d.received_at_ms, d.attempts, d.class, d.code, d.reason, d.id, d.digest,
       d.topic, d.partition, d.position, d.line, d.timestamp_ms, d.key, d.value,
       d.header_names, d.header_values, d.value_full_bytes, d.value_blake3
FROM {schema}.dead_letters AS d
JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE c.name = $1 AND d.dedup = $2

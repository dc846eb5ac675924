-- Dead letters by their keys, whole, each with the place of its key among those asked for, from 1.
-- Lock: ACCESS SHARE on dead_letters. Index: dead_letters_pkey, one descent a key.
SELECT d.failed_at_ms, d.received_at_ms, d.attempts, d.class, d.code, d.reason, d.id, d.digest,
       d.topic, d.partition, d.position, d.line, d.timestamp_ms, d.key, d.value,
       d.header_names, d.header_values, d.value_full_bytes, d.value_blake3, u.place::int4
FROM unnest($2::bytea[]) WITH ORDINALITY AS u (dedup, place)
JOIN {schema}.dead_letters AS d ON d.consumer = $1::int2 AND d.dedup = u.dedup

-- Raises marks, given in the order of their keys, each where the version is greater than it and of its kind, and
-- answers what they were before. A mark that stays is written too: so its row is locked, and what it was is read
-- as it is now and not as this statement's snapshot has it. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on versions; of the rows, in the order given, waiting for transactions that raise the same.
-- Index: versions_pkey.
INSERT INTO {schema}.versions AS v (consumer, key, version)
SELECT $1::int2, u.key, u.version
FROM unnest((SELECT $2::bytea[]), (SELECT $3::bytea[])) AS u (key, version)
WHERE {guard}
ON CONFLICT (consumer, key) DO UPDATE SET
    previous = v.version,
    version = CASE
        WHEN get_byte(excluded.version, 0) = get_byte(v.version, 0) THEN greatest(excluded.version, v.version)
        ELSE v.version
    END
RETURNING key, previous

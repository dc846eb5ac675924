-- Raises a mark where the version is greater than it and of its kind, and answers what it was before.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_versions.
INSERT INTO handstamp_versions (consumer, key, version) VALUES (?1, ?2, ?3)
ON CONFLICT (consumer, key) DO UPDATE SET
    previous = version,
    version = CASE
        WHEN substr(excluded.version, 1, 1) = substr(version, 1, 1) THEN max(excluded.version, version)
        ELSE version
    END
RETURNING previous

-- The mark of a key.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, primary key of handstamp_versions.
SELECT v.version FROM handstamp_versions AS v
WHERE v.consumer = (SELECT c.id FROM handstamp_consumers AS c WHERE c.name = ?1) AND v.key = ?2

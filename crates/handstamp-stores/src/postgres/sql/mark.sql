-- The mark of a key.
-- Lock: ACCESS SHARE on versions and consumers. Index: consumers_name_key, versions_pkey.
SELECT v.version FROM {schema}.versions AS v
WHERE v.consumer = (SELECT c.id FROM {schema}.consumers AS c WHERE c.name = $1) AND v.key = $2

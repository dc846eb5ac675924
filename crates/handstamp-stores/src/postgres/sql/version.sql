-- The number of the last migration.
-- Lock: ACCESS SHARE on migrations. Index: migrations_pkey (backwards, one row).
SELECT coalesce(max(number), 0) FROM {schema}.migrations

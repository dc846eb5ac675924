-- The GRANT statements that a role needs to run on the relations that setup files made; those on our own
-- are beside this file's caller.
-- Lock: none. Index: setups_pkey.
WITH made AS (
    SELECT c.oid, c.relkind, c.relnamespace
    FROM {schema}.setups AS s
    CROSS JOIN LATERAL unnest(s.relations) AS r (name)
    JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(r.name)
)
SELECT DISTINCT format('GRANT USAGE ON SCHEMA %s TO %I', relnamespace::regnamespace, $1::text) FROM made
UNION ALL
SELECT CASE relkind
           WHEN 'S' THEN format('GRANT USAGE, SELECT ON SEQUENCE %s TO %I', oid::regclass, $1::text)
           ELSE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', oid::regclass, $1::text)
       END
FROM made

-- The GRANT statements that a role needs to run: our own relations, then those that setup files made.
-- Lock: none. Index: setups_pkey.
WITH own (privileges, object) AS (
    VALUES ('USAGE', 'SCHEMA {schema}'),
           ('SELECT', '{schema}.migrations'), ('SELECT', '{schema}.setups'),
           ('SELECT, INSERT, UPDATE', '{schema}.consumers'),
           ('SELECT, INSERT, UPDATE', '{schema}.inbox'),
           ('SELECT, INSERT', '{schema}.dead_letters')
), made AS (
    SELECT c.oid, c.relkind, c.relnamespace
    FROM {schema}.setups AS s
    CROSS JOIN LATERAL unnest(s.relations) AS r (name)
    JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(r.name)
)
SELECT format('GRANT %s ON %s TO %I', privileges, object, $1::text) FROM own
UNION ALL
SELECT DISTINCT format('GRANT USAGE ON SCHEMA %s TO %I', relnamespace::regnamespace, $1::text) FROM made
UNION ALL
SELECT CASE relkind
           WHEN 'S' THEN format('GRANT USAGE, SELECT ON SEQUENCE %s TO %I', oid::regclass, $1::text)
           ELSE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', oid::regclass, $1::text)
       END
FROM made

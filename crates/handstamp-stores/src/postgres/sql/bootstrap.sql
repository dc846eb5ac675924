-- The schema and the list of migrations, before the first of them.
-- Lock: ACCESS EXCLUSIVE on the new table only; the advisory lock of migrations is held.
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    number     int4        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

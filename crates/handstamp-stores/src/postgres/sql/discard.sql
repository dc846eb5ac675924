-- Takes dead letters out for good, with the crashes that were still to be forgotten, says `discarded` in the inbox
-- rows that are their own, and writes the audit; answers what it took out. Why they were given up is kept in their
-- histories, where those say nothing of it. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on dead_letters, attempts, crashes, inbox and audit; FOR UPDATE of the dead letters in the order of their
-- keys, waiting for other operators, and of their inbox rows.
-- Index: dead_letters_pkey, attempts_pkey, crashes_pkey, inbox_pkey, audit_pkey, audit_by_message.
WITH locked AS MATERIALIZED (
    SELECT d.dedup FROM {schema}.dead_letters AS d
    WHERE d.consumer = $1::int2 AND d.dedup = ANY ($6::bytea[]) AND {guard}
    ORDER BY d.dedup
    FOR UPDATE
), gone AS (
    DELETE FROM {schema}.dead_letters AS d USING locked
    WHERE d.consumer = $1::int2 AND d.dedup = locked.dedup
    RETURNING d.dedup, d.id, d.class, d.code, d.reason, d.failed_at_ms
), kept AS (
    INSERT INTO {schema}.attempts (consumer, dedup, at_ms, node, class, code, reason)
    SELECT $1::int2, g.dedup, g.failed_at_ms, '', g.class, g.code, g.reason FROM gone AS g
    WHERE NOT EXISTS (SELECT FROM {schema}.attempts AS o WHERE o.consumer = $1::int2 AND o.dedup = g.dedup)
), forgotten AS (
    DELETE FROM {schema}.crashes AS k USING gone WHERE k.consumer = $1::int2 AND k.dedup = gone.dedup
), said AS (
    UPDATE {schema}.inbox AS i SET state = 'x'
    FROM gone WHERE i.id = gone.id AND i.consumer = $1::int2 AND i.state = 'd' AND gone.class <> 'id_reused'
)
INSERT INTO {schema}.audit (consumer, operation, action, done_by, why, dedup, id)
SELECT $1::int2, $2::bytea, $3::text, $4::text, $5::text, gone.dedup, gone.id FROM gone
RETURNING dedup

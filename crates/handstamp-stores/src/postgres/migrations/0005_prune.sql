-- What finds old ids and old attempts, up to when ids are forgotten, and claims as functions.
-- Lock: CREATE takes ACCESS EXCLUSIVE on the new relations; SHARE on attempts while its index is built.

CREATE INDEX attempts_by_time ON {schema}.attempts (consumer, at_ms);

-- One row for each consumer of which ids were deleted.
--   horizon  seconds since 2020-01-01 00:00 UTC: an id that was first seen before may be forgotten
CREATE TABLE {schema}.pruned (
    consumer int2        PRIMARY KEY REFERENCES {schema}.consumers (id),
    horizon  int4        NOT NULL,
    at       timestamptz NOT NULL DEFAULT now()
);

-- Where old ids may lie: the inbox in parts of 512 pages, for each consumer the time of its oldest row in each, as it
-- was when somebody looked, and no later than that. Whatever comes into a part later is younger. So a part is looked
-- at again when that row is old, and the inbox needs no index by time: one made each claim a quarter more expensive
-- to write. A part that says nothing is looked at; one that says too young a time (the table was written anew,
-- ids of an earlier time were imported) is looked at later.
--   oldest   seconds since 2020-01-01 00:00 UTC
CREATE TABLE {schema}.inbox_parts (
    consumer int2 NOT NULL REFERENCES {schema}.consumers (id),
    part     int4 NOT NULL,
    oldest   int4 NOT NULL,
    PRIMARY KEY (consumer, part)
);

-- Level 0 for every language and driver: the statements of a claim as functions, run with the caller's rights.

-- The bytes that an inbox row keeps of an id.
CREATE FUNCTION {schema}.stored_id(message_id text) RETURNS bytea
LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE
        WHEN message_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
            THEN decode(replace(message_id, '-', ''), 'hex')
        WHEN octet_length(message_id) >= 16 THEN convert_to(message_id, 'UTF8') || '\x00'::bytea
        ELSE convert_to(message_id, 'UTF8')
    END
$$;

-- Registers a consumer's name, or finds it.
CREATE FUNCTION {schema}.register(consumer_name text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF consumer_name IS NULL OR consumer_name !~ '^[A-Za-z0-9._-]{1,64}$' THEN
        RAISE EXCEPTION 'handstamp: % is no consumer name: use 1 to 64 of A-Z a-z 0-9 . _ -', quote_nullable(consumer_name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR attempt IN 1..1000 LOOP
        IF EXISTS (SELECT FROM {schema}.consumers AS c WHERE c.name = consumer_name) THEN
            RETURN;
        END IF;
        INSERT INTO {schema}.consumers (id, name)
        SELECT (coalesce((SELECT max(c.id) FROM {schema}.consumers AS c), 0) + 1)::int2, consumer_name
        ON CONFLICT DO NOTHING;
    END LOOP;
    RAISE EXCEPTION 'handstamp: registering the consumer %: other processes were faster', consumer_name
        USING ERRCODE = 'serialization_failure';
END
$$;

-- Claims a message id inside the caller's transaction: true exactly when that transaction is the one whose commit
-- makes the id known. Waits for another transaction that is inserting the same id.
CREATE FUNCTION {schema}.claim(consumer_name text, message_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    registered int2;
BEGIN
    IF message_id IS NULL OR octet_length(message_id) > 1024 OR message_id !~ '[^[:space:]]' THEN
        RAISE EXCEPTION 'handstamp: this is no message id: use 1 to 1,024 bytes that are not all white space'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT c.id INTO registered FROM {schema}.consumers AS c WHERE c.name = consumer_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'handstamp: the consumer % is not registered in this database', quote_nullable(consumer_name)
            USING ERRCODE = 'undefined_object', HINT = 'register it once, with the function register';
    END IF;
    INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
    VALUES (NULL, (date_part('epoch', now()) - 1577836800)::int4, registered, 'a', {schema}.stored_id(message_id))
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

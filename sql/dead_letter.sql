-- The table of rows that JetStream cannot take, each with its reason.
--
-- Run:  psql -d DATABASE -f dead_letter.sql
-- `postrider setup` runs the same statements.
--
-- A row here is what lets the stream go on past a poison row: it is committed before the position
-- is confirmed. Look at them with SELECT; a row that is dealt with may be deleted.

-- section: dead_letter
CREATE SCHEMA IF NOT EXISTS postrider;

CREATE TABLE IF NOT EXISTS postrider.dead_letter (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot       text NOT NULL,
    -- SYSTEM_IDENTIFIER/TIMELINE/DATABASE/SLOT, as in the header Outbox-Source.
    source     text NOT NULL,
    -- COMMIT_LSN/N, as in the header Outbox-Position.
    position   text NOT NULL,
    -- schema.table
    table_name text NOT NULL,
    row_id     text,
    dedup_id   text,
    subject    text,
    -- json and not jsonb, which refuses \u0000: parking must not fail on a value.
    headers    json NOT NULL DEFAULT '{}',
    payload    bytea,
    -- A short name of the kind of fault, and what exactly was wrong.
    reason     text NOT NULL,
    detail     text,
    -- When the row was made, as the outbox table has it.
    created_at text,
    parked_at  timestamptz NOT NULL DEFAULT now(),
    -- After a crash the same row comes again and is parked only once.
    UNIQUE (source, position)
);
-- end section

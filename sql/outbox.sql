-- The recommended outbox table.
--
-- Run:  psql -d DATABASE -f outbox.sql
--       psql -d DATABASE -v schema=sales -v table=outbox -f outbox.sql
-- `postrider setup --create-table` runs the same statements.
--
-- An application inserts one row per event, in the transaction that changes its own tables.
-- Nothing updates or deletes these rows but pruning (pruning.sql).
\if :{?schema} \else \set schema public
\endif
\if :{?table} \else \set table outbox
\endif
\set index :table _created_at_idx

-- section: table
CREATE TABLE IF NOT EXISTS :"schema".:"table" (
    -- Becomes the dedup id: JetStream stores a second message with the same id only once.
    -- A uuid of the application's own in a column `id` serves as well.
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- What the event is about: the subject is outbox.AGGREGATE_TYPE.TYPE, and events of one
    -- aggregate_id keep their commit order.
    aggregate_type text NOT NULL,
    aggregate_id   text NOT NULL,
    type           text NOT NULL,
    -- The message body, byte for byte as PostgreSQL holds it. json instead of jsonb keeps the
    -- spelling of numbers and the order of keys; text and bytea are possible, too.
    payload        jsonb,
    -- Further message headers: {"Tenant": "a", ...}.
    headers        jsonb,
    created_at     timestamptz NOT NULL DEFAULT now(),
    -- A NATS server takes 1 MiB per message unless told otherwise. Better an error here, where the
    -- transaction can still be refused, than a row in the dead-letter table.
    CONSTRAINT payload_fits_a_message CHECK (octet_length(payload::text) < 900000)
);
-- end section

-- Pruning by age finds its rows by this index.
-- section: index
CREATE INDEX IF NOT EXISTS :"index" ON :"schema".:"table" (created_at);
-- end section

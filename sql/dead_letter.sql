-- The table of rows that JetStream cannot take, each with its reason.
--
-- Run:  psql -d DATABASE -f dead_letter.sql
-- `postrider setup` runs the same statements.
--
-- A row here is what lets the stream go on past a poison row: it is committed before the position
-- is confirmed. `postrider dead-letters` lists, retries and discards them; a row that is dealt with
-- otherwise may be deleted by hand.

-- section: dead_letter
CREATE SCHEMA IF NOT EXISTS postrider;

CREATE TABLE IF NOT EXISTS postrider.dead_letter (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot         text NOT NULL,
    -- parked: the stream has gone on without this row.
    -- halted: the streamer stopped at this row, and it is still the slot's to send
    --         (on_poison = "halt"). It goes by itself once the row has flowed.
    state        text NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'halted')),
    -- SYSTEM_IDENTIFIER/TIMELINE/DATABASE/SLOT, as in the header Outbox-Source.
    source       text NOT NULL,
    -- COMMIT_LSN/N, as in the header Outbox-Position.
    position     text NOT NULL,
    -- schema.table
    table_name   text NOT NULL,
    row_id       text,
    dedup_id     text,
    subject      text,
    -- json and not jsonb, which refuses \u0000 and keeps one header of each name: parking must not
    -- fail on a value, nor lose one.
    headers      json NOT NULL DEFAULT '{}',
    payload      bytea,
    -- Whether subject, headers and payload are all that the row was to become: not where the fault
    -- is in rendering them.
    complete     boolean NOT NULL DEFAULT true,
    -- A short name of the kind of fault, and what exactly was wrong.
    reason       text NOT NULL,
    detail       text,
    -- When the row was made, as the outbox table has it.
    created_at   text,
    parked_at    timestamptz NOT NULL DEFAULT now(),
    -- How often `dead-letters retry` has sent it, and when last.
    tries        integer NOT NULL DEFAULT 0,
    tried_at     timestamptz,
    -- The sequence that the last try was to get in an exclusive stream: whether it is stored is
    -- looked up there, however long ago that was.
    due_sequence bigint,
    -- After a crash the same row comes again and is parked only once.
    UNIQUE (source, position, state)
);

CREATE INDEX IF NOT EXISTS dead_letter_halted_idx ON postrider.dead_letter (slot)
    WHERE state = 'halted';
-- end section

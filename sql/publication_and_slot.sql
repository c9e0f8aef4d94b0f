-- The publication and the replication slot, in this order, each in its own transaction.
--
-- Run:  psql -d DATABASE -v publication=postrider -v slot=postrider \
--            -v schema=public -v table=outbox -f publication_and_slot.sql
-- `postrider setup` runs the same statements for each outbox table.
--
-- Why this order: logical decoding looks a publication up as it was when a row was written. A slot
-- that is older than its publication fails for ever on servers up to 17, and from 18 on leaves
-- out the rows in between without an error.
\if :{?publication} \else \set publication postrider
\endif
\if :{?slot} \else \set slot postrider
\endif
\if :{?schema} \else \set schema public
\endif
\if :{?table} \else \set table outbox
\endif

-- Only inserts are published, so that the application may update and delete rows of a table
-- without primary key. Rows of partitions come under the name of the partitioned table.
-- Needs: ownership of the table and CREATE on the database.
-- section: publication
CREATE PUBLICATION :"publication" FOR TABLE :"schema".:"table"
    WITH (publish = 'insert', publish_via_partition_root = true);
-- end section

-- Waits for every transaction that is open anywhere in the server and has written something.
-- From now on PostgreSQL keeps WAL until it is confirmed: watch slot_lag.sql, and set
-- max_slot_wal_keep_size to what the disk can bear.
-- Needs: REPLICATION, and wal_level = logical.
SELECT current_setting('server_version_num')::int >= 170000 AS has_failover \gset
\if :has_failover
-- section: slot_with_failover
SELECT pg_create_logical_replication_slot(:'slot', 'pgoutput', false, false, true);
-- end section
\else
-- section: slot
SELECT pg_create_logical_replication_slot(:'slot', 'pgoutput', false, false);
-- end section
\endif

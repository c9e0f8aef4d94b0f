-- The role that `postrider run` connects as, with nothing more than it needs.
--
-- Run as a superuser or the owner of the tables, after outbox.sql and dead_letter.sql:
--   psql -d DATABASE -v role=postrider -v schema=public -v table=outbox -f roles.sql
-- then give it a password:  \password postrider
--
-- Note that REPLICATION lets a role read every table of the cluster through a slot of its own.
-- On a managed service a role membership takes the attribute's place:
--   Amazon RDS and Aurora: rds.logical_replication = 1, GRANT rds_replication TO postrider;
--   Google Cloud SQL:      cloudsql.logical_decoding = on, ALTER ROLE postrider REPLICATION;
--   Azure:                 wal_level = logical, ALTER ROLE postrider REPLICATION;
-- pg_hba.conf needs a line for this role and the database by its name; the keyword `replication`
-- there stands for physical replication only.
\if :{?role} \else \set role postrider
\endif
\if :{?schema} \else \set schema public
\endif
\if :{?table} \else \set table outbox
\endif

-- section: role
CREATE ROLE :"role" LOGIN REPLICATION;
-- end section

-- Counting and retrying read the table; streaming itself does not.
-- section: schema
GRANT USAGE ON SCHEMA :"schema" TO :"role";
-- end section
-- section: table
GRANT SELECT ON :"schema".:"table" TO :"role";
-- end section

-- section: dead_letters
-- Parking rows that JetStream cannot take. Without this, `on_poison = "park"` acts as "halt".
GRANT USAGE ON SCHEMA postrider TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON postrider.dead_letter TO :"role";
-- end section

-- section: monitor
-- Optional: names of other sessions, their ages, and reply times in `postrider status`.
GRANT pg_monitor TO :"role";
-- end section

-- The role that `postrider run` and `postrider status` connect as. What each grant is for stands
-- beside it: streaming alone needs REPLICATION, and no right on any table.
--
-- Run as a superuser, after outbox.sql and dead_letter.sql; the owner of the tables may run the
-- grants on them, but can neither make such a role nor grant pg_monitor:
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

-- Optional: reading the table, which `setup` does to count rows and `dead-letters retry` to send the
-- row as it is now. Streaming itself does not need it.
-- section: schema
GRANT USAGE ON SCHEMA :"schema" TO :"role";
-- end section
-- section: table
GRANT SELECT ON :"schema".:"table" TO :"role";
-- end section

-- section: dead_letters
-- Dead letters: INSERT parks rows that JetStream cannot take (without it, `on_poison = "park"` acts
-- as "halt"), SELECT counts and lists them, UPDATE and DELETE are for retrying and discarding.
GRANT USAGE ON SCHEMA postrider TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON postrider.dead_letter TO :"role";
-- end section

-- section: monitor
-- Optional: names of other sessions, their ages, and reply times in `postrider status`.
GRANT pg_monitor TO :"role";
-- end section

-- Deletes old rows of the outbox table, never one that is not yet confirmed.
--
-- Run:  psql -d DATABASE -v slot=postrider -v schema=public -v table=outbox \
--            -v keep='7 days' -f pruning.sql
--
-- Pruning is never needed for delivery: rows are streamed from the WAL, and a row that is deleted
-- the moment after its insert is delivered all the same. What is pruned cannot be replayed,
-- verified or recovered from the table any more, so keep some days.
--
-- The proof that only confirmed rows go: one snapshot serves the whole transaction. Every row that
-- it shows was committed before the position that is read right after it was taken, and rows are
-- deleted only if the slot has confirmed that position. A row committed later is not in the
-- snapshot, however old its created_at is.
\if :{?slot} \else \set slot postrider
\endif
\if :{?schema} \else \set schema public
\endif
\if :{?table} \else \set table outbox
\endif
\if :{?keep} \else \set keep '7 days'
\endif

\if :{?wait_seconds} \else \set wait_seconds 5
\endif

BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_current_wal_insert_lsn() AS horizon \gset
-- The slot's position is no part of the snapshot; a running streamer passes the horizon meanwhile.
SELECT pg_sleep(:wait_seconds) \g /dev/null
SELECT COALESCE(bool_or(confirmed_flush_lsn >= :'horizon'::pg_lsn), false) AS confirmed
FROM pg_replication_slots WHERE slot_name = :'slot' \gset
\if :confirmed
-- section: prune
DELETE FROM :"schema".:"table" WHERE created_at < now() - :'keep'::interval;
-- end section
\else
\echo 'nothing pruned: the slot has not confirmed the present position yet; run this again'
\endif
COMMIT;

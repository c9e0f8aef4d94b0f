-- How far behind a slot is, and what it costs: one row, all numbers of one moment.
--
-- Run:  psql -d DATABASE -v slot=postrider -x -f slot_lag.sql
-- `postrider status` reads the same statement. It works on servers 14 to 18; what a version or
-- a role cannot see is NULL.
--
-- retained_bytes            WAL that the slot keeps on disk
-- unconfirmed_bytes         WAL that the streamer has not confirmed
-- held_by_open_xacts_bytes  of the retained, what is kept for the oldest open transaction
-- safe_wal_size_bytes       how much more may be written before the slot can be lost
--                           (NULL: max_slot_wal_keep_size is -1, nothing limits the disk usage)
-- unsent_bytes              WAL that the server has not sent to the streamer
-- oldest_xact_*             the oldest open transaction that has written something
\if :{?slot} \else \set slot postrider
\endif

-- section: slot_lag
SELECT s.slot_name::text AS slot_name,
       s.plugin::text AS plugin,
       s.database::text AS database,
       s.temporary,
       s.active,
       s.active_pid,
       COALESCE(r.application_name, a.application_name) AS holder_application_name,
       s.wal_status,
       s.safe_wal_size AS safe_wal_size_bytes,
       NULLIF(pg_size_bytes(current_setting('max_slot_wal_keep_size')), -1) AS keep_size_bytes,
       -- Not GREATEST(x, 0), which makes 0 of a NULL: what cannot be known stays unknown.
       CASE WHEN d.retained < 0 THEN 0 ELSE d.retained END AS retained_bytes,
       CASE WHEN d.unconfirmed < 0 THEN 0 ELSE d.unconfirmed END AS unconfirmed_bytes,
       CASE WHEN d.held < 0 THEN 0 ELSE d.held END AS held_by_open_xacts_bytes,
       w.current_lsn::text AS current_lsn,
       s.restart_lsn::text AS restart_lsn,
       s.confirmed_flush_lsn::text AS confirmed_flush_lsn,
       age(s.catalog_xmin) AS catalog_xmin_age,
       -- 17 and newer; to_jsonb makes a column that is not there a NULL.
       extract(epoch FROM now() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8
           AS inactive_seconds,
       COALESCE(to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN s.wal_status = 'lost' THEN 'lost' END) AS invalid_reason,
       (to_jsonb(s) ->> 'failover')::boolean AS failover,
       (to_jsonb(s) ->> 'synced')::boolean AS synced,
       r.state AS walsender_state,
       r.sync_state,
       CASE WHEN d.unsent < 0 THEN 0 ELSE d.unsent END AS unsent_bytes,
       extract(epoch FROM now() - r.reply_time)::float8 AS reply_seconds,
       w.in_recovery,
       x.pid AS oldest_xact_pid,
       x.gid AS oldest_xact_gid,
       x.age_seconds AS oldest_xact_seconds
FROM pg_replication_slots AS s
CROSS JOIN LATERAL (
    SELECT pg_is_in_recovery() AS in_recovery,
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                ELSE pg_current_wal_lsn() END AS current_lsn
) AS w
LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid
LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
CROSS JOIN LATERAL (
    SELECT pg_wal_lsn_diff(w.current_lsn, s.restart_lsn)::bigint AS retained,
           pg_wal_lsn_diff(w.current_lsn, s.confirmed_flush_lsn)::bigint AS unconfirmed,
           pg_wal_lsn_diff(s.confirmed_flush_lsn, s.restart_lsn)::bigint AS held,
           pg_wal_lsn_diff(w.current_lsn, r.sent_lsn)::bigint AS unsent
) AS d
LEFT JOIN LATERAL (
    SELECT o.pid, o.gid, o.age_seconds
    FROM (
        SELECT pid, NULL::text AS gid, backend_xid AS xid,
               extract(epoch FROM now() - xact_start)::float8 AS age_seconds
        FROM pg_stat_activity WHERE backend_xid IS NOT NULL
        UNION ALL
        SELECT NULL::int, gid, transaction,
               extract(epoch FROM now() - prepared)::float8
        FROM pg_prepared_xacts
    ) AS o
    ORDER BY age(o.xid) DESC
    LIMIT 1
) AS x ON NOT w.in_recovery
WHERE s.slot_name = :'slot';
-- end section

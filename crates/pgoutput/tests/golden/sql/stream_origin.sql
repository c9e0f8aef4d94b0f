-- proto_version 2
-- streaming on
SELECT pg_replication_origin_create('golden origin');
SELECT pg_replication_origin_session_setup('golden origin');
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF0123', '2020-02-02 02:02:02+00');
INSERT INTO streamed VALUES (1, 'sad');
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
DELETE FROM streamed;
COMMIT;
SELECT pg_replication_origin_session_reset();
SELECT pg_replication_origin_drop('golden origin');

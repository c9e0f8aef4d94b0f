-- proto_version 1
SELECT pg_replication_origin_create('golden origin');
SELECT pg_replication_origin_session_setup('golden origin');
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CDEF0123', '2020-02-02 02:02:02+00');
INSERT INTO streamed VALUES (1, 'sad');
COMMIT;
SELECT pg_replication_origin_session_reset();
SELECT pg_replication_origin_drop('golden origin');
DELETE FROM streamed;

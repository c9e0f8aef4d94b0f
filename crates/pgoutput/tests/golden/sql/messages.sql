-- proto_version 1
-- messages true
SELECT pg_logical_emit_message(true, 'in', 'text');
SELECT pg_logical_emit_message(false, 'out', '\x00ff00'::bytea);
SELECT pg_logical_emit_message(true, '', '');
BEGIN;
INSERT INTO streamed VALUES (1, NULL);
SELECT pg_logical_emit_message(true, 'Präfix', 'committed');
SELECT pg_logical_emit_message(false, 'at once', 'before the Begin');
DELETE FROM streamed;
COMMIT;
BEGIN;
SELECT pg_logical_emit_message(true, 'in', 'rolled back');
SELECT pg_logical_emit_message(false, 'out', 'in spite of rollback');
ROLLBACK;

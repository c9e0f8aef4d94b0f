-- session walsender
-- proto_version 2
-- streaming on
-- messages true
-- Rolled back subtransactions, and every kind of change inside a block.
BEGIN;
INSERT INTO item VALUES (1, 'top', NULL, NULL);
INSERT INTO streamed VALUES (1, 'sad'), (2, NULL);
SAVEPOINT a;
UPDATE streamed SET id = 3 WHERE id = 1;
SELECT pg_logical_emit_message(true, 'in', 'block');
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
\! sh "$GOLDEN" read
ROLLBACK TO a;
UPDATE streamed SET m = 'happy' WHERE id = 1;
DELETE FROM streamed WHERE id = 2;
TRUNCATE streamed, item CASCADE;
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
\! sh "$GOLDEN" read
COMMIT;

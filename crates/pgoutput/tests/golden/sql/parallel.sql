-- server 16
-- session walsender
-- proto_version 4
-- messages true
-- streaming parallel
BEGIN;
INSERT INTO streamed VALUES (10, 'sad');
SAVEPOINT a;
INSERT INTO streamed VALUES (11, 'happy');
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
\! sh "$GOLDEN" read
ROLLBACK TO a;
COMMIT;
BEGIN;
INSERT INTO streamed VALUES (12, 'sad');
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
\! sh "$GOLDEN" read
ROLLBACK;

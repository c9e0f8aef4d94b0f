-- session walsender
-- proto_version 2
-- messages true
-- streaming on
BEGIN;
INSERT INTO streamed VALUES (1, 'sad');
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
\! sh "$GOLDEN" read
ROLLBACK;

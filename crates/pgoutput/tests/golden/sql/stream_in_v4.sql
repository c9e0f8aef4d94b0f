-- server 16
-- session walsender
-- proto_version 4
-- messages true
-- streaming on
BEGIN;
INSERT INTO streamed VALUES (20, 'sad');
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
\! sh "$GOLDEN" read
ROLLBACK;

-- server 15
-- slot two_phase
-- proto_version 3
-- two_phase on
-- streaming on
BEGIN;
INSERT INTO streamed VALUES (2, 'sad');
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
DELETE FROM streamed WHERE id = 2;
PREPARE TRANSACTION 'gid streamed';
\! sh "$GOLDEN" read
COMMIT PREPARED 'gid streamed';

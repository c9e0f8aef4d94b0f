-- server 15
-- slot two_phase
-- proto_version 3
-- two_phase on
BEGIN;
INSERT INTO streamed VALUES (1, 'sad');
PREPARE TRANSACTION 'gid one';
COMMIT PREPARED 'gid one';
BEGIN;
DELETE FROM streamed;
PREPARE TRANSACTION 'gid zwölf';
\! sh "$GOLDEN" read
ROLLBACK PREPARED 'gid zwölf';

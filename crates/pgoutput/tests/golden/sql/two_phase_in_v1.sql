-- server 15
-- slot two_phase
-- proto_version 1
BEGIN;
INSERT INTO streamed VALUES (3, NULL);
PREPARE TRANSACTION 'gid v1';
COMMIT PREPARED 'gid v1';

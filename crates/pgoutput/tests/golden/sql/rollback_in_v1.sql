-- proto_version 1
-- The transaction outgrows the decoding memory and is known to be rolled back by then. Server 18
-- takes the small subtransaction for streamed and sends a Stream Abort, though nobody streams.
BEGIN;
SAVEPOINT a;
INSERT INTO streamed VALUES (30, 'sad');
RELEASE a;
INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 80);
ROLLBACK;
INSERT INTO streamed VALUES (31, NULL);

-- proto_version 1
INSERT INTO toast VALUES (1, repeat('x', 2100), 'a');
UPDATE toast SET small = 'b';
UPDATE toast SET id = 2;
UPDATE toast SET big = 'short';

-- proto_version 1
BEGIN;
INSERT INTO id_full VALUES (1, 'one');
UPDATE id_full SET name = 'uno' WHERE id = 1;
DELETE FROM id_full;
INSERT INTO id_index VALUES (1, 'A', 'one');
UPDATE id_index SET name = 'uno';
UPDATE id_index SET code = 'B';
DELETE FROM id_index;
INSERT INTO id_nothing VALUES (7);
INSERT INTO no_columns DEFAULT VALUES;
COMMIT;

-- proto_version 1
INSERT INTO item VALUES (1, 'hammer', NULL, 12.50);
BEGIN;
INSERT INTO item VALUES (2, '', E'tab\tand ü', NULL), (-3, NULL, NULL, NULL);
UPDATE item SET name = 'nail' WHERE id = 2;
UPDATE item SET id = 4 WHERE id = 1;
DELETE FROM item WHERE id = 2;
INSERT INTO part VALUES (4);
COMMIT;
BEGIN;
INSERT INTO item VALUES (5, 'never', NULL, NULL);
ROLLBACK;
ALTER TABLE item RENAME note TO remark;
INSERT INTO item VALUES (6, 'saw', 'sharp', 99999.99);
ALTER TABLE item RENAME remark TO note;

-- proto_version 1
-- binary true
INSERT INTO bin VALUES
    (-2, true, 'ü', '{"a": 1}', '2000-01-01 00:00:01+00', '\x00ff'),
    (258, NULL, '', NULL, NULL, '\x');
UPDATE bin SET id = 3 WHERE id = 258;

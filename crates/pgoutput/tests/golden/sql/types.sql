-- proto_version 1
INSERT INTO "Schëma"."Große Tabelle"
VALUES ('00000000-0000-4000-8000-00000000000a', 'happy', 3.10, ROW(4, NULL));

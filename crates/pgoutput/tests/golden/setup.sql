-- The tables of all scenarios. Run once on an empty database by record.sh.

-- Rows for this table fill the server's decoding memory (so that it streams) and are not sent.
CREATE TABLE unpublished (filler text);

CREATE TABLE item (id int PRIMARY KEY, name text, note varchar(20), price numeric(8,2));
CREATE TABLE part (item_id int REFERENCES item, id bigint GENERATED ALWAYS AS IDENTITY);

CREATE TABLE id_full (id int PRIMARY KEY, name text);
ALTER TABLE id_full REPLICA IDENTITY FULL;
CREATE TABLE id_index (id int PRIMARY KEY, code text NOT NULL, name text);
CREATE UNIQUE INDEX id_index_code ON id_index (code);
ALTER TABLE id_index REPLICA IDENTITY USING INDEX id_index_code;
CREATE TABLE id_nothing (id int PRIMARY KEY);
ALTER TABLE id_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE no_columns ();

-- A row of more than 2 kB has its big column stored elsewhere, uncompressed.
CREATE TABLE toast (id int PRIMARY KEY, big text, small text);
ALTER TABLE toast ALTER big SET STORAGE EXTERNAL;

CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN amount AS numeric(10,2) CHECK (value >= 0);
CREATE SCHEMA "Schëma";
CREATE TYPE "Schëma"."Größe" AS (länge int, "Breite" int);
CREATE TABLE "Schëma"."Große Tabelle" (
    "Schlüssel ""A""" uuid PRIMARY KEY, m mood, a amount, "größe" "Schëma"."Größe");

CREATE TABLE bin (id bigint PRIMARY KEY, ok bool, name text, doc jsonb, at timestamptz, raw bytea);

CREATE TABLE streamed (id int PRIMARY KEY, m mood);

CREATE PUBLICATION golden FOR TABLE item, part, id_full, id_index, id_nothing, no_columns, toast,
    "Schëma"."Große Tabelle", bin, streamed;

-- database golden_ascii
-- encoding SQL_ASCII
-- proto_version 1
-- A database that stores bytes as they come. The table is café and its column été, in Latin-1.
DO $$BEGIN
    EXECUTE format('INSERT INTO %I VALUES (%L)',
        convert_from('\x636166e9', 'SQL_ASCII'), convert_from('\xfc', 'SQL_ASCII'));
END$$;

-- The table of the scenario "ascii", in a database of the encoding SQL_ASCII.
CREATE TABLE unpublished (filler text);
DO $$BEGIN
    EXECUTE format('CREATE TABLE %I (%I text)',
        convert_from('\x636166e9', 'SQL_ASCII'), convert_from('\xe974e9', 'SQL_ASCII'));
    EXECUTE format('CREATE PUBLICATION golden FOR TABLE %I',
        convert_from('\x636166e9', 'SQL_ASCII'));
END$$;

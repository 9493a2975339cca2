-- Objects of extensions whose functions in C change nothing that a session keeps.
trusted AS (
  SELECT classid AS class, objid AS object FROM pg_catalog.pg_depend, pg_catalog.pg_extension
  WHERE refclassid = '3079' AND refobjid = pg_extension.oid AND deptype = 'e' AND extname = ANY ('{$extensions}'::pg_catalog.name[])),
-- Functions of PostgreSQL that do something ('x': to the session, 'a': ask for drawn values, 'w': more than read, 'p': what only the primary can say).
built_in AS (
  SELECT oid, proname, prosrc, CASE WHEN proname ~ '$sessions' THEN 'x'
      WHEN proname = ANY ('{currval,lastval}'::pg_catalog.name[]) THEN 'a' WHEN provolatile = 'v' THEN 'w' ELSE 'p' END AS does
  FROM pg_catalog.pg_proc WHERE oid < '16384' AND (provolatile = 'v' OR proname ~ '$primary')
  AND proname <> ALL ('{clock_timestamp,gen_random_uuid,random,random_normal,timeofday,timezone,uuidv4,uuidv7,pg_column_size,pg_size_pretty,pg_typeof}'::pg_catalog.name[])),
-- Routines of users. Kind 'b': what the body does is told by its words; 'e': it may do everything; 'n': nothing by itself.
routine AS (
  SELECT pg_proc.oid, provolatile = 'v' AS volatile,
    CASE WHEN prokind = 'a' OR prolang = '13' AND EXISTS (SELECT FROM trusted WHERE class = '1255' AND object = pg_proc.oid)
        OR prolang = '12' AND NOT EXISTS (SELECT FROM built_in WHERE built_in.prosrc = pg_proc.prosrc) THEN 'n'
      WHEN lanname = ANY ('{sql,plpgsql}'::pg_catalog.name[]) THEN 'b'
      WHEN lanname = ANY ('{plperl,plperlu,plpython2u,plpython3u,plpythonu,pltcl,pltclu,plv8}'::pg_catalog.name[]) AND prosrc !~* 'plpy|spi|plv8' THEN 'n'
      ELSE 'e' END AS kind,
    CASE WHEN prolang = ANY ('{12,13}'::pg_catalog.oid[]) THEN ''
      ELSE pg_catalog.lower(CASE WHEN prosrc = '' THEN pg_catalog.pg_get_functiondef(pg_proc.oid) ELSE prosrc END) END AS body
  FROM pg_catalog.pg_proc, pg_catalog.pg_language WHERE pg_proc.oid >= '16384' AND prolang = pg_language.oid),
-- The same in the trees of expressions, by number.
call AS (
  SELECT pg_catalog.concat(':(?:funcid|opfuncid) (?:', pg_catalog.string_agg(oid::pg_catalog.text, '|') FILTER (WHERE does = ANY ('{x,a}'::pg_catalog.text[])), ')[^0-9]') AS of_sessions,
    pg_catalog.concat('$system|:(?:funcid|opfuncid|aggfnoid|winfnoid|tsmhandler) (?:', pg_catalog.string_agg(oid::pg_catalog.text, '|') FILTER (WHERE proname ~ '$primary'), ')[^0-9]') AS of_primaries,
    pg_catalog.concat('$system|:rowMarks [(][{]|ROWMARKCLAUSE|:(?:funcid|opfuncid|aggfnoid|winfnoid|tsmhandler) (?:', pg_catalog.string_agg(oid::pg_catalog.text, '|') FILTER (WHERE does <> 'p'), ')[^0-9]') AS of_writers
  FROM built_in),

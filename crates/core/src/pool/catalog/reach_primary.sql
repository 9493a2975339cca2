   WITH pattern AS (
    SELECT pg_catalog.concat(':relid (?:1[0-5][0-9]{3}|16[0-2][0-9]{2}|163[0-7][0-9]|1638[0-3])[^0-9]'
     '|:(?:funcid|opfuncid|aggfnoid|winfnoid|tsmhandler) (?:', pg_catalog.string_agg(oid::pg_catalog.text, '|'), ')[^0-9]') AS text
     FROM pg_catalog.pg_proc WHERE oid OPERATOR(pg_catalog.<) '16384'
     AND proname OPERATOR(pg_catalog.~) '^(pg_|txid_|lo_|inet_server_)'
     AND proname OPERATOR(pg_catalog.<>) ALL ('{pg_column_size,pg_size_pretty,pg_typeof}'::pg_catalog.name[]))
   SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid AS class, oid AS object FROM pg_catalog.pg_class
     WHERE relkind OPERATOR(pg_catalog.=) 'S' OR relpersistence OPERATOR(pg_catalog.=) 'u'
   UNION ALL SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, oid FROM pg_catalog.pg_proc
     WHERE oid OPERATOR(pg_catalog.>=) '16384' AND provolatile OPERATOR(pg_catalog.<>) 'v' AND prosrc OPERATOR(pg_catalog.~*)
     '[[:<:]](pg_(?!(catalog|typeof|size_pretty|column_size)[[:>:]])|txid_|lo_|dblink|inet_server_|(last_value|is_called|log_cnt|information_schema)[[:>:]])'
   UNION ALL SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, routine.oid FROM pg_catalog.pg_proc AS routine, pattern
     WHERE routine.oid OPERATOR(pg_catalog.>=) '16384' AND provolatile OPERATOR(pg_catalog.<>) 'v' AND prosrc OPERATOR(pg_catalog.=) ''
     AND COALESCE(pg_catalog.to_jsonb(routine) OPERATOR(pg_catalog.->>) 'prosqlbody', '') OPERATOR(pg_catalog.~) pattern.text
   UNION ALL SELECT code.class, code.object FROM code, pattern WHERE code.tree OPERATOR(pg_catalog.~) pattern.text

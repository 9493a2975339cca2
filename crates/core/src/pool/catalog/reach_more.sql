   SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid AS class, oid AS object FROM pg_catalog.pg_proc
     WHERE oid OPERATOR(pg_catalog.>=) '16384' AND provolatile OPERATOR(pg_catalog.=) 'v'
     AND prorettype OPERATOR(pg_catalog.<>) ALL ('{2279,3838}'::pg_catalog.oid[])
   UNION ALL SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, aggfnoid FROM pg_catalog.pg_aggregate, pg_catalog.pg_proc
     WHERE aggfnoid OPERATOR(pg_catalog.>=) '16384' AND provolatile OPERATOR(pg_catalog.=) 'v' AND pg_proc.oid OPERATOR(pg_catalog.=)
     ANY (ARRAY[aggtransfn, aggfinalfn, aggcombinefn, aggmtransfn, aggminvtransfn, aggmfinalfn]::pg_catalog.oid[])
   UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, oid FROM pg_catalog.pg_class WHERE relkind OPERATOR(pg_catalog.=) 'f'
   UNION ALL SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, casttarget FROM pg_catalog.pg_cast, pg_catalog.pg_proc
     WHERE castfunc OPERATOR(pg_catalog.=) pg_proc.oid AND provolatile OPERATOR(pg_catalog.=) 'v'
   UNION ALL SELECT code.class, code.object FROM code, (
    SELECT pg_catalog.concat(':rowMarks [(][{]|ROWMARKCLAUSE'
     '|:relid (?:1[0-5][0-9]{3}|16[0-2][0-9]{2}|163[0-7][0-9]|1638[0-3])[^0-9]'
     '|:(?:funcid|opfuncid|aggfnoid|winfnoid|tsmhandler) (?:', pg_catalog.string_agg(oid::pg_catalog.text, '|'), ')[^0-9]') AS text
     FROM pg_catalog.pg_proc WHERE provolatile OPERATOR(pg_catalog.=) 'v' AND oid OPERATOR(pg_catalog.<) '16384'
     AND proname OPERATOR(pg_catalog.<>) ALL ('{clock_timestamp,gen_random_uuid,random,random_normal,timeofday,timezone,uuidv4,uuidv7}'::pg_catalog.name[])) AS pattern
    WHERE code.tree OPERATOR(pg_catalog.~) pattern.text

 UNION ALL SELECT 'r', CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.<=) 20000
  AND COALESCE(pg_catalog.sum(pg_catalog.length(known.name)), 0) OPERATOR(pg_catalog.<=) 200000
  THEN COALESCE(pg_catalog.string_agg(known.name, pg_catalog.chr(10)), '') END, NULL
FROM (SELECT proname::pg_catalog.text AS name FROM pg_catalog.pg_proc GROUP BY proname
  HAVING pg_catalog.max(oid) OPERATOR(pg_catalog.>=) '16384' AND pg_catalog.bool_and(provolatile OPERATOR(pg_catalog.<>) 'v')) AS known
 UNION ALL SELECT 'v', CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.<=) 20000
  AND COALESCE(pg_catalog.sum(pg_catalog.length(barred.name)), 0) OPERATOR(pg_catalog.<=) 200000
  THEN COALESCE(pg_catalog.string_agg(barred.name, pg_catalog.chr(10)), '') END, NULL
FROM (WITH RECURSIVE code AS (
  SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid AS class, rule.oid AS object, ev_action::pg_catalog.text AS tree
    FROM pg_catalog.pg_rewrite AS rule, pg_catalog.pg_class AS relation
    WHERE relation.oid OPERATOR(pg_catalog.=) ev_class AND relkind OPERATOR(pg_catalog.=) 'v'
    AND ev_type OPERATOR(pg_catalog.=) '1' AND ev_class OPERATOR(pg_catalog.>=) '16384'
  UNION ALL SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass::pg_catalog.oid, oid, polqual::pg_catalog.text
    FROM pg_catalog.pg_policy WHERE polqual IS NOT NULL
  UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass::pg_catalog.oid, oid, conbin::pg_catalog.text
    FROM pg_catalog.pg_constraint WHERE contypid OPERATOR(pg_catalog.<>) '0' AND conbin IS NOT NULL AND oid OPERATOR(pg_catalog.>=) '16384'),
 pattern AS (SELECT pg_catalog.concat(':rowMarks [(][{]|ROWMARKCLAUSE'
  '|:relid (?:1[0-5][0-9]{3}|16[0-2][0-9]{2}|163[0-7][0-9]|1638[0-3])[^0-9]'
  '|:(?:funcid|opfuncid|aggfnoid|winfnoid|tsmhandler) (?:', pg_catalog.string_agg(oid::pg_catalog.text, '|'), ')[^0-9]') AS text
  FROM pg_catalog.pg_proc WHERE provolatile OPERATOR(pg_catalog.=) 'v' AND oid OPERATOR(pg_catalog.<) '16384'
  AND proname OPERATOR(pg_catalog.<>) ALL ('{clock_timestamp,gen_random_uuid,random,random_normal,timeofday,timezone,uuidv4,uuidv7}'::pg_catalog.name[])),
 edge AS (
  SELECT refclassid AS from_class, refobjid AS from_object, classid AS class, objid AS object FROM pg_catalog.pg_depend
    WHERE classid OPERATOR(pg_catalog.=) ANY (ARRAY['pg_catalog.pg_rewrite', 'pg_catalog.pg_policy', 'pg_catalog.pg_constraint']::pg_catalog.regclass[]::pg_catalog.oid[])
  UNION ALL SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass, rule.oid, 'pg_catalog.pg_class'::pg_catalog.regclass, ev_class
    FROM pg_catalog.pg_rewrite AS rule, pg_catalog.pg_class AS relation
    WHERE relation.oid OPERATOR(pg_catalog.=) ev_class AND relkind OPERATOR(pg_catalog.=) 'v' AND ev_type OPERATOR(pg_catalog.=) '1'
  UNION ALL SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass, oid, 'pg_catalog.pg_class'::pg_catalog.regclass, polrelid FROM pg_catalog.pg_policy
  UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, oid, 'pg_catalog.pg_type'::pg_catalog.regclass, contypid
    FROM pg_catalog.pg_constraint WHERE contypid OPERATOR(pg_catalog.<>) '0'
  UNION ALL SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, typbasetype, 'pg_catalog.pg_type'::pg_catalog.regclass, oid
    FROM pg_catalog.pg_type WHERE typbasetype OPERATOR(pg_catalog.>=) '16384'
  UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, inhrelid, 'pg_catalog.pg_class'::pg_catalog.regclass, inhparent FROM pg_catalog.pg_inherits),
 loose AS (
  SELECT loosest.class, loosest.object FROM (
   SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid AS class, oid AS object FROM pg_catalog.pg_proc
     WHERE oid OPERATOR(pg_catalog.>=) '16384' AND provolatile OPERATOR(pg_catalog.=) 'v'
     AND prorettype OPERATOR(pg_catalog.<>) ALL ('{2279,3838}'::pg_catalog.oid[])
   UNION ALL SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, aggfnoid FROM pg_catalog.pg_aggregate, pg_catalog.pg_proc
     WHERE aggfnoid OPERATOR(pg_catalog.>=) '16384' AND provolatile OPERATOR(pg_catalog.=) 'v' AND pg_proc.oid OPERATOR(pg_catalog.=)
     ANY (ARRAY[aggtransfn, aggfinalfn, aggcombinefn, aggmtransfn, aggminvtransfn, aggmfinalfn]::pg_catalog.oid[])
   UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, oid FROM pg_catalog.pg_class WHERE relkind OPERATOR(pg_catalog.=) 'f'
   UNION ALL SELECT code.class, code.object FROM code, pattern WHERE code.tree OPERATOR(pg_catalog.~) pattern.text) AS loosest
  UNION SELECT edge.class, edge.object FROM edge, loose WHERE edge.from_class OPERATOR(pg_catalog.=) loose.class
    AND edge.from_object OPERATOR(pg_catalog.=) loose.object)
 SELECT proname::pg_catalog.text AS name FROM pg_catalog.pg_proc, loose
   WHERE class OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass AND object OPERATOR(pg_catalog.=) pg_proc.oid
 UNION SELECT relname::pg_catalog.text FROM pg_catalog.pg_class, loose
   WHERE class OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND object OPERATOR(pg_catalog.=) pg_class.oid
 UNION SELECT typname::pg_catalog.text FROM pg_catalog.pg_type, loose
   WHERE class OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass AND object OPERATOR(pg_catalog.=) pg_type.oid
 UNION SELECT typname::pg_catalog.text FROM pg_catalog.pg_cast, pg_catalog.pg_type, pg_catalog.pg_proc
   WHERE casttarget OPERATOR(pg_catalog.=) pg_type.oid AND castfunc OPERATOR(pg_catalog.=) pg_proc.oid
   AND provolatile OPERATOR(pg_catalog.=) 'v') AS barred
 UNION ALL SELECT 'x', NULL, NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_operator, pg_catalog.pg_proc
  WHERE oprcode OPERATOR(pg_catalog.=) pg_proc.oid AND provolatile OPERATOR(pg_catalog.=) 'v' AND pg_operator.oid OPERATOR(pg_catalog.>=) '16384')
 OR EXISTS (SELECT FROM pg_catalog.pg_cast, pg_catalog.pg_proc WHERE castfunc OPERATOR(pg_catalog.=) pg_proc.oid
  AND provolatile OPERATOR(pg_catalog.=) 'v' AND castcontext OPERATOR(pg_catalog.=) 'i')

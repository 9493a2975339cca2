 UNION ALL SELECT '$kind', CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.<=) 20000
  AND COALESCE(pg_catalog.sum(pg_catalog.length(found.name)), 0) OPERATOR(pg_catalog.<=) 200000
  THEN COALESCE(pg_catalog.string_agg(found.name, pg_catalog.chr(10)), '') END, NULL
FROM (WITH RECURSIVE code AS (
  SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid AS class, rule.oid AS object, ev_action::pg_catalog.text AS tree
    FROM pg_catalog.pg_rewrite AS rule, pg_catalog.pg_class AS relation
    WHERE relation.oid OPERATOR(pg_catalog.=) ev_class AND relkind OPERATOR(pg_catalog.=) 'v'
    AND ev_type OPERATOR(pg_catalog.=) '1' AND ev_class OPERATOR(pg_catalog.>=) '16384'
  UNION ALL SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass::pg_catalog.oid, oid, polqual::pg_catalog.text
    FROM pg_catalog.pg_policy WHERE polqual IS NOT NULL
  UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass::pg_catalog.oid, oid, conbin::pg_catalog.text
    FROM pg_catalog.pg_constraint WHERE contypid OPERATOR(pg_catalog.<>) '0' AND conbin IS NOT NULL AND oid OPERATOR(pg_catalog.>=) '16384'),
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
 reached AS (
  SELECT first.class, first.object FROM (
$first) AS first
  UNION SELECT edge.class, edge.object FROM edge, reached WHERE edge.from_class OPERATOR(pg_catalog.=) reached.class
    AND edge.from_object OPERATOR(pg_catalog.=) reached.object)
 SELECT proname::pg_catalog.text AS name FROM pg_catalog.pg_proc, reached
   WHERE class OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass AND object OPERATOR(pg_catalog.=) pg_proc.oid
 UNION SELECT relname::pg_catalog.text FROM pg_catalog.pg_class, reached
   WHERE class OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND object OPERATOR(pg_catalog.=) pg_class.oid
 UNION SELECT typname::pg_catalog.text FROM pg_catalog.pg_type, reached
   WHERE class OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass AND object OPERATOR(pg_catalog.=) pg_type.oid) AS found

 UNION ALL SELECT 'r', CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.<=) 20000
  AND COALESCE(pg_catalog.sum(pg_catalog.length(known.name)), 0) OPERATOR(pg_catalog.<=) 200000
  THEN COALESCE(pg_catalog.string_agg(known.name, pg_catalog.chr(10)), '') END, NULL
FROM (SELECT proname::pg_catalog.text AS name FROM pg_catalog.pg_proc GROUP BY proname
  HAVING pg_catalog.max(oid) OPERATOR(pg_catalog.>=) '16384' AND pg_catalog.bool_and(provolatile OPERATOR(pg_catalog.<>) 'v')) AS known
 UNION ALL SELECT 'x', NULL, NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_operator, pg_catalog.pg_proc
  WHERE oprcode OPERATOR(pg_catalog.=) pg_proc.oid AND provolatile OPERATOR(pg_catalog.=) 'v' AND pg_operator.oid OPERATOR(pg_catalog.>=) '16384')
 OR EXISTS (SELECT FROM pg_catalog.pg_cast, pg_catalog.pg_proc WHERE castfunc OPERATOR(pg_catalog.=) pg_proc.oid
  AND provolatile OPERATOR(pg_catalog.=) 'v' AND castcontext OPERATOR(pg_catalog.=) 'i')

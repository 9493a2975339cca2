SELECT 'r', CASE WHEN pg_catalog.count(*) <= 20000 AND COALESCE(pg_catalog.sum(pg_catalog.length(known.name)), 0) <= 200000
  THEN COALESCE(pg_catalog.string_agg(known.name, pg_catalog.chr(10)), '') END, NULL
FROM (SELECT proname::pg_catalog.text AS name FROM pg_catalog.pg_proc GROUP BY proname
  HAVING pg_catalog.max(oid) >= '16384' AND pg_catalog.bool_and(provolatile <> 'v')) AS known

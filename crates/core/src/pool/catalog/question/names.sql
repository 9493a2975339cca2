SELECT '$kind', CASE WHEN pg_catalog.count(*) <= 20000 AND COALESCE(pg_catalog.sum(pg_catalog.length(name)), 0) <= 200000
    AND NOT EXISTS (SELECT FROM reached WHERE class = '0' AND object = '0' AND mark = ANY ('{$marks}'::pg_catalog.text[]))
  THEN COALESCE(pg_catalog.string_agg(name, pg_catalog.chr(10)), '') END, NULL
FROM (SELECT DISTINCT name FROM named, reached WHERE named.class = reached.class AND named.object = reached.object AND mark = ANY ('{$marks}'::pg_catalog.text[])) AS found

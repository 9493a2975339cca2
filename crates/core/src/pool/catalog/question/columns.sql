SELECT 'c', pg_catalog.sum(pg_catalog.hashtext(pg_catalog.concat_ws(' ', attrelid, attnum, atttypid, atttypmod)))::pg_catalog.text, NULL
FROM pg_catalog.pg_attribute, pg_catalog.pg_class WHERE attrelid = pg_class.oid AND attrelid >= '16384' AND attnum > '0'
AND relpersistence <> 't' AND relkind = ANY ('{r,p,v,m,f}'::pg_catalog."char"[])

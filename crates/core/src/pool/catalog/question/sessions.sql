SELECT 'z', NULL, NULL FROM few WHERE NOT are
UNION ALL SELECT 'o', pg_catalog.concat(named.class, '.', named.object), name FROM few, doing, named WHERE are AND named.class = doing.class AND named.object = doing.object
UNION ALL SELECT 'd', pg_catalog.concat(link.class, '.', link.object), pg_catalog.string_agg(DISTINCT pg_catalog.concat(kind, used_class, '.', used_object), ' ')
  FROM few, link, doing, doing AS used WHERE are AND link.class = doing.class AND link.object = doing.object
  AND used_class = used.class AND used_object = used.object GROUP BY link.class, link.object
UNION ALL SELECT CASE WHEN changes OR kind = 'e' THEN 'g' ELSE 'e' END, pg_catalog.concat(class, '.', object),
  CASE WHEN pg_catalog.sum(pg_catalog.octet_length(body)) OVER (ORDER BY pg_catalog.octet_length(body), class, object) < '500000' THEN body END
  FROM own, few WHERE are AND (kind = 'e' OR changes OR runs)
UNION ALL SELECT 'l', pg_catalog.concat(class, '.', object), NULL FROM own, few WHERE are AND unseen
UNION ALL SELECT 'g', pg_catalog.concat('1255.', oid), '' FROM built_in, few WHERE are AND does = 'x' AND EXISTS (SELECT FROM link WHERE used_class = '1255' AND used_object = oid)
UNION ALL SELECT DISTINCT 'f', name, NULL FROM named, reached WHERE named.class = reached.class AND named.object = reached.object AND mark = 'a'

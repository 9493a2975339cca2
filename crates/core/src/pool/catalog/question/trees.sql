-- Expressions of users beside routines, with their trees.
tree AS MATERIALIZED (
  SELECT '2618'::pg_catalog.oid AS class, oid AS object, pg_catalog.concat(ev_action::pg_catalog.text, ev_qual::pg_catalog.text) AS code FROM pg_catalog.pg_rewrite WHERE ev_class >= '16384'
  UNION ALL SELECT '3256', oid, pg_catalog.concat(polqual::pg_catalog.text, polwithcheck::pg_catalog.text) FROM pg_catalog.pg_policy
  UNION ALL SELECT '2604', oid, adbin::pg_catalog.text FROM pg_catalog.pg_attrdef WHERE adrelid >= '16384'
  UNION ALL SELECT '2606', oid, conbin::pg_catalog.text FROM pg_catalog.pg_constraint WHERE conbin IS NOT NULL AND oid >= '16384'
  UNION ALL SELECT '2620', oid, tgqual::pg_catalog.text FROM pg_catalog.pg_trigger WHERE tgqual IS NOT NULL
  UNION ALL SELECT '1259', indexrelid, pg_catalog.concat(indexprs::pg_catalog.text, indpred::pg_catalog.text) FROM pg_catalog.pg_index WHERE indexrelid >= '16384' AND COALESCE(indexprs, indpred) IS NOT NULL
  UNION ALL SELECT '1259', partrelid, partexprs::pg_catalog.text FROM pg_catalog.pg_partitioned_table WHERE partexprs IS NOT NULL
  UNION ALL SELECT '1247', oid, typdefaultbin::pg_catalog.text FROM pg_catalog.pg_type WHERE typdefaultbin IS NOT NULL AND oid >= '16384'
  UNION ALL SELECT '1255', oid, pg_catalog.concat(proargdefaults::pg_catalog.text, CASE WHEN prosrc = '' THEN pg_catalog.to_jsonb(pg_proc) ->> 'prosqlbody' END)
    FROM pg_catalog.pg_proc WHERE oid >= '16384' AND (proargdefaults IS NOT NULL OR prosrc = '')),
-- Those that name functions that do something, spelled out.
spelled AS MATERIALIZED (
  SELECT class, object, pg_catalog.lower(CASE WHEN class = '2618' THEN pg_catalog.pg_get_ruledef(object) WHEN class = '2606' THEN pg_catalog.pg_get_constraintdef(object)
    WHEN class = '2620' THEN pg_catalog.pg_get_triggerdef(object) WHEN class = '1255' THEN pg_catalog.pg_get_function_arguments(object)
    WHEN class = '3256' THEN (SELECT pg_catalog.concat(pg_catalog.pg_get_expr(polqual, polrelid), ' ', pg_catalog.pg_get_expr(polwithcheck, polrelid)) FROM pg_catalog.pg_policy WHERE oid = object)
    WHEN class = '2604' THEN (SELECT pg_catalog.pg_get_expr(adbin, adrelid) FROM pg_catalog.pg_attrdef WHERE oid = object)
    WHEN class = '1247' THEN (SELECT pg_catalog.pg_get_expr(typdefaultbin, '0') FROM pg_catalog.pg_type WHERE oid = object)
    ELSE COALESCE((SELECT pg_catalog.concat(pg_catalog.pg_get_expr(indexprs, indrelid), ' ', pg_catalog.pg_get_expr(indpred, indrelid)) FROM pg_catalog.pg_index WHERE indexrelid = object),
      pg_catalog.pg_get_partkeydef(object)) END) AS body
  FROM tree, call WHERE code ~ of_sessions),
-- What routines and expressions do by their words.
own AS (
  SELECT class, object, volatile, kind, body, kind = 'b' AND body ~ pg_catalog.replace('$changes', '@', pg_catalog.chr(10)) AS changes, kind = 'b' AND body ~ '$runs' AS runs,
    kind = 'b' AND body ~ '$composes' AS composes, kind = 'b' AND body ~ '(currval|lastval)' AS asks, kind = 'b' AND body ~ '$unseen' AS unseen
  FROM (SELECT '1255'::pg_catalog.oid AS class, oid AS object, volatile, kind, body FROM routine
    UNION ALL SELECT class, object, false, 'b', body FROM spelled WHERE body IS NOT NULL) AS said),
base AS (
  SELECT class, object, 'x' AS mark FROM own WHERE kind = 'e' OR changes OR runs OR unseen
  UNION SELECT class, object, 'a' FROM own WHERE asks
  UNION SELECT class, object, 'w' FROM own WHERE kind = 'e' OR NOT volatile AND body ~ '$waits'
  UNION SELECT class, object, 'p' FROM own WHERE kind = 'e' OR NOT volatile AND body ~ '$shows'
  UNION SELECT '1255', oid, 'v' FROM pg_catalog.pg_proc WHERE oid >= '16384' AND provolatile = 'v' AND prorettype <> ALL ('{2279,3838}'::pg_catalog.oid[])
  UNION SELECT '1255', oid, does FROM built_in
  UNION SELECT '1255', oid, 'w' FROM built_in WHERE does = ANY ('{x,a}'::pg_catalog.text[])
  UNION SELECT '1255', oid, 'p' FROM built_in WHERE proname ~ '$primary'
  UNION SELECT '1259', oid, 'v' FROM pg_catalog.pg_class WHERE relkind = 'f'
  UNION SELECT '1259', oid, 'p' FROM pg_catalog.pg_class WHERE oid >= '16384' AND (relkind = 'S' OR relpersistence = 'u')
  UNION SELECT class, object, 'w' FROM tree, call WHERE class <> '2604' AND code ~ of_writers
  UNION SELECT class, object, 'p' FROM tree, call WHERE class <> '2604' AND code ~ of_primaries),

-- What uses what. A mark passes: 'r' as it is; 'b' from what a body names to its routine, where a promise (STABLE) counts more than another one;
-- 'w' only what rows that change run; 'k' only what rows that are looked up run, when other rows change.
edge AS (
  SELECT classid AS class, objid AS object, refclassid AS used_class, refobjid AS used_object,
    CASE WHEN classid = '1255' AND refclassid <> '1247' AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pg_proc.oid = objid AND pronargdefaults > 0) THEN 'b' ELSE 'r' END AS kind
    FROM pg_catalog.pg_depend WHERE objid >= '16384' AND refobjid >= '16384' AND deptype <> ALL ('{e,x}'::pg_catalog."char"[])
    AND classid = ANY ('{1247,1255,1259,2601,2604,2605,2606,2607,2612,2616,2617,2618,2620,2753,3256,3381,3456,3466,3576,3600,3601,3602,3764,1417,2328}'::pg_catalog.oid[])
    AND NOT (refclassid = '1259' AND classid = ANY ('{1259,2606}'::pg_catalog.oid[])) AND NOT (classid = '2620' AND refclassid = '2606')
  UNION ALL SELECT '1259', ev_class, '2618', pg_rewrite.oid, CASE WHEN ev_type = '1' AND relkind = 'v' THEN 'r' ELSE 'w' END
    FROM pg_catalog.pg_rewrite, pg_catalog.pg_class WHERE ev_class = pg_class.oid AND ev_class >= '16384'
  UNION ALL SELECT '1259', polrelid, '3256', oid, CASE WHEN polcmd = ANY ('{*,r}'::pg_catalog."char"[]) THEN 'r' ELSE 'w' END FROM pg_catalog.pg_policy
  UNION ALL SELECT '1259', adrelid, '2604', pg_attrdef.oid, CASE WHEN attgenerated = 'v' THEN 'r' ELSE 'w' END
    FROM pg_catalog.pg_attrdef, pg_catalog.pg_attribute WHERE attrelid = adrelid AND attnum = adnum AND adrelid >= '16384'
  UNION ALL SELECT '1259', conrelid, '2606', oid, 'w' FROM pg_catalog.pg_constraint WHERE conrelid >= '16384'
  UNION ALL SELECT '1259', conrelid, '1259', confrelid, 'k' FROM pg_catalog.pg_constraint WHERE contype = 'f'
  UNION ALL SELECT '1259', confrelid, '1259', conrelid, CASE WHEN pg_catalog.concat(confdeltype, confupdtype) ~ '[cnd]' THEN 'w' ELSE 'k' END FROM pg_catalog.pg_constraint WHERE contype = 'f'
  UNION ALL SELECT '1247', contypid, '2606', oid, 'r' FROM pg_catalog.pg_constraint WHERE contypid >= '16384'
  UNION ALL SELECT '1259', tgrelid, '2620', oid, 'w' FROM pg_catalog.pg_trigger WHERE tgrelid >= '16384'
  UNION ALL SELECT '2620', oid, '1255', tgfoid, 'r' FROM pg_catalog.pg_trigger WHERE tgrelid >= '16384'
  UNION ALL SELECT '1259', indrelid, '1259', indexrelid, 'r' FROM pg_catalog.pg_index WHERE indrelid >= '16384'
  UNION ALL SELECT '1259', inhparent, '1259', inhrelid, 'r' FROM pg_catalog.pg_inherits
  UNION ALL SELECT '1255', aggfnoid, '1255', step, 'r' FROM pg_catalog.pg_aggregate, LATERAL pg_catalog.unnest(
    ARRAY[aggtransfn, aggfinalfn, aggcombinefn, aggserialfn, aggdeserialfn, aggmtransfn, aggminvtransfn, aggmfinalfn]::pg_catalog.oid[]) AS step WHERE aggfnoid >= '16384' AND step <> '0'
  UNION ALL SELECT '2617', pg_operator.oid, '1255', code, 'r' FROM pg_catalog.pg_operator, LATERAL pg_catalog.unnest(ARRAY[oprcode, oprrest, oprjoin]::pg_catalog.oid[]) AS code
    WHERE pg_operator.oid >= '16384' AND code <> '0'
  UNION ALL SELECT '2605', oid, '1255', castfunc, 'r' FROM pg_catalog.pg_cast WHERE castfunc <> '0' AND oid >= '16384'
  UNION ALL SELECT '1247', side, '2617', oid, 'r' FROM pg_catalog.pg_operator, LATERAL pg_catalog.unnest(ARRAY[oprleft, oprright]) AS side WHERE side >= '16384'
  UNION ALL SELECT '1247', side, '2605', oid, 'r' FROM pg_catalog.pg_cast, LATERAL pg_catalog.unnest(ARRAY[castsource, casttarget]) AS side WHERE side >= '16384'
  UNION ALL SELECT '1247', opcintype, '2616', oid, 'r' FROM pg_catalog.pg_opclass WHERE opcintype >= '16384'
  UNION ALL SELECT '2616', oid, '2753', opcfamily, 'r' FROM pg_catalog.pg_opclass WHERE oid >= '16384'
  UNION ALL SELECT '2753', amprocfamily, '1255', amproc, 'r' FROM pg_catalog.pg_amproc WHERE oid >= '16384'
  UNION ALL SELECT '2753', amopfamily, '2617', amopopr, 'r' FROM pg_catalog.pg_amop WHERE oid >= '16384'
-- Code that runs without being named (0): in casts and operators between types of PostgreSQL, and between encodings.
  UNION ALL SELECT '0', '0', '2605', oid, 'r' FROM pg_catalog.pg_cast WHERE oid >= '16384' AND castsource < '16384' AND (castcontext = 'i' OR casttarget < '16384')
  UNION ALL SELECT '0', '0', '2617', oid, 'r' FROM pg_catalog.pg_operator WHERE oid >= '16384' AND oprleft < '16384' AND oprright < '16384'
    AND oprname = ANY ('{=,<>,<,<=,>,>=,~~,~~*,!~~,!~~*,~,!~}'::pg_catalog.name[])
  UNION ALL SELECT '0', '0', '2607', oid, 'r' FROM pg_catalog.pg_conversion WHERE oid >= '16384' AND condefault
-- Words that run what they do not name: of maintenance (1), TRUNCATE (2), and commands that event triggers follow (3).
  UNION ALL SELECT '0', '1', '1259', indexrelid, 'r' FROM pg_catalog.pg_index WHERE indexrelid >= '16384' AND COALESCE(indexprs, indpred) IS NOT NULL
  UNION ALL SELECT '0', '2', '2620', oid, 'r' FROM pg_catalog.pg_trigger WHERE tgrelid >= '16384' AND tgtype::pg_catalog.int4 & 32 <> 0
  UNION ALL SELECT '0', '3', '1255', evtfoid, 'r' FROM pg_catalog.pg_event_trigger WHERE evtevent <> 'login'
-- SQL that a body puts together after its first word may name any of the objects that change a session (4).
  UNION ALL SELECT '1255', object, '0', '4', 'b' FROM own WHERE composes
  UNION ALL SELECT '0', '4', class, object, 'r' FROM base WHERE mark = 'x' AND object >= '16384'),
named AS (
  SELECT '1255'::pg_catalog.oid AS class, oid AS object, proname::pg_catalog.text AS name FROM pg_catalog.pg_proc WHERE oid >= '16384'
  UNION ALL SELECT '1259', oid, relname::pg_catalog.text FROM pg_catalog.pg_class WHERE oid >= '16384' AND relkind <> 't'
  UNION ALL SELECT '1247', oid, typname::pg_catalog.text FROM pg_catalog.pg_type WHERE oid >= '16384'
  UNION ALL SELECT '2616', oid, opcname::pg_catalog.text FROM pg_catalog.pg_opclass WHERE oid >= '16384'
  UNION ALL SELECT '3602', oid, cfgname::pg_catalog.text FROM pg_catalog.pg_ts_config WHERE oid >= '16384'
  UNION ALL SELECT '3600', oid, dictname::pg_catalog.text FROM pg_catalog.pg_ts_dict WHERE oid >= '16384'
-- Operators with a type of users are reached by that type.
  UNION ALL SELECT '2617', oid, sign FROM pg_catalog.pg_operator, LATERAL (VALUES (oprname::pg_catalog.text), ('!=')) AS spelled(sign)
    WHERE oid >= '16384' AND oprleft < '16384' AND oprright < '16384' AND (sign = oprname OR oprname = '<>')
  UNION ALL SELECT '0', number::pg_catalog.oid, text FROM (VALUES ('1', 'analyze'), ('1', 'cluster'), ('1', 'reindex'), ('1', 'vacuum'), ('2', 'truncate'), ('3', 'alter'), ('3', 'comment'),
    ('3', 'create'), ('3', 'drop'), ('3', 'grant'), ('3', 'import'), ('3', 'label'), ('3', 'refresh'), ('3', 'reindex'), ('3', 'revoke')) AS word(number, text)),
-- Names in bodies. Those of volatile routines are looked at only if there is code at all that changes sessions.
body AS MATERIALIZED (
  SELECT object, body AS text FROM own WHERE class = '1255' AND kind = 'b' AND body <> ''
  AND (NOT volatile OR EXISTS (SELECT FROM base WHERE mark = ANY ('{x,a}'::pg_catalog.text[]) AND object >= '16384')
    OR EXISTS (SELECT FROM edge, built_in WHERE used_class = '1255' AND used_object = built_in.oid AND does = ANY ('{x,a}'::pg_catalog.text[])))),
word AS (SELECT DISTINCT object, word FROM body, LATERAL pg_catalog.regexp_split_to_table(text, '[^[:alnum:]_$]+') AS word
  WHERE word = ANY (SELECT pg_catalog.lower(name) FROM named)),
odd AS MATERIALIZED (
  SELECT class, object, pg_catalog.lower(name) AS name FROM named WHERE name ~ '[^a-zA-Z0-9_$]'
  AND NOT EXISTS (SELECT FROM trusted WHERE trusted.class = named.class AND trusted.object = named.object)),
link AS (
  SELECT class, object, used_class, used_object, kind FROM edge
  UNION ALL SELECT '1255', word.object, named.class, named.object, 'b' FROM word, named WHERE word = pg_catalog.lower(name)
  UNION ALL SELECT '1255', body.object, odd.class, odd.object, 'b' FROM body, odd WHERE pg_catalog.strpos(text, name) > 0),
reached AS (
  SELECT class, object, mark FROM base
  UNION SELECT link.class, link.object,
    CASE WHEN mark = 'x' AND kind = ANY ('{w,k}'::pg_catalog.text[]) THEN 'y' WHEN mark = 'y' AND kind = 'b' THEN 'x' ELSE mark END
  FROM link, reached WHERE used_class = reached.class AND used_object = reached.object
    AND CASE WHEN kind = 'r' THEN true WHEN kind = 'b' THEN mark <> 'v' WHEN kind = 'w' THEN mark = ANY ('{x,y}'::pg_catalog.text[]) ELSE mark = 'x' END),
doing AS (SELECT DISTINCT class, object FROM reached WHERE mark = ANY ('{x,y}'::pg_catalog.text[])),
few AS (SELECT pg_catalog.count(*) <= 20000 AS are FROM doing)

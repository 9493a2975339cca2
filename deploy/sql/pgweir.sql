-- pgweir in SQL: views of the console's tables, and functions for its commands.
--
--   psql -d postgres -v host=10.0.0.1 -v port=6432 -v user=admin -f pgweir.sql
--
-- As a superuser, in one database. It asks for the password of the console's user unless PGWEIR_PASSWORD or -v password=... has it.
-- That user must be in admin_users; in stats_users it suffices for the views. The password is kept in a user mapping, which only the owner
-- and superusers can read. Run it again after an upgrade of pgweir: it replaces everything, and grants must be given again.
--
--   SELECT node, role, state, lag_ms FROM pgweir.nodes;
--   SELECT pgweir.drain_node('main.m2');
--
-- To remove it: DROP SCHEMA pgweir CASCADE; DROP SERVER pgweir CASCADE;

\set ON_ERROR_STOP on
\if :{?host}
\else
    \set host 127.0.0.1
\endif
\if :{?port}
\else
    \set port 6432
\endif
\if :{?user}
\else
    \set user admin
\endif
\if :{?password}
\else
    \set password `printenv PGWEIR_PASSWORD`
    SELECT :'password' = '' AS is_missing \gset
    \if :is_missing
        \prompt 'Password of the console user: ' password
    \endif
\endif

BEGIN;
SET LOCAL client_min_messages = warning;
DROP SCHEMA IF EXISTS pgweir CASCADE;
DROP SERVER IF EXISTS pgweir CASCADE;
CREATE EXTENSION IF NOT EXISTS dblink;
CREATE SCHEMA pgweir;

CREATE SERVER pgweir FOREIGN DATA WRAPPER dblink_fdw
    OPTIONS (host :'host', port :'port', dbname 'pgbouncer', connect_timeout '5');
CREATE USER MAPPING FOR CURRENT_USER SERVER pgweir OPTIONS ("user" :'user', password :'password');

-- A view for each table. A function stands behind it, because the console is entered with the rights of its owner.
DO $do$
DECLARE
    dblink text := (
        SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'dblink'
    );
    one record;
BEGIN
    FOR one IN SELECT * FROM (VALUES
        ('clusters', 'CLUSTERS', '"cluster" text, "primary" text, "epoch" bigint, "timeline" bigint, "state" text, "held_clients" bigint, "held_since" text,
            "reason" text, "discovery" text, "source" text, "source_age_ms" bigint, "source_error" text, "switchover" text, "switchover_error"
            text, "fell_back_no_standby" bigint, "fell_back_lag" bigint, "fell_back_behind" bigint, "resolving" bigint, "outcomes_committed"
            bigint, "outcomes_rolled_back" bigint, "outcomes_unknown" bigint'),
        ('nodes', 'NODES', '"cluster" text, "node" text, "host" text, "port" bigint, "zone" text, "role" text, "state" text, "state_since" text, "switch"
            text, "weight" bigint, "share" bigint, "timeline" bigint, "position" text, "lag_bytes" bigint, "lag_ms" bigint, "sv_active"
            bigint, "sv_idle" bigint, "cl_waiting" bigint, "reads" bigint, "guards" bigint, "guard_misses" bigint, "second_tries" bigint,
            "misrouted" bigint, "last_check" text, "last_error" text'),
        ('pools', 'POOLS', '"database" text, "user" text, "cl_active" bigint, "cl_waiting" bigint, "cl_active_cancel_req" bigint, "cl_waiting_cancel_req"
            bigint, "sv_active" bigint, "sv_active_cancel" bigint, "sv_being_canceled" bigint, "sv_idle" bigint, "sv_used" bigint, "sv_tested"
            bigint, "sv_login" bigint, "maxwait" bigint, "maxwait_us" bigint, "pool_mode" text, "load_balance_hosts" text'),
        ('clients', 'CLIENTS', '"type" text, "user" text, "database" text, "replication" text, "state" text, "addr" text, "port" bigint, "local_addr" text,
            "local_port" bigint, "connect_time" text, "request_time" text, "wait" bigint, "wait_us" bigint, "close_needed" bigint, "ptr" text,
            "link" text, "remote_pid" bigint, "tls" text, "application_name" text, "prepared_statements" bigint, "id" bigint'),
        ('servers', 'SERVERS', '"type" text, "user" text, "database" text, "replication" text, "state" text, "addr" text, "port" bigint, "local_addr" text,
            "local_port" bigint, "connect_time" text, "request_time" text, "wait" bigint, "wait_us" bigint, "close_needed" bigint, "ptr" text,
            "link" text, "remote_pid" bigint, "tls" text, "application_name" text, "prepared_statements" bigint, "id" bigint'),
        ('databases', 'DATABASES', '"name" text, "host" text, "port" bigint, "database" text, "force_user" text, "pool_size" bigint, "min_pool_size" bigint,
            "reserve_pool_size" bigint, "server_lifetime" bigint, "pool_mode" text, "load_balance_hosts" text, "max_connections" bigint,
            "current_connections" bigint, "max_client_connections" bigint, "current_client_connections" bigint, "paused" bigint, "disabled"
            bigint'),
        ('users', 'USERS', '"name" text, "pool_size" text, "reserve_pool_size" text, "pool_mode" text, "max_user_connections" bigint, "current_connections"
            bigint, "max_user_client_connections" bigint, "current_client_connections" bigint'),
        ('statements', 'STATEMENTS', '"database" text, "user" text, "calls" numeric, "total_us" numeric, "mean_us" numeric, "p50_us" numeric, "p95_us" numeric, "p99_us"
            numeric, "max_us" numeric, "wait_us" numeric, "server_us" numeric, "client_us" numeric, "rows" numeric, "bytes" numeric, "errors"
            numeric, "query" text, "cache" text, "cache_hits" numeric, "cache_saved_us" numeric'),
        ('percentiles', 'PERCENTILES', '"database" text, "user" text, "part" text, "count" numeric, "mean_us" numeric, "p50_us" numeric, "p90_us" numeric, "p95_us"
            numeric, "p99_us" numeric, "max_us" numeric'),
        ('totals', 'TOTALS', '"name" text, "value" numeric'),
        ('config', 'CONFIG', '"key" text, "value" text, "default" text, "changeable" text')
    ) AS tables (name, topic, columns) LOOP
        EXECUTE format(
            'CREATE FUNCTION pgweir.show_%s() RETURNS TABLE (%s) LANGUAGE sql VOLATILE SECURITY DEFINER'
            ' SET search_path = pg_catalog, pg_temp AS %L',
            one.name, one.columns, format('SELECT * FROM %s.dblink(''pgweir'', ''SHOW %s'') AS shown (%s)', dblink, one.topic, one.columns)
        );
        EXECUTE format('CREATE VIEW pgweir.%I AS SELECT * FROM pgweir.show_%s()', one.name, one.name);
    END LOOP;
    EXECUTE format(
        'CREATE FUNCTION pgweir.run(command text) RETURNS text LANGUAGE sql VOLATILE STRICT SECURITY DEFINER'
        ' SET search_path = pg_catalog, pg_temp AS %L',
        format('SELECT %s.dblink_exec(''pgweir'', command)', dblink)
    );
END
$do$;

COMMENT ON FUNCTION pgweir.run(text) IS 'sends a command to the console, and returns what was done';

-- A name as the console reads it.
CREATE FUNCTION pgweir.quoted(name text) RETURNS text LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
    AS $$ SELECT '"' || replace(name, '"', '""') || '"' $$;

-- Commands. They run with the rights of the owner, so that EXECUTE on one of them does not open the others.
CREATE FUNCTION pgweir.attach_node(node text) RETURNS text LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('ATTACH NODE ' || pgweir.quoted(node)) $$;
CREATE FUNCTION pgweir.drain_node(node text) RETURNS text LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('DRAIN NODE ' || pgweir.quoted(node)) $$;
CREATE FUNCTION pgweir.detach_node(node text) RETURNS text LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('DETACH NODE ' || pgweir.quoted(node)) $$;
CREATE FUNCTION pgweir.switchover(cluster text, node text, force boolean DEFAULT false) RETURNS text
    LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('SWITCHOVER ' || pgweir.quoted(cluster) || ' TO ' || pgweir.quoted(node) || CASE WHEN force THEN ' FORCE' ELSE '' END) $$;
CREATE FUNCTION pgweir.pause(database text DEFAULT '') RETURNS text LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('PAUSE' || CASE database WHEN '' THEN '' ELSE ' ' || pgweir.quoted(database) END) $$;
CREATE FUNCTION pgweir.resume(database text DEFAULT '') RETURNS text LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('RESUME' || CASE database WHEN '' THEN '' ELSE ' ' || pgweir.quoted(database) END) $$;
CREATE FUNCTION pgweir.reload() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('RELOAD') $$;
CREATE FUNCTION pgweir.kill_client(id bigint) RETURNS text LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT pgweir.run('KILL_CLIENT ' || id) $$;

-- Members of pg_monitor may look. To let a role do something: GRANT EXECUTE ON FUNCTION pgweir.drain_node(text) TO operator;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgweir FROM PUBLIC;
GRANT USAGE ON SCHEMA pgweir TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA pgweir TO pg_monitor;
DO $do$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT proname FROM pg_proc WHERE pronamespace = 'pgweir'::regnamespace AND proname LIKE 'show\_%' LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION pgweir.%I() TO pg_monitor', name);
    END LOOP;
END
$do$;
COMMIT;

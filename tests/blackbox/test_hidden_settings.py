"""Settings of clients, roles and databases against pgweir's own questions: none of them changes what a question answers, how much of
the server's time it takes, or that no client sees it."""

import os
import re

import pytest

from harness.pooler import kind
from harness.wire import Closed

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer asks no such questions")

TICKS_S = os.sysconf("SC_CLK_TCK")

SCANS = ["enable_seqscan", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"]
JOINS = ["enable_nestloop", "enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_sort", "enable_material"]

HOSTILE = {
    "scans": dict.fromkeys(SCANS, "off"),
    "joins": dict.fromkeys(JOINS, "off"),
    "scans and joins": dict.fromkeys(SCANS + JOINS, "off"),
    "jit of everything": {"jit": "on", "jit_above_cost": "0", "jit_inline_above_cost": "0", "jit_optimize_above_cost": "0"},
    "costs": {"seq_page_cost": "1e9", "random_page_cost": "1e9", "cpu_tuple_cost": "1e6", "cpu_operator_cost": "1e6"},
    "memory": {"work_mem": "64kB", "hash_mem_multiplier": "1", "maintenance_work_mem": "1MB"},
    "planner": {"join_collapse_limit": "1", "from_collapse_limit": "1", "geqo_threshold": "2", "plan_cache_mode": "force_generic_plan"},
    "parallel": {"max_parallel_workers_per_gather": "8", "parallel_setup_cost": "0", "parallel_tuple_cost": "0", "min_parallel_table_scan_size": "0"},
    "messages": {"client_min_messages": "debug5", "debug_print_parse": "on", "debug_print_plan": "on"},
    "formats": {
        "bytea_output": "escape",
        "datestyle": "German",
        "intervalstyle": "sql_standard",
        "extra_float_digits": "-15",
        "quote_all_identifiers": "on",
        "xmlbinary": "hex",
    },
    "strings": {"standard_conforming_strings": "off", "backslash_quote": "off", "escape_string_warning": "off", "array_nulls": "off"},
    "operators": {"transform_null_equals": "on", "row_security": "off", "constraint_exclusion": "on"},
    "transactions": {"default_transaction_isolation": "serializable", "default_transaction_read_only": "on"},
    "timeouts": {"statement_timeout": "50ms", "lock_timeout": "1ms", "idle_in_transaction_session_timeout": "1ms"},
    "defaults": {"default_tablespace": "''", "temp_tablespaces": "''", "default_table_access_method": "heap", "default_toast_compression": "pglz"},
    "encoding": {"client_encoding": "LATIN1"},
}


def cpu_s(pg):
    """The processor time of the clients' backends that exist."""
    spent = 0
    for pid, *_ in pg.backends("app"):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        spent += int(fields[11]) + int(fields[12])
    return spent / TICKS_S


def say(session, text):
    """A statement, and its answer; what pgweir asks meanwhile says nothing."""
    answer = session.query(text)
    assert not [notice for notice in answer.notices if "pg_catalog" in notice or "source" in notice], answer.notices
    return answer


def exercise(session, other):
    """Each kind of question that pgweir asks of a session, with another client that takes the only server in between."""
    for round in range(4):
        say(session, f"set app.round = '{round}'")
        assert other.value("select 1") == "1"
        say(session, f"select set_config('app.other', '{round}', false)")
        assert other.value("select 2") == "2"
        say(session, f"prepare p{round} as select 1")
        assert other.value("select 3") == "3"
        say(session, f"deallocate p{round}")
        assert say(session, "show app.round").rows == [[str(round)]]
        assert other.value("select coalesce(current_setting('app.round', true), '')") == ""


def complaints(pooler):
    return re.findall(r".*(?:does not tell|not answered in time|could not be|not what it should be|keeps its server).*", pooler.log())


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("how", ["client", "role", "database"])
def test_what_pgweir_asks_does_not_depend_on(pooled, pg, name, how):
    """The session stays the client's own, the other client is served, and PostgreSQL works for no second."""
    settings = HOSTILE[name]
    sets = [f"{setting} = {value if value.startswith(chr(39)) else repr(value)}" for setting, value in settings.items()]
    place = {"role": "role carol", "database": "database app"}.get(how)
    if how == "database" and "client_encoding" in settings:
        pytest.skip("the settings of a database are those of the tests' own connections, too")
    try:
        for text in sets if place else []:
            pg.sql(f"alter {place} set {text}", database="postgres")
        pooler = pooled(default_pool_size=1, session_audit_sample=1, query_wait_timeout=15)
        with pooler.raw(user="carol") as session, pooler.raw(user="carol") as other:
            for text in sets if how == "client" else []:
                assert not say(session, f"set {text}").errors
            shown = {setting: say(session, f"show {setting}").rows for setting in settings}
            begin_s = cpu_s(pg)
            exercise(session, other)
            spent_s = cpu_s(pg) - begin_s
            assert {setting: say(session, f"show {setting}").rows for setting in settings} == shown
        assert not complaints(pooler)
        # With these the client's own statements are compiled by JIT, too.
        compiles = name in ("jit of everything", "costs")
        assert spent_s < (5 if compiles else 1.5)
    finally:
        for setting in settings if place else []:
            pg.sql(f"alter {place} reset {setting}", database="postgres")


def test_a_deferrable_serializable_default_makes_nothing_wait(pooled, pg):
    """Such a transaction waits until no other one can disturb it: here one that does not end.

    There is no LISTEN here: PostgreSQL itself begins such a transaction to read notifications, and waits, also without a pooler."""
    pooler = pooled(default_pool_size=1, session_audit_sample=1, query_wait_timeout=15)
    with pg.connect("app") as writer, pooler.raw() as session, pooler.raw() as other:
        writer.execute("begin isolation level serializable")
        writer.execute("insert into scratch values (501, 1)")
        for name, value in (("isolation", "serializable"), ("read_only", "on"), ("deferrable", "on")):
            say(session, f"set default_transaction_{name} = '{value}'")
        for round in range(3):
            say(session, f"set app.round = '{round}'")
            assert other.value("select 1") == "1"
        assert say(session, "show app.round").rows == [["2"]]
        writer.execute("rollback")
    assert not complaints(pooler)


SHADOWS = """
create schema shadow;
create function shadow.boom() returns bool language plpgsql as 'begin raise exception ''a shadow was used''; end';
do $$
declare
    kind text; op text; relation text; routine text;
begin
    foreach kind in array array['text', 'name', 'oid', 'int4', 'int8', '"char"', 'bool', 'text[]'] loop
        execute format('create function shadow.compare(pg_catalog.%s, pg_catalog.%s) returns bool language plpgsql as ''begin return shadow.boom(); end''', kind, kind);
        foreach op in array array['=', '<>', '<', '>', '<=', '>=', '~', '!~', '~*', '||', '+', '-', '*'] loop
            execute format('create operator shadow.%s (leftarg = pg_catalog.%s, rightarg = pg_catalog.%s, function = shadow.compare)', op, kind, kind);
        end loop;
    end loop;
    foreach relation in array array['pg_settings', 'pg_prepared_statements', 'pg_cursors', 'pg_depend', 'pg_locks', 'pg_replication_slots',
        'pg_db_role_setting', 'pg_database', 'pg_roles', 'pg_proc', 'pg_class', 'pg_trigger', 'pg_type', 'pg_operator', 'pg_cast'] loop
        execute format('create view shadow.%I as select shadow.boom() as name', relation);
    end loop;
    foreach routine in array array['current_setting(pg_catalog.text)', 'current_setting(pg_catalog.text, pg_catalog.bool)',
        'set_config(pg_catalog.text, pg_catalog.text, pg_catalog.bool)', 'lower(pg_catalog.text)', 'strpos(pg_catalog.text, pg_catalog.text)',
        'substr(pg_catalog.text, pg_catalog.int4)', 'split_part(pg_catalog.text, pg_catalog.text, pg_catalog.int4)',
        'octet_length(pg_catalog.text)', 'length(pg_catalog.text)', 'chr(pg_catalog.int4)', 'pg_backend_pid()', 'pg_my_temp_schema()',
        'current_database()', 'pg_listening_channels()', 'pg_get_functiondef(pg_catalog.oid)'] loop
        execute format('create function shadow.%s returns pg_catalog.text language plpgsql as ''begin perform shadow.boom(); return null; end''', routine);
    end loop;
end $$;
create domain shadow.text as pg_catalog.text check (shadow.boom());
create domain shadow.oid as pg_catalog.oid check (shadow.boom());
create domain shadow.int8 as pg_catalog.int8 check (shadow.boom());
grant usage on schema shadow to public;
"""


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_objects_that_shadow_those_of_postgresql_are_not_used(pooled, pg, mode):
    """`search_path` finds functions, operators, types and relations of the same names before those of pg_catalog."""
    pg.sql(SHADOWS)
    try:
        pooler = pooled(default_pool_size=1, session_audit_sample=1, query_wait_timeout=15, pool_mode=mode)
        with pooler.raw(search_path="shadow, pg_catalog", options="-c app.began=yes") as session:
            say(session, "select 1")
            for reset in ("reset all", "discard all", "reset search_path", "reset app.began"):
                for text in ("set search_path = shadow, pg_catalog", "set app.round = '1'", "prepare p as select 1", "deallocate p", reset):
                    assert not say(session, text).errors, text
                assert say(session, "show search_path").rows == [["shadow, pg_catalog"]]
                assert say(session, "show app.began").rows == [["yes"]]
        with pooler.raw() as other:
            assert other.value("select 1") == "1"
        assert "a shadow was used" not in pooler.log() and not complaints(pooler)
    finally:
        pg.sql("drop schema shadow cascade")


def test_a_role_without_rights_does_not_keep_pgweir_from_asking(pooled, pg):
    """SET ROLE to a role that may do nothing."""
    pg.sql("create role powerless; grant powerless to carol")
    try:
        pooler = pooled(default_pool_size=1, session_audit_sample=1, query_wait_timeout=15)
        with pooler.raw(user="carol") as session, pooler.raw(user="carol") as other:
            say(session, "set role powerless")
            exercise(session, other)
            assert session.value("select current_user") == "powerless"
            assert other.value("select current_user") == "carol"
        assert not complaints(pooler)
    finally:
        pg.sql("drop role powerless")


@pytest.mark.parametrize("timeout", ["statement_timeout", "transaction_timeout"])
def test_a_timeout_of_a_millisecond_harms_its_client_alone(pooled, pg18, timeout):
    """Whether or not a question was in time, another client gets no session but its own."""
    pooler = pooled(databases={"app": pg18.at("app")}, default_pool_size=2, session_audit_sample=1)
    with pooler.raw() as other:
        for _ in range(5):
            try:
                with pooler.raw() as session:
                    session.query(f"set {timeout} = 1")
                    session.query("set app.tenant = 'one'")
                    session.query("select set_config('app.tenant', 'two', false)")
            except Closed:
                pass
            assert other.value(f"show {timeout}") == "0"
            assert other.value("select coalesce(current_setting('app.tenant', true), '')") == ""

"""The sampled audit: functions that change a session where no word tells are found, and what they left reaches no other client."""

import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import kind

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not look at sessions")

SNEAKY = """
create table sneaks (a text);
grant all on sneaks to public;
create function set_what(name text, value text) returns text language plpgsql as $$
begin execute 'insert into sneaks select ' || 'set_con' || 'fig(' || quote_literal(name) || ', ' || quote_literal(value) || ', false)'; return 'done'; end $$;
create function set_both(value text) returns bool language plpgsql as $$
begin perform set_what('work_mem', value); perform set_what('sneaky.who', value); return true; end $$;
create function keep_some(value text) returns bool language plpgsql as $$
begin execute 'insert into sneaks select ' || 'pg_advi' || 'sory_lock(4711)::text'; execute 'create ' || 'te' || 'mp table if not exists hoarded (a int)'; return true; end $$;
create domain sneak as text check (set_both(value));
create domain hoards as text check (keep_some(value));
create function sneaky(value text) returns text language plpgsql as 'begin return value::sneak; end';
create function hoard() returns text language plpgsql as $$ begin return 'done'::hoards; end $$;
"""


@pytest.fixture
def functions(pg):
    """Functions of the users' own that change their session, by the constraint of a domain. No word in their bodies tells: what changes it
    is put together behind INSERT and CREATE. (session-state.md, What is not seen.)"""
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as admin:
        admin.execute(SNEAKY)
        yield
        admin.execute("drop domain sneak, hoards cascade")
        admin.execute("drop table sneaks")
        admin.execute("drop function sneaky, hoard, set_what, set_both, keep_some")


def total(pooler, column):
    return sum(int(row[column]) for row in pooler.show("pools_extended"))


def test_a_change_behind_the_scan_is_found_and_reaches_no_other_client(pooled, functions):
    """With each release looked at: the server is closed, the statement is named without its values, and counted."""
    pooler = pooled(default_pool_size=1, session_audit_sample=1)
    with pooler.raw() as one, pooler.raw() as two:
        usual = two.value("show work_mem")
        one.query("select sneaky('7777kB')")
        assert two.value("show work_mem") == usual
        pooler.logged(r"WARNING S-\S+ app/alice@\S+ has a session that is not what it should be \(setting .*work_mem.*\), changed unseen by: select sneaky\(\?\)")
        assert total(pooler, "total_session_differences") == 1
        assert "7777" not in pooler.log()
        one.query("select hoard()")
        eventually(lambda: two.value("select pg_try_advisory_lock(4711)") == "t", "the lock goes with the server")
        two.query("select pg_advisory_unlock(4711)")
        pooler.logged(r"\(temporary objects, advisory locks\), changed unseen by: select hoard\(\)")
        assert total(pooler, "total_session_differences") == 2


def test_a_statement_that_was_found_out_keeps_its_effect(pooled, functions):
    """From the second time on it is asked about: its client finds what it set, and keeps its server where it has to."""
    pooler = pooled(default_pool_size=2, session_audit_sample=1)
    with pooler.raw() as one, pooler.raw() as two:
        usual = two.value("show work_mem")
        for text in ("select sneaky('1MB')", "select hoard()"):
            one.query(text)
        eventually(lambda: total(pooler, "total_session_differences") == 2, "both are found out")
        for turn in range(1, 20):
            one.query(f"select sneaky('{turn}MB')")
            assert (one.value("show work_mem"), one.value("show sneaky.who")) == (f"{turn}MB", f"{turn}MB")
            assert two.value("show work_mem") == usual
        one.query("select hoard()")
        assert two.value("select pg_try_advisory_lock(4711)") == "f"
        assert one.value("select count(*) from hoarded") == "0"
        assert total(pooler, "total_session_differences") == 2
        assert total(pooler, "sv_pinned") == 1


def test_sampled_looks_find_nothing_where_there_is_nothing(pooled):
    """Clients of every habit, each release looked at: what they have by right is no difference."""
    pooler = pooled(default_pool_size=2, session_audit_sample=1)
    texts = [
        "select 1", "set work_mem = '8MB'", "set pgweir_test.a = 'x'", "reset work_mem", "set role bob", "reset role",
        "begin; set work_mem = '9MB'; rollback", "begin; set local work_mem = '9MB'; commit", "prepare p as select 1", "execute p",
        "deallocate p", "listen news", "notify news, 'x'", "unlisten news", "create temp table t (a int)", "drop table t",
        "declare c cursor with hold for select 1", "close c", "select pg_advisory_lock(1)", "select pg_advisory_unlock(1)",
        "set time zone 'Europe/Paris'", "set datestyle = german", "reset all", "set search_path = a, b", "set pgweir_test.a = ''",
        "discard all", "select set_config('pgweir_test.b', 'x', false)", "do $$ begin set pgweir_test.c = 'x'; end $$", "select 1/0",
        "set session characteristics as transaction read only", "reset all", "select 1",
    ]  # fmt: skip
    with pooler.raw(options="-c statement_timeout=77s") as one, pooler.raw() as two:
        for _ in range(3):
            for text in texts:
                one.query(text)
                two.value("select 2")
    assert total(pooler, "total_session_checks") > 100
    assert total(pooler, "total_session_differences") == 0, pooler.log()[-3000:]


def test_one_in_so_many_is_enough_to_find_a_leak(pooled, functions):
    """With a look now and then the difference is found, and then the statement behind it."""
    pooler = pooled(default_pool_size=2, session_audit_sample=20)
    with pooler.raw() as one, pooler.raw() as two:
        for turn in range(200):
            one.query(f"select sneaky('{turn + 64}kB')")
            two.query("select 1")
            if "changed unseen by: select sneaky(?)" in pooler.log():
                break
        pooler.logged(r"changed unseen by: select sneaky\(\?\)")

"""Functions, procedures and triggers that change their caller's session: the change stays the caller's, from the first call on."""

import pytest

from harness.pooler import kind
from harness.wire import SYNC, bind, execute, parse

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

MADE = """
create schema changing;
grant all on schema changing to public;
create function changing.set_tenant(t text) returns text language plpgsql as 'begin return set_config(''app.tenant'', t, false); end';
create function changing.log_in(t text) returns text language sql as 'select changing.set_tenant(t)';
create function changing."Of Words"(t text) returns void language plpgsql as $$ begin
  -- as the caller wants it
  execute format('set app.tenant = %L', t); end $$;
create function changing.standard(t text) returns text language sql begin atomic select set_config('app.tenant', t, false); end;
create function changing.commented(t text) returns text language sql as 'select set_config/* of the app */(''app.tenant'', t, false)';
create function changing.on_two_lines(t text) returns void language plpgsql as $$ begin
  perform set_config -- for the session
    ('app.tenant', t, false); end $$;
create function changing.take_lock() returns void language sql as 'select pg_advisory_lock(4711)';
create function changing.keep_notes() returns void language plpgsql as 'begin create temp table notes as select 1 as n; end';
create function changing.for_now(t text) returns text language plpgsql as 'begin return set_config(''app.tenant'', t, true); end';
create table changing.visits (who text);
grant all on changing.visits to public;
create function changing.note_visit() returns trigger language plpgsql as 'begin perform changing.set_tenant(new.who); return new; end';
create trigger visit before insert on changing.visits for each row execute function changing.note_visit();
"""


@pytest.fixture
def made(pg):
    """The database app with such functions in it."""
    with pg.connect("app") as connection:
        connection.execute(MADE)
        yield pg
        connection.execute("drop schema changing cascade")


def tenant(session):
    return session.query("select coalesce(current_setting('app.tenant', true), '')").rows[0][0]


WAYS = {
    "a function": "select changing.set_tenant('{}')",
    "in capitals": "SELECT CHANGING.SET_TENANT('{}')",
    "a function that calls it": "select changing.log_in('{}')",
    "a quoted name": "select changing.\"Of Words\"('{}')",
    "a body in standard SQL": "select changing.standard('{}')",
    "a trigger": "insert into changing.visits values ('{}')",
    "a comment behind a name": "select changing.commented('{}')",
    "a name at the end of its line": "select changing.on_two_lines('{}')",
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_what_it_sets_is_its_callers(pooled, made, way, workers):
    """Two clients that share one server have their own tenants, each from its first call on."""
    pooler = pooled(default_pool_size=1, workers=workers)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw() as bystander:
        for number in range(3):
            for session, name in ((one, f"one{number}"), (two, f"two{number}")):
                assert not session.query(WAYS[way].format(name)).errors
                assert tenant(bystander) == ""
            assert tenant(one) == f"one{number}" and tenant(two) == f"two{number}"
    assert "not what it should be" not in pooler.log()


@pytest.mark.parametrize("ddl", ["create table changing.other ()", "create function changing.other() returns int language sql as 'select 1'"])
def test_what_new_code_sets_is_its_callers(pooled, made, ddl):
    """Code is made twice in a row, after the catalog was asked for the settings that code sets: the second one sets another one."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("select changing.set_tenant('before')")
        for text in (ddl, "create function changing.late() returns text language sql as 'select set_config(''app.late'', ''x'', false)'"):
            assert not one.query(text).errors
        assert not one.query("select changing.late()").errors
        look = "select coalesce(current_setting('app.late', true), '')"
        assert two.query(look).rows == [[""]]
        pooler.admin("RECONNECT")
        assert one.query(look).rows == [["x"]]


@pytest.mark.parametrize("in_block", [False, True])
@pytest.mark.parametrize("body", ["perform set_config('app.' || t, 'x', false)", "execute 'set app.' || t || ' = ''x'''"])
def test_what_new_code_sets_by_names_put_together_is_its_callers(pooled, made, body, in_block):
    """pgweir cannot tell which setting it was, so the client keeps its server."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("select changing.set_tenant('before')")
        one.query("create table changing.other ()")
        makes = f"create function changing.hides(t text) returns void language plpgsql as $$ begin {body}; end $$"
        for text in ["begin"] * in_block + [makes, "select changing.hides('late')"] + ["commit"] * in_block:
            assert not one.query(text).errors
        look = "select coalesce(current_setting('app.late', true), '')"
        for _ in range(3):
            assert two.query(look).rows == [[""]]
            assert one.query(look).rows == [["x"]]


def test_prepared_statements_call_it(pooled, made):
    """Bound with the value, and executed by SQL."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw() as bystander:
        for session in (one, two):
            session.send(parse("p", "select changing.set_tenant($1)") + SYNC)
            session.until("Z")
        two.query("prepare s(text) as select changing.log_in($1)")
        for number in range(3):
            one.send(bind("", "p", [f"one{number}"]) + execute() + SYNC)
            one.until("Z")
            assert tenant(bystander) == ""
            two.query(f"execute s('two{number}')")
            assert tenant(bystander) == "" and tenant(one) == f"one{number}" and tenant(two) == f"two{number}"


def test_locks_and_temporary_tables(pooled, made):
    """State that cannot move keeps the server, as if the client had sent the statement itself."""
    pooler = pooled(default_pool_size=3)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw() as bystander:
        one.query("select changing.take_lock()")
        two.query("select changing.keep_notes()")
        assert bystander.query("select pg_try_advisory_lock(4711)").rows == [["f"]]
        assert bystander.query("select * from notes").error["C"] == "42P01"
        assert two.query("select n from notes").rows == [["1"]]
        assert one.query("select pg_advisory_unlock(4711)").rows == [["t"]]


def test_what_lasts_for_the_transaction_costs_nothing(pooled, made):
    """pgweir asks no session about a function that only sets something for its transaction."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        for number in range(3):
            assert session.query(f"select changing.for_now('{number}')").rows == [[str(number)]]
        assert tenant(session) == ""
        assert session.query("select changing.set_tenant('x')").rows == [["x"]]
    [row] = pooler.show("POOLS_EXTENDED", database="app")
    assert row["total_session_audits"] == "1"


def test_a_function_made_through_the_pooler(pooled, pg):
    """It is known when it is called for the first time."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("create function pick(t text) returns text language sql as 'select set_config(''app.tenant'', t, false)'")
        one.query("select pick('one')")
        assert tenant(two) == "" and tenant(one) == "one"
        one.query("drop function pick")


def test_every_version_says_which(poolers, pg_other):
    """The question is one that each version of PostgreSQL understands."""
    pg_other.sql("create or replace function pick(t text) returns text language sql as 'select set_config(''app.tenant'', t, false)'", database="app")
    pooler = poolers({"app": pg_other.at()}, default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("select pick('one')")
        assert tenant(two) == "" and tenant(one) == "one"
    assert "does not tell which routines" not in pooler.log()

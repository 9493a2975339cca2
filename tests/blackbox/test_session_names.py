"""Settings whose names no list of PostgreSQL shows, however they are spelled: they stay their client's, in pools that never met them."""

import itertools

import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import SYNC, bind, execute, function_call, parse, query

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

NUMBERS = itertools.count()

MADE = """
create schema naming;
grant all on schema naming to public;
create function naming.put_together(part text, value text) returns text language plpgsql as
  $$ begin return set_config('n_' || part || '.id', value, false); end $$;
create function naming.given(name text, value text) returns text language sql as 'select set_config(name, value, false)';
create function naming.dynamic(name text, value text) returns void language plpgsql as
  $$ begin execute format('set %s = %L', name, value); end $$;
create procedure naming.called(part text, value text) language plpgsql as
  $$ begin perform naming.put_together(part, value); end $$;
create function naming.runs(what text) returns void language plpgsql as $$ begin execute what; end $$;
create function naming.literal(value text) returns text language sql as 'select set_config(''naming.Literal'', $1, false)';
create function naming.calls_it(value text) returns text language sql as 'select naming.put_together(''called'', $1)';
create table naming.visits (who text);
grant all on naming.visits to public;
create function naming.visited() returns trigger language plpgsql as
  $$ begin perform set_config('n_' || new.who || '.id', 'secret of a trigger', false); return new; end $$;
create trigger visited before insert on naming.visits for each row execute function naming.visited();
"""

WAYS = {
    "quoted": ("set \"{0}.id\" = '{1}'", "{0}.id"),
    "quoted parts": ("set \"{0}\".\"Id\" = '{1}'", "{0}.id"),
    "blanks": ("set {0} . id = '{1}'", "{0}.id"),
    "a comment": ("set {0}./* of a tenant */id to '{1}'", "{0}.id"),
    "lines": ("set session -- a\n {0}\n.\nid = '{1}'", "{0}.id"),
    "code points": ("set U&\"{0}\\002e\\0069d\" = '{1}'", "{0}.id"),
    "three parts": ("set {0}.a.\"B\" = '{1}'", "{0}.a.b"),
    "a long name": ("select set_config('{0}.' || repeat('x', 200), '{1}', false)", "{0}." + "x" * 200),
    "a long word": ("set {0}." + "y" * 80 + " = '{1}'", "{0}." + "y" * 63),
    "a long literal": ("select set_config('{0}." + "z" * 200 + "', '{1}', false)", "{0}." + "z" * 200),
    "put together": ("select set_config('{0}' || '.id', '{1}', false)", "{0}.id"),
    "a column": ("select set_config(n, '{1}', false) from (values ('{0}.id')) as v(n)", "{0}.id"),
    "an escape": ("select set_config(E'{0}\\x2eid', '{1}', false)", "{0}.id"),
    "a quoted function": ("select \"set_config\"('{0}.id', '{1}', false)", "{0}.id"),
    "code points in its name": ("select U&\"set\\005fconfig\"('{0}.id', '{1}', false)", "{0}.id"),
    "do": ("do $$ begin perform set_config('{0}' || '.id', '{1}', false); end $$", "{0}.id"),
    "do, quoted": ("do $$ begin set \"{0}\" . id = '{1}'; end $$", "{0}.id"),
    "do, dynamic": ("do $$ begin execute 'set ' || '{0}' || '.id = ' || quote_literal('{1}'); end $$", "{0}.id"),
    "do, format": ("do $$ begin execute format('set %s.id = %L', '{0}', '{1}'); end $$", "{0}.id"),
    "a function that puts it together": ("select naming.put_together('{0}', '{1}')", "n_{0}.id"),
    "a function that is given it": ("select naming.given('{0}' || '.id', '{1}')", "{0}.id"),
    "a function with dynamic SQL": ("select naming.dynamic('{0}' || '.id', '{1}')", "{0}.id"),
    "a function that calls such a one": ("select naming.calls_it('{1}')", "n_called.id"),
    "a function with a literal": ("select naming.literal('{1}')", "naming.literal"),
    "a trigger": ("insert into naming.visits values ('{0}')", "n_{0}.id"),
    "behind much": ("select 1 /* {filler} */; set \"{0}\".id = '{1}'", "{0}.id"),
    "a procedure": ("call naming.called('{0}', '{1}')", "n_{0}.id"),
    "a function that runs what it is given": ("select naming.runs('set {0}.id = ''{1}''')", "{0}.id"),
    "a function that runs what is put together": ("select naming.runs('set {0}' || '.id = ''{1}''')", "{0}.id"),
    "in a transaction": ("begin; set \"{0}\" . id = '{1}'; commit", "{0}.id"),
    "an execute": ("prepare p_{0}(text, text) as select set_config($1 || '.id', $2, false); execute p_{0}('{0}', '{1}')", "{0}.id"),
}


@pytest.fixture
def made(pg):
    """The database app with routines that set what their callers do not name."""
    with pg.connect("app") as connection:
        connection.execute(MADE)
        yield pg
        connection.execute("drop schema naming cascade")


def value(session, name):
    quoted = name.replace("'", "''")
    return session.query(f"select coalesce(current_setting('{quoted}', true), '')").rows[0][0]


@pytest.mark.parametrize("way", WAYS)
def test_it_stays_its_clients(pooled, made, way):
    """The client has its value, and no other client of a pool of one server has, before and after it has left."""
    tenant = f"tenant{next(NUMBERS)}"
    statement, name = (part.format(tenant, f"secret of {way}", filler="x" * 70_000) for part in WAYS[way])
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as other, pooler.raw() as third:
        owner = pooler.raw()
        answer = owner.query(statement)
        assert not answer.errors, answer.errors
        for _ in range(3):
            assert value(owner, name) == f"secret of {way}"
            assert value(other, name) == "" and value(third, name) == ""
        owner.terminate()
        # The other two have all servers of the pool between them.
        other.query("begin")
        assert value(other, name) == "" and value(third, name) == ""
        other.query("commit")


MANY = {
    "one by one": lambda names: "; ".join(["begin", *(f"set {name} = 'secret'" for name in names), "commit"]),
    "in one statement": lambda names: "select " + ", ".join(f"set_config('{name}', 'secret', false)" for name in names),
    "in a block": lambda names: "do $$ begin " + " ".join(f"set {name} = 'secret';" for name in names) + " end $$",
}


@pytest.mark.parametrize("way", MANY)
@pytest.mark.parametrize("count", [70, 300])
def test_many_names(pooled, pg, way, count):
    """However many names a client uses in one transaction, it has all of them, and no other client has one."""
    prefix = f"many{next(NUMBERS)}"
    names = [f"{prefix}.n{number}" for number in range(count)]
    listed = ",".join(f"'{name}'" for name in names)
    found = f"select count(*) from unnest(array[{listed}]) n where current_setting(n, true) = 'secret'"
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as other, pooler.raw() as third:
        owner = pooler.raw()
        assert not owner.query(MANY[way](names)).errors
        assert owner.value(found) == str(count) and other.value(found) == "0" and third.value(found) == "0"
        [row] = [row for row in pooler.show("CLIENTS_EXTENDED") if row["pinned"]]
        assert row["pinned"] in ("settings of unknown names", "many settings")
        owner.terminate()
        other.query("begin")
        assert other.value(found) == "0" and third.value(found) == "0"
        other.query("commit")


@pytest.mark.parametrize("in_one", [False, True])
def test_many_bound_names(pooled, pg, in_one):
    """The same, of names that are bound to a prepared statement, in one transaction and in many."""
    prefix = f"bound{next(NUMBERS)}"
    names = [f"{prefix}.N{number}" for number in range(70)]
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as other:
        owner = pooler.raw()
        if in_one:
            owner.query("begin")
        owner.send(parse("p", "select set_config($1::text, $2, false)") + SYNC)
        for name in names:
            owner.send(bind("", "p", [name, "secret"]) + execute() + SYNC)
        assert not any(owner.until("Z").errors for _ in range(71))
        if in_one:
            owner.query("commit")
        assert all(value(owner, name) == "secret" for name in names)
        assert not any(value(other, name) for name in names)
        owner.terminate()
        assert not any(value(other, name) for name in names)


@pytest.mark.parametrize(("padding", "name"), [(0, "\u00e9_bound.id"), (100_000, "bound_late.id")])
def test_a_bound_name_that_cannot_be_read(pooled, pg, padding, name):
    """A name that is not ASCII, and one whose message comes in pieces."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as other:
        owner = pooler.raw()
        owner.send(parse("p", "select $1::text, set_config($2, 'secret', false)") + SYNC)
        owner.send_slowly(bind("", "p", ["x" * padding, name]) + execute() + SYNC, step=30_000)
        owner.until("Z")
        assert not owner.until("Z").errors
        assert value(owner, name) == "secret" and value(other, name) == ""
        owner.terminate()
        assert value(other, name) == ""


def test_what_clients_make_up_is_theirs_alone(pooled, made):
    """Many names of other clients, past and present, leave no gap for one that a function sets, and pin no client."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as other:
        for _ in range(10):
            with pooler.raw() as client:
                for _ in range(40):
                    client.query(f"set made_up{next(NUMBERS)}.id = 'x'")
                client.terminate()
        one.query("select naming.literal('tenantA')")
        assert value(other, "naming.literal") == "" and value(one, "naming.literal") == "tenantA"
        assert not [row for row in pooler.show("CLIENTS_EXTENDED") if row["pinned"]]


def test_more_routines_than_a_thousand(pooled, pg):
    """Each of 1200 routines that change their session is known."""
    with pg.connect("app") as connection:
        connection.execute("create schema crowd")
        connection.execute("grant all on schema crowd to public")
        connection.execute("""do $do$ begin for n in 1..1200 loop execute format($f$create function crowd.f%s(v text) returns text
            language sql as 'select set_config(''work_mem'', v, false)'$f$, n); end loop; end $do$""")
        try:
            pooler = pooled(default_pool_size=1)
            with pooler.raw() as one, pooler.raw() as other:
                plain = other.value("show work_mem")
                for number in (1, 999, 1000, 1001, 1200):
                    one.query(f"select crowd.f{number}('{number + 100}kB')")
                    assert other.value("show work_mem") == plain
                    assert one.value("show work_mem") == f"{number + 100}kB"
        finally:
            connection.execute("drop schema crowd cascade")


@pytest.mark.parametrize("ending", ["DISCARD ALL", "reset all;"])
def test_taking_all_back_ends_the_pin(pooled, pg, ending):
    """A client that takes back all its settings does not need its server any more."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as other:
        name = f"ends{next(NUMBERS)}"
        one.query(f"select set_config('{name}' || '.id', 'secret', false)")
        eventually(lambda: pooler.show("SERVERS_EXTENDED", database="app")[0]["pinned"] == "settings of unknown names", "the client keeps its server")
        one.query("begin; select 1/0")
        one.query("rollback")
        assert one.value("select 1") == "1" and pooler.show("SERVERS_EXTENDED", database="app")[0]["pinned"] == "settings of unknown names"
        one.query(ending)
        assert other.query("select 1").rows == [["1"]]
        assert value(other, f"{name}.id") == "" and value(one, f"{name}.id") == ""


def test_a_long_value(pooled, pg):
    """A value that is too long to be brought to another server keeps its client on the one that has it."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as other:
        one.query("select set_config('long.value', repeat('x', 2000000), false)")
        assert one.value("select length(current_setting('long.value', true))") == "2000000"
        assert other.value("select coalesce(length(current_setting('long.value', true)), 0)") == "0"


def test_functions_that_are_called_by_number(pooled, pg):
    """FunctionCall of set_config."""
    number = int(pg.sql("select 'pg_catalog.set_config(text, text, boolean)'::regprocedure::oid::text")[0][0])
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as other:
        one.send(function_call(number, [b"by_number.id", b"secret", b"f"], formats=(0,), result_format=0))
        assert not one.until("Z").errors
        assert value(one, "by_number.id") == "secret" and value(other, "by_number.id") == ""


@pytest.mark.parametrize("way", ["quoted", "quoted parts", "code points", "put together", "a long name", "do", "in a transaction"])
def test_every_version(poolers, pg_other, way):
    """Each version of PostgreSQL reads names, and answers questions for them, alike."""
    tenant = f"tenant{next(NUMBERS)}"
    statement, name = (part.format(tenant, "secret") for part in WAYS[way])
    pooler = poolers({"app": pg_other.at()}, default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as other:
        assert not one.query(statement).errors
        assert value(one, name) == "secret" and value(other, name) == ""
        one.query("set \"odd one.x\" = 'secret'")
        assert value(other, "odd one.x") == ""

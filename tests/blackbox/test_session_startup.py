"""What a client asked for in its startup packet is what a reset goes back to, whatever words the reset has and whatever becomes of it."""

import pytest

from harness.pooler import kind
from harness.wire import SYNC, bind, execute, parse, query

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

STARTUP = {
    "TimeZone": "Asia/Tokyo",
    "DateStyle": "German, DMY",
    "application_name": "its own",
    "options": "-c work_mem=7MB -c starting.own=mine",
}

SHOWN = {"timezone": "Asia/Tokyo", "datestyle": "German, DMY", "application_name": "its own", "work_mem": "7MB", "starting.own": "mine"}

MADE = """
create schema starting;
grant all on schema starting to public;
create function starting.resets() returns void language plpgsql as $$ begin execute 'reset timezone'; end $$;
create function starting.resets_by_call() returns text language sql as $$ select set_config('DateStyle', null, false) $$;
create procedure starting.resets_all() language plpgsql as $$ begin reset all; end $$;
"""


def group(*texts):
    """Statements of the extended protocol in one group."""
    return b"".join(parse("", text) + bind("", "") + execute() for text in texts) + SYNC


WAYS = {
    "discard all, and an error in its group": [group("discard all", "select 1/0")],
    "a reset that is committed, and an error": [query("reset all; commit; select 1/0")],
    "a reset, and an error in the next group": [group("reset all") + group("select 1/0")],
    "a block": [query("do $$begin reset all; end$$")],
    "a block with an error behind it": [query("do $$begin reset timezone; end$$; commit; select 1/0")],
    "a block that commits": [query("do $$begin reset all; commit; perform 1/0; end$$")],
    "NULL": [query("select set_config('timezone', null, false), set_config('application_name', null, false)")],
    "a bound NULL": [parse("", "select set_config($1, $2, false)") + bind("", "", ["DateStyle", None]) + execute() + SYNC],
    "a body": [query("select starting.resets()")],
    "a call in a body": [query("select starting.resets_by_call()")],
    "a procedure": [query("call starting.resets_all()")],
    "a prepared statement": [query("prepare p as select starting.resets()"), query("execute p"), query("deallocate p")],
    "pinned": [query("select pg_advisory_lock(4712)"), query("do $$begin reset all; end$$")],
    "in a transaction": [query("begin"), query("do $$begin reset all; end$$"), query("savepoint a"), query("commit")],
    "rolled back": [query("begin"), query("do $$begin reset all; end$$"), query("rollback")],
}


@pytest.fixture
def made(pg):
    """The database app with routines that reset."""
    with pg.connect("app") as connection:
        connection.execute(MADE)
        yield pg
        connection.execute("drop schema starting cascade")


def shown(session):
    return {name: session.value(f"select current_setting('{name}', true)") for name in SHOWN}


@pytest.mark.parametrize("way", WAYS)
def test_a_reset_goes_back_to_it(pooled, made, way):
    """The client has its startup values after each reset, and is told so; another client of the same server has its own."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw(**STARTUP) as one, pooler.raw() as other:
        plain = shown(other)
        for _ in range(2):
            for message in WAYS[way]:
                one.send(message)
                for _ in range(message.count(SYNC) or 1):
                    one.until("Z")
            assert shown(one) == SHOWN
            assert shown(other) | {"starting.own": None} == plain | {"starting.own": None}
            assert one.parameters["TimeZone"] == "Asia/Tokyo" and one.parameters["application_name"] == "its own"
            assert one.parameters["DateStyle"] == "German, DMY"


def test_what_it_set_itself_stays(pooled, made):
    """A reset in a body takes back what the client set, and nothing is put back over what it set since."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw(**STARTUP) as one:
        one.query("set timezone = 'Europe/Paris'; set datestyle = 'SQL'")
        one.query("do $$begin reset timezone; set work_mem = '9MB'; end$$")
        assert one.value("show timezone") == "Asia/Tokyo" and one.value("show work_mem") == "9MB"
        assert one.value("show datestyle").startswith("SQL")

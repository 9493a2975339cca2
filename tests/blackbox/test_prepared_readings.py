"""PostgreSQL reads a text when it is prepared, under the settings of that session: clients with other settings do not share it.

Each test runs two clients over one server; what they expect is what each gets on a connection of its own.
"""

from contextlib import ExitStack

import pytest

from harness.pooler import kind
from harness.wire import SYNC, bind, close, describe, execute, parse

pytestmark = [
    pytest.mark.needs("prepared statements"),
    pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer shares them, whatever the settings"),
]


@pytest.fixture
def client(pooled):
    """A function that logs in a client; all share one server."""
    pooler = pooled(default_pool_size=1)
    with ExitStack() as stack:

        def start(settings=(), **startup):
            session = stack.enter_context(pooler.raw(**startup))
            for setting in settings:
                assert session.query(setting).errors == []
            return session

        yield start


def prepare(session, name, text):
    """`text` may be bytes of any encoding."""
    session.send(parse(name, text) + SYNC)
    assert session.until("Z").tags == "1Z"


def value(session, name):
    session.send(bind("", name) + execute() + SYNC)
    answer = session.until("Z")
    assert answer.errors == [], answer.messages
    return answer.rows[0][0]


DATE = "select ('01/02/2024'::date)::timestamptz - '2024-01-01 00:00Z'::timestamptz > interval '5 days'"

ZONE = "select extract(epoch from '2024-01-01 00:00'::timestamptz)::int"

CASES = {
    "TimeZone": ({"TimeZone": "Asia/Tokyo"}, [], {"TimeZone": "America/New_York"}, [], ZONE, ("1704034800", "1704085200")),
    "TimeZone by SET": ({}, ["set timezone = 'Asia/Tokyo'"], {}, ["set timezone = 'America/New_York'"], ZONE, ("1704034800", "1704085200")),
    "client_encoding": (
        {"client_encoding": "LATIN1"}, [], {"client_encoding": "UTF8"}, [],
        "select octet_length('\u00e9')", ("4", "2"),
    ),
    "DateStyle": ({"DateStyle": "ISO, MDY"}, [], {"DateStyle": "ISO, DMY"}, [], DATE, ("f", "t")),
    "IntervalStyle": (
        {}, ["set intervalstyle = 'postgres'"], {}, ["set intervalstyle = 'sql_standard'"],
        "select extract(epoch from '-1 10:00:00'::interval)::int", ("-50400", "-122400"),
    ),
    "standard_conforming_strings": (
        {}, ["set standard_conforming_strings = on"], {}, ["set standard_conforming_strings = off"],
        r"select length('a\\b')", ("4", "3"),
    ),
    "transform_null_equals": ({}, [], {}, ["set transform_null_equals = on"], "select coalesce((1 = null)::text, 'unknown')", ("unknown", "false")),
    "array_nulls": ({}, [], {}, ["set array_nulls = off"], "select (('{NULL}'::text[])[1] is null)::text", ("true", "false")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_same_text_under_other_settings_is_another_statement(client, case):
    first, first_sets, second, second_sets, text, expected = CASES[case]
    one, two = client(first_sets, **first), client(second_sets, **second)
    for _ in range(2):
        for session in (one, two):
            prepare(session, "p", text)
        assert (value(one, "p"), value(two, "p")) == expected
        assert (value(one, "p"), value(two, "p")) == expected, "also behind the other's"
        for session in (one, two):
            session.send(close("S", "p") + SYNC)
            assert session.until("Z").tags == "3Z"


def test_a_client_that_changes_datestyle_prepares_again(client):
    session = client()
    seen = []
    for style in ("mdy", "dmy", "mdy"):
        assert session.query(f"set datestyle = 'iso, {style}'").errors == []
        prepare(session, "p", DATE)
        seen.append(value(session, "p"))
        session.send(close("S", "p") + SYNC)
        session.until("Z")
    assert seen == ["f", "t", "f"]


@pytest.mark.parametrize("begin", ["begin; set local datestyle = 'iso, dmy'", "begin; set datestyle = 'iso, dmy'"])
def test_what_is_prepared_under_a_transactions_own_settings_is_not_shared(client, begin):
    one, two = client(), client()
    prepare(two, "p", DATE)
    one.query(begin)
    prepare(one, "p", DATE)
    assert value(one, "p") == "t"
    one.query("rollback")
    three = client()
    prepare(three, "p", DATE)
    assert [value(session, "p") for session in (two, three)] == ["f", "f"]


def test_search_path_tells_which_table_is_meant(client, pg):
    """Without it: 0A000 "cached plan must not change result type", though no client changed a table."""
    pg.sql("drop schema if exists reads_a, reads_b cascade")
    for schema, column in (("reads_a", "a int"), ("reads_b", "b text")):
        pg.sql(f"create schema {schema}")
        pg.sql(f"create table {schema}.t ({column})")
        pg.sql(f"grant usage on schema {schema} to public")
        pg.sql(f"grant select on {schema}.t to public")
    one, two = client(["set search_path = reads_a"]), client(["set search_path = reads_b"])
    try:
        for session in (one, two):
            prepare(session, "p", "select * from t")
        for _ in range(2):
            for session in (one, two):
                session.send(describe("S", "p") + bind("", "p") + execute() + SYNC)
                answer = session.until("Z")
                assert answer.tags == "tT2CZ", answer.messages
    finally:
        pg.sql("drop schema reads_a, reads_b cascade")


def test_a_temporary_table_hides_the_one_that_other_clients_mean(client, pg):
    pg.sql("drop table if exists hidden_one")
    pg.sql("create table hidden_one as select 'all' as whose")
    pg.sql("grant select on hidden_one to public")
    one, two = client(), client()
    try:
        # From then on this server looks for temporary ones first.
        assert two.query("create temp table looks_here (); drop table looks_here").errors == []
        prepare(one, "p", "select whose from hidden_one")
        assert value(one, "p") == "all"
        assert two.query("create temp table hidden_one as select 'mine' as whose").errors == []
        prepare(two, "p", "select whose from hidden_one")
        assert value(two, "p") == "mine"
    finally:
        two.query("drop table pg_temp.hidden_one")
        pg.sql("drop table hidden_one")


def test_sql_prepare(client):
    one, two = client(**{"DateStyle": "ISO, MDY"}), client(**{"DateStyle": "ISO, DMY"})
    for session in (one, two):
        assert session.query("prepare p as select '01/02/2024'::date - '2024-01-01'::date").errors == []
    for _ in range(2):
        assert [session.query("execute p").rows for session in (one, two)] == [[["1"]], [["31"]]]


def test_what_moves_is_read_as_the_client_reads_then(pooled):
    """A client changes its DateStyle and gets another server: what that one prepares is not what other clients prepared before."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw() as blocker:
        prepare(one, "p", DATE)
        assert value(one, "p") == "f"
        one.query("set datestyle = 'iso, dmy'")
        for _ in range(2):
            blocker.query("begin")
            assert value(one, "p") in "ft"
            blocker.query("commit")
            two.query("begin")
            assert value(one, "p") in "ft"
            two.query("commit")
        prepare(two, "q", DATE)
        blocker.query("begin")
        assert value(two, "q") == "f"
        blocker.query("commit")
        one.query("begin")
        assert value(two, "q") == "f"

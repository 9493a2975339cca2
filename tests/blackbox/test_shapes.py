"""A prepared statement runs on a server that did not prepare it, after its table has changed past the pooler: as on a direct connection,
"cached plan must not change result type", before anything has run; never other columns than the client was told.
"""

import struct

import pytest
from test_takeover import over, running, successor  # noqa: F401: a fixture

from harness.wire import SYNC, bind, describe, execute, parse, query

pytestmark = [pytest.mark.needs("prepared statements"), pytest.mark.needs("changed results noticed")]

CHANGED = "0A000"


@pytest.fixture
def change(pg):
    """A function that changes the table directly on PostgreSQL."""
    pg.sql("drop table if exists shaped")
    pg.sql("create table shaped (a int, b int default 5)")
    pg.sql("insert into shaped values (1)")
    pg.sql("grant all on shaped to public")
    return lambda what: pg.sql(f"alter table shaped {what}")


def prepare(session, name, sql):
    session.send(parse(name, sql) + describe("S", name) + SYNC)
    answer = session.until("Z")
    assert not answer.errors, answer.messages
    return answer


def run(session, name, *values, described=False, formats=()):
    portal = describe("P", "") if described else b""
    session.send(bind("", name, values, formats) + portal + execute() + SYNC)
    return session.until("Z")


@pytest.mark.parametrize("formats", [(), (1,), (1, 1)])
def test_other_columns_are_never_shown(pooled, change, formats):
    """In text and in binary, with a column of another type and with one more."""
    pooler = pooled(default_pool_size=2)
    for what in ("alter b type real", "add c int"):
        with pooler.raw() as session:
            prepare(session, "s", "select * from shaped where a = $1")
            assert len(run(session, "s", "1", formats=formats if what != "add c int" else ()).of("D")) == 1
            change(what)
            pooler.admin("RECONNECT")
            answer = run(session, "s", "1", formats=formats)
            assert (answer.error["C"], answer.error["R"], answer.status) == (CHANGED, "RevalidateCachedQuery", "I")
            assert not answer.of("D")
            # Again and again, until the client asks.
            assert run(session, "s", "1", formats=formats).error["C"] == CHANGED
            answer = run(session, "s", "1", described=True)
            assert answer.columns[:2] == ["a", "b"] and len(answer.of("D")) == 1
            assert len(run(session, "s", "1").of("D")) == 1


def test_what_is_refused_has_not_run(pg, pooled, change):
    """INSERT ... RETURNING: no row is there, in a transaction and without one."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as session:
        prepare(session, "s", "insert into shaped (a) values ($1) returning *")
        assert run(session, "s", "2").rows == [["2", "5"]]
        change("add c int default 7")
        pooler.admin("RECONNECT")
        assert run(session, "s", "3").error["C"] == CHANGED
        assert pg.sql("select count(*) from shaped") == [(2,)]
        session.query("begin")
        answer = run(session, "s", "4")
        assert (answer.error["C"], answer.status) == (CHANGED, "E")
        assert session.query("select 1").error["C"] == "25P02"
        assert session.query("rollback").status == "I"
        session.send(query("begin") + bind("", "s", ("5",)) + execute() + SYNC + query("commit"))
        assert session.until("Z").status == "T"
        assert session.until("Z").error["C"] == CHANGED
        session.until("Z")
        assert pg.sql("select count(*) from shaped") == [(2,)]


def test_values_mean_what_they_meant(pg, pooled, change):
    """A column becomes `real`; a client that was told `int` sends its value in binary, in a statement that returns nothing."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as session:
        prepare(session, "s", "insert into shaped (a, b) values (9, $1)")

        def insert(value):
            packed = struct.pack(">i", value)
            tail = struct.pack(">hhhi", 1, 1, 1, 4) + packed + struct.pack(">h", 0)
            body = b"\0s\0" + tail
            session.send(b"B" + struct.pack(">i", len(body) + 4) + body + execute() + SYNC)
            answer = session.until("Z")
            assert not answer.errors, answer.messages

        insert(3)
        for kind in ("real", "numeric", "bigint"):
            change(f"alter b type {kind}")
            pooler.admin("RECONNECT")
            insert(3)
        assert pg.sql("select distinct b::int from shaped where a = 9") == [(3,)]


def test_a_statement_that_is_prepared_afterwards_is_right(pooled, change):
    """Another client that prepares the same text gets today's columns and parameter types."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as early, pooler.raw() as late:
        prepare(early, "s", "select * from shaped where a = $1")
        change("alter a type text")
        pooler.admin("RECONNECT")
        answer = prepare(late, "x", "select * from shaped where a = $1")
        assert [struct.unpack(">i", message.body[2:])[0] for message in answer.of("t")] == [25]
        assert run(late, "x", "1").rows == [["1", "5"]]


def test_one_server_that_keeps_one_statement(pooled, change):
    """Two statements take turns: each time the server forgets the other one, and what it says of both is compared."""
    pooler = pooled(default_pool_size=1, max_prepared_statements=1)
    with pooler.raw() as session:
        prepare(session, "s", "select * from shaped where a = $1")
        prepare(session, "t", "select b from shaped where a = $1")
        for _ in range(3):
            assert run(session, "s", "1").rows == [["1", "5"]]
            assert run(session, "t", "1").rows == [["5"]]
        change("alter b type real")
        for name in ("s", "t"):
            assert run(session, name, "1").error["C"] == CHANGED


@pytest.mark.needs("online restart over a unix socket")
def test_the_next_process_compares(running, change):  # noqa: F811
    """After an online restart the new process knows what clients were told."""
    pooler = running(default_pool_size=1)
    with pooler.raw() as session:
        prepare(session, "s", "select * from shaped where a = $1")
        assert run(session, "s", "1").rows == [["1", "5"]]
        change("alter b type real")
        over(successor(pooler))
        pooler.admin("RECONNECT")
        assert run(session, "s", "1").error["C"] == CHANGED

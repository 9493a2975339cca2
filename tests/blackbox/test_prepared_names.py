"""Prepared statements by SQL and by protocol share one set of names: every mix, compared with a direct connection.

Between each two groups of the client, other clients use its server: with statements of the same names, and another session.
"""

import pytest

from harness.cluster import PASSWORDS
from harness.pooler import kind
from harness.wire import SYNC, Raw, bind, close, describe, execute, group, parse, query

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

INT4 = 23


def run(name, *values):
    return bind("", name, values) + execute() + SYNC


def by_protocol(sql):
    return group("", sql)


SHOWN = "select name, statement, parameter_types::text, from_sql from pg_prepared_statements order by name"

PREPARES = parse("p", "select $1::int + 1", [INT4]) + SYNC

SCRIPTS = {
    "execute": [PREPARES, query("execute p(1)"), query("EXECUTE P (2)"), run("p", 3), by_protocol("execute p(4)"), query("execute \"p\"(5)")],
    "execute in a block": [PREPARES, query("begin"), query("execute p(1)"), query("commit"), query("execute p(7)")],
    "execute in a failed block": [PREPARES, query("begin"), query("x"), query("execute p(1)"), query("rollback"), query("execute p(8)")],
    "execute with a table": [PREPARES, query("create table made as execute p(5)"), query("select * from made"), query("drop table made")],
    "explain": [PREPARES, query("explain (costs off) execute p(5)")],
    "deallocate": [PREPARES, query("deallocate p"), run("p", 1), query("deallocate p"), PREPARES, run("p", 2)],
    "deallocate prepare": [PREPARES, query("DEALLOCATE PREPARE \"p\";"), run("p", 1), query("execute p(1)")],
    "deallocate by protocol": [PREPARES, by_protocol("deallocate p"), run("p", 1), by_protocol("deallocate p")],
    "deallocate by a prepared statement": [
        PREPARES, parse("d", "deallocate p") + SYNC, run("p", 1), run("d"), run("p", 2), run("d"), PREPARES, run("d"),
    ],
    "deallocate in a block": [
        PREPARES, query("begin"), query("deallocate p"), PREPARES, run("p", 5), query("rollback"), run("p", 6),
    ],
    "deallocate in a failed block": [
        PREPARES, query("begin"), query("x"), query("deallocate p"), query("rollback"), run("p", 6), query("deallocate p"),
    ],
    "deallocate pipelined": [PREPARES + query("deallocate p") + PREPARES + run("p", 9) + query("deallocate p") + query("deallocate p")],
    "deallocate and others": [PREPARES, parse("q", "select 'q'") + SYNC, query("deallocate q"), run("p", 9), run("q")],
    "close what sql prepared": [query("prepare s as select 's'"), close("S", "s") + SYNC, query("execute s"), query("deallocate s")],
    "close what sql prepared in a block": [
        query("begin"), query("prepare s as select 's'"), close("S", "s") + SYNC, query("commit"), query("execute s"),
    ],
    "bind what sql prepared": [
        query("prepare s(int) as select $1 + 10"), run("s", 5), describe("S", "s") + SYNC, query("execute s(6)"), query("deallocate s"), run("s", 7),
    ],
    "bind what sets": [query("prepare s as select set_config('a.b', 'mine', false)"), run("s"), query("show a.b"), query("show a.b")],
    "a name by sql that the protocol has": [PREPARES, query("prepare p as select 2"), run("p", 1), query("execute p(1)")],
    "a name by the protocol that sql has": [query("prepare p as select 'sql'"), PREPARES, run("p"), query("deallocate p"), PREPARES, run("p", 4)],
    "a name by the protocol that sql had": [
        query("prepare p as select 'sql'"), query("begin"), query("deallocate p"), PREPARES, run("p", 4), query("commit"), run("p", 5),
    ],
    "a name by the protocol that sql prepared in the same block": [
        query("begin"), query("prepare p as select 'sql'"), PREPARES, query("rollback"), run("p"), query("deallocate p"), PREPARES, run("p", 4),
    ],
    "a name by the protocol that sql prepares ahead of it": [query("prepare p as select 'sql'") + PREPARES + query("execute p"), run("p"), run("p", 2)],
    "a name by the protocol that a routine gave back": [
        query("prepare p as select 'sql'"), query("begin"), query("do $$ begin execute 'deallocate p'; end $$"), PREPARES, run("p", 4),
        query("commit"), run("p", 5), query("execute p(6)"),
    ],
    "a name by the protocol that sql has, closed behind an error": [
        query("prepare p as select 'sql'"), bind("", "p", [1, 2]) + execute() + close("S", "p") + SYNC + PREPARES + run("p"), run("p", 1), query("execute p"),
    ],
    "a name by the protocol that sql has, closed ahead of it": [
        query("prepare p as select 'sql'"), close("S", "p") + SYNC + PREPARES + run("p", 1), run("p", 2), query("execute p(3)"),
        query("prepare q as select 'sql'"), close("S", "q") + parse("q", "select 'by the protocol'") + SYNC + run("q"), run("q"), query("deallocate q"), run("q"),
    ],
    "deallocate all": [PREPARES, query("prepare s as select 's'"), query("deallocate all"), run("p", 1), query("execute s"), query(SHOWN)],
    "shown": [
        query(SHOWN), PREPARES, query("prepare s(text) as select $1"), parse("b", "select 'x', $1::text") + SYNC, query(SHOWN),
        by_protocol(SHOWN), run("p", 1), query("begin"), query(SHOWN), query("deallocate b"), query(SHOWN), query("commit"),
        query(SHOWN), close("S", "p") + SYNC, query(SHOWN), run("p", 1),
    ],
    "an unnamed statement that was never prepared": [describe("S", "") + SYNC, run(""), bind("", "") + describe("P", "") + execute() + SYNC],
    "an unnamed statement that was closed": [
        parse("", "select 1") + SYNC, close("S", "") + SYNC, run(""), describe("S", "") + SYNC,
        parse("", "select 1") + close("S", "") + SYNC + run(""),
    ],
    "an unnamed statement that was never prepared, in a block": [
        query("begin"), run(""), query("select 1"), query("rollback"), query("begin"), query("select 1"), describe("S", "") + SYNC, query("commit"),
    ],
    "an unnamed statement that was never prepared, pipelined": [
        query("begin") + run("") + query("select 1") + query("rollback") + run("") + query("select 2"),
    ],
    "an unnamed statement that was never prepared, behind a replay": [query("set a.b = 'x'"), run(""), describe("S", "") + SYNC],
    "an unnamed statement that does not parse": [
        parse("", "selec") + SYNC, run(""), parse("", "select 1") + SYNC, parse("", "selec") + SYNC, run(""), run(""),
    ],
    "an unnamed statement that is skipped": [
        bind("", "nothing") + execute() + parse("", "select 1") + SYNC, run(""),
        bind("", "nothing") + execute() + parse("", "select 1") + SYNC + run("") + run(""),
    ],
    "an unnamed statement in pipelines": [
        parse("", "select 1") + SYNC + run("") + run(""), run(""), PREPARES, run("p", 1) + parse("", "select 2") + SYNC + run("") + run("p", 2), run(""),
    ],
    "an unnamed statement that a query ends": [parse("", "select 1") + SYNC, query("select 2"), run(""), parse("", "select 1") + SYNC + query("select 2") + run("")],
    "an unnamed portal that was never bound": [
        execute() + SYNC, describe("P", "") + SYNC, query("begin"), execute() + SYNC, query("rollback"), query("begin"), describe("P", "") + SYNC, query("rollback"),
        query("begin"), close("P", "") + execute() + SYNC, query("rollback"),
    ],
    "execute, close and parse in one group": [
        PREPARES, parse("", "execute p(1)") + bind("", "") + execute() + close("S", "p") + parse("p", "select 'new'") + bind("", "p") + execute() + SYNC,
        run("p"), query("execute p"),
    ],
    "execute behind a rollback": [
        PREPARES, query("begin"), query("x"), query("rollback") + query("execute p(1)"), query("execute p(2)"),
        query("begin") + query("x") + query("rollback") + query("deallocate p") + run("p", 1) + PREPARES + query("execute p(3)"),
    ],
    "several statements in one string": [
        PREPARES, query("select 1; execute p(1)"), query("select 'copy'; execute p(2)"), query("deallocate p; select 3"), run("p", 4), query("execute p(5)"),
    ],
    "describe of execute": [
        PREPARES, parse("", "execute p(1)") + describe("S", "") + bind("", "") + describe("P", "") + execute() + SYNC,
        parse("", "execute p(2)") + describe("S", "") + SYNC, run(""), parse("e", "execute p(3)") + describe("S", "e") + SYNC, run("e"),
    ],
    "a block that prepares a name of the protocol": [
        PREPARES, query("do $$ begin execute 'prepare p as select 4'; end $$"), query("execute p(1)"), run("p", 2),
        query("do $$ begin execute 'deallocate p'; end $$"), run("p", 3), query("execute p(4)"),
    ],
    "shown by a prepared statement": [
        PREPARES, parse("shows", SHOWN.replace("order", "where name <> 'shows' order")) + SYNC, run("shows"), run("shows"), close("S", "p") + SYNC, run("shows"),
    ],
    "names of the pooler's own": [
        run("PGWEIR_1", 1), run("PGWEIR_2"), query('execute "PGWEIR_1"(1)'), query('deallocate "PGWEIR_2"'), describe("S", "PGWEIR_1") + SYNC,
        parse("PGWEIR_1", "select 'mine'") + SYNC, run("PGWEIR_1"), query('execute "PGWEIR_1"'),
    ],
    "a session that follows": [
        query("set search_path = pg_catalog"), query("set a.b = 'x'"), PREPARES, query("execute p(1)"), query("deallocate p"), query("show a.b"),
    ],
}  # fmt: skip


def told(answer):
    """What a client can tell of an answer, but for places in our files and query texts of errors."""
    seen = []
    for message in answer.messages:
        if message.tag == "D":
            seen.append(("D", message.row()))
        elif message.tag == "E":
            seen.append(("E", message.fields()["C"], message.fields()["M"]))
        elif message.tag == "C":
            seen.append(("C", message.text()))
        elif message.tag not in "NSA":
            seen.append((message.tag, message.body if message.tag in "Zt" else b""))
    return seen


def play(session, script, between=lambda: None):
    """The answers to a script; `between` is called where no transaction is open."""
    answers, status = [], "I"
    for step in script:
        if status == "I":
            between()
        session.send(step)
        for at in starts(step):
            if step[at : at + 1] in b"QS":
                answer = session.until("Z")
                answers.append(told(answer))
                status = answer.status
    return answers


def starts(data):
    """Where the messages of these bytes begin."""
    at = 0
    while at < len(data):
        yield at
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_mix_of_both_is_as_on_a_direct_connection(pooled, pg, name):
    """The same script directly and through the pool, with other clients between its steps: a client that mixes keeps its server."""
    script = SCRIPTS[name]
    pooler = pooled(default_pool_size=2)
    with Raw(("127.0.0.1", pg.port)) as direct:
        direct.login("alice", "app", PASSWORDS["alice"])
        expected = play(direct, script)
    with pooler.raw() as session, pooler.raw() as other, pooler.raw() as third:
        other.send(parse("p", "select 'stranger', $1::text") + parse("q", "select 'stranger'") + SYNC)
        other.until("Z")

        def between():
            for stranger, text in ((other, "x"), (third, "y")):
                stranger.send(query(f"set a.b = '{text}'") + parse("", "select 1") + SYNC)
                stranger.until("Z")
                stranger.until("Z")
                if stranger is other:
                    stranger.send(run("p", text))
                    assert stranger.until("Z").rows == [["stranger", text]]

        assert play(session, script, between) == expected
    with pooler.raw() as later:
        assert later.query("select name from pg_prepared_statements").rows == []


def test_no_client_sees_what_other_clients_prepared(pooled):
    """`pg_prepared_statements` shows each client its own, by its own names, whichever client prepared the same text first."""
    pooler = pooled(default_pool_size=4)
    sessions = [pooler.raw() for _ in range(4)]
    for number, session in enumerate(sessions):
        session.send(parse(f"own{number}", "select 'the same'") + parse(f"other{number}", f"select {number}") + SYNC)
        session.until("Z")
    for _ in range(3):
        for number, session in enumerate(sessions):
            rows = session.query("select name from pg_prepared_statements order by 1").rows
            assert rows == [[f"other{number}"], [f"own{number}"]]
            session.send(run(f"own{number}"))
            assert session.until("Z").rows == [["the same"]]
    for session in sessions:
        session.terminate()


def test_a_drivers_own_evictions(pooled):
    """As ActiveRecord does: statements a1, a2, ... of which the oldest is deallocated by SQL, in and outside of transactions."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as two:
        for number in range(60):
            for session in (one, two):
                session.send(parse(f"a{number}", f"select {number % 7} + $1::int") + SYNC + run(f"a{number}", 1))
                session.until("Z")
                assert session.until("Z").rows == [[str(number % 7 + 1)]]
                if number >= 5:
                    if number % 3 == 0:
                        session.query("begin")
                    assert session.query(f"DEALLOCATE a{number - 5}").commands == ["DEALLOCATE"]
                    session.send(run(f"a{number - 5}", 1))
                    assert session.until("Z").error["C"] == "26000"
                    if number % 3 == 0:
                        session.query("rollback")


def test_what_is_unnamed_ends_with_its_session(pooled):
    """In session pooling, too, no client uses the unnamed statement of the client before it, though the server is not reset."""
    pooler = pooled(pool_mode="session", default_pool_size=1, server_reset_query="")
    with pooler.raw() as stranger:
        stranger.send(parse("", "select 'stranger'") + SYNC)
        stranger.until("Z")
    with pooler.raw() as session:
        for ask in (describe("S", "") + SYNC, run("")):
            session.send(ask)
            assert session.until("Z").error["C"] == "26000"
    with pooler.raw() as session:
        session.send(query("begin") + run(""))
        session.until("Z")
        error = session.until("Z").error
        assert (error["C"], error["M"]) == ("26000", "unnamed prepared statement does not exist")


def test_a_session_that_leaves_harms_no_other_client(pooled):
    """What a block prepares under a name of the protocol ends with its client: the next one is served."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        session.send(parse("p1", "select 1") + SYNC)
        session.until("Z")
        session.query("do $$begin execute 'prepare p1 as select 4'; end$$")
        session.query("execute p1")
    with pooler.raw() as later:
        assert later.value("select 'served'") == "served"
        assert later.query("select name from pg_prepared_statements").rows == []

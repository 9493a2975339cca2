"""route=auto with real streaming replication: how the transactions of real clients begin at a standby and leave it, whatever else the
clients do."""

import itertools
import os
import subprocess

import psycopg
import pytest

from drivers import toolchains
from harness import wire
from harness.cluster import PASSWORDS
from harness.machine import eventually

from test_cluster_auto import marked, ran_on, shop  # noqa: F401: a fixture
from test_cluster_reads import reading  # noqa: F401: a fixture
from test_clusters import nodes  # noqa: F401: a fixture

FIRST = {"begin_undeclared": "first"}
READ = "select a from shop"


def run(text):
    """A statement in extended messages, without a Sync."""
    return wire.parse("", text) + wire.bind("", "") + wire.describe("P", "") + wire.execute()


def forms(begin, text):
    """BEGIN and the first statement in each form in which drivers send them, with the number of ReadyForQuery."""
    sync = wire.SYNC
    return {
        "two queries": (wire.query(begin) + wire.query(text), 2),
        "a query and a group": (wire.query(begin) + run(text) + sync, 2),
        "two groups": (run(begin) + sync + run(text) + sync, 2),
        "one group": (run(begin) + run(text) + sync, 1),
    }


def pieces(data, size):
    """The same bytes, in pieces."""
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("defer_begin", ["packet", "server"])
def test_transactions_that_read_reach_the_standby_however_they_come(shop, defer_begin):  # noqa: F811
    """BEGIN alone, in one packet or one group with its first statement, whole or in pieces."""
    two, pooler = shop(FIRST, defer_begin=defer_begin)
    standby = two.all[1].port
    wrong = []
    with pooler.raw() as session:
        session.query("select 1")
        for begin, size in itertools.product(["begin read only", "begin"], [None, 7]):
            for form in forms(begin, READ):
                text, mark = marked(READ)
                data, readies = forms(begin, text)[form]
                for piece in pieces(data, size or len(data)):
                    session.send(piece)
                answers = [session.until() for _ in range(readies)]
                if any(answer.errors for answer in answers) or answers[-1].status != "T" or ran_on(two.all, mark) != [standby]:
                    wrong.append((begin, form, size, answers, ran_on(two.all, mark)))
                assert session.query("commit").status == "I"
    assert not wrong, wrong


def test_a_session_whose_transactions_are_read_only(shop):  # noqa: F811
    """SET SESSION CHARACTERISTICS, as pgjdbc's readOnlyMode=always, and back."""
    two, pooler = shop({"begin_undeclared": "primary"})
    primary, standby = (node.port for node in two.all)
    with pooler.raw() as session:
        for characteristics, port in [("read only", standby), ("read write", primary), ("read only", standby)]:
            assert not session.query(f"set session characteristics as transaction {characteristics}").errors
            text, mark = marked(READ)
            data, readies = forms("begin", text)["two groups"]
            session.send(data)
            answers = [session.until() for _ in range(readies)]
            assert not any(answer.errors for answer in answers), answers
            assert ran_on(two.all, mark) == [port], characteristics
            assert session.query("commit").status == "I"


def pgjdbc(pooler, *arguments):
    """What a program with pgjdbc prints, line by line."""
    environment = {"PGHOST": "127.0.0.1", "PGPORT": str(pooler.port), "PGDATABASE": "app", "PGUSER": "alice", "PGPASSWORD": PASSWORDS["alice"]}
    command = [*toolchains.java("Transactions"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind, parameters", [("read-only", ""), ("read-only", "readOnlyMode=always"), ("undeclared", "")])
def test_pgjdbc_reads_at_the_standby(shop, kind, parameters):  # noqa: F811
    """All transactions but those in which pgjdbc prepares something that no server has yet."""
    two, pooler = shop(FIRST)

    def reads():
        return sum(int(row["reads"]) for row in pooler.show("NODES") if row["state"] == "standby")

    with pooler.raw() as session:
        eventually(lambda: session.query(READ) and reads() > 0, "the standby takes reads")
    before = reads()
    assert pgjdbc(pooler, kind, "60", parameters) == ["sum 6"] * 60
    at_standby = reads() - before
    assert at_standby >= 55, f"{at_standby} of 60 transactions"


def test_pgjdbc_reads_in_portions_and_changes_something(shop):  # noqa: F811
    """setFetchSize: the portal is where the rest of its transaction is."""
    two, pooler = shop(FIRST)
    assert pgjdbc(pooler, "portions", "12") == ["sum 45"] * 12
    assert two.primary.sql("select count(*) from shop where a >= 1000") == [(12,)]


def test_a_portal_that_is_left_open_goes_on(shop):  # noqa: F811
    """Execute with a limit of rows, a change, and the rest of the rows."""
    two, pooler = shop(FIRST)
    with pooler.raw() as session:
        session.query("select 1")
        for portal, is_first in itertools.product(["c", ""], [False, True]):
            session.query("begin")
            if not is_first:
                assert not session.query(READ).errors
            session.send(wire.parse("", "select n from generate_series(1, 3) as s(n)") + wire.bind(portal, "") + wire.execute(portal, 2) + wire.SYNC)
            assert session.until().rows == [["1"], ["2"]]
            if portal:
                assert not session.query("insert into shop values (100)").errors
            session.send(wire.execute(portal, 2) + wire.SYNC)
            answer = session.until()
            assert not answer.errors and answer.rows == [["3"]], answer
            assert session.query("commit").status == "I"


def test_sequences_and_everything_else_leave_the_standby(shop):  # noqa: F811
    """One client of the user has asked for what it drew, in vain; transactions of all begin at the standby and change something."""
    two, pooler = shop(FIRST)
    primary, standby = two.all
    with pooler.raw() as session:
        assert session.query("select lastval()").error["C"] == "55000"
        assert session.value("select 1") == "1"
    insert = "insert into shop values (200)"
    changes = [
        wire.query(insert),
        wire.query("select nextval('shop_numbers')"),
        wire.query("savepoint a"),
        run(READ) + run(insert) + wire.SYNC,
        run(READ) + run("do 'begin end'") + wire.SYNC,
        run("commit") + run(insert) + wire.SYNC,
        wire.parse("s", insert) + wire.SYNC + wire.bind("", "s") + wire.execute() + wire.SYNC,
    ]
    sessions = [pooler.raw() for _ in range(3)]
    for number, (session, change) in enumerate(itertools.product(sessions, changes)):
        assert session.query("begin").status == "T"
        read, mark = marked("with a as (select 1 as b) select * from a" if number % 2 else READ)
        assert not session.query(read).errors
        assert ran_on(two.all, mark) == [standby.port]
        session.send(change)
        readies = 2 if change == changes[-1] else 1
        answers = [session.until() for _ in range(readies)]
        assert not any(answer.errors for answer in answers), (number, answers)
        if change == changes[1]:
            drawn = answers[0].rows[0][0]
            assert session.value("select currval('shop_numbers')") == drawn
        assert session.query("rollback").status == "I"
        session.send(wire.close("S", "s") + wire.SYNC)
        session.until()
    assert primary.sql("select count(*) from shop where a = 200") == [(len(sessions),)], "those behind COMMIT"


def test_a_failed_transaction_answers_each_group(shop):  # noqa: F811
    """What no failed transaction runs, in groups that a standby would run otherwise than the primary."""
    two, pooler = shop(FIRST)
    groups = [
        run("do 'begin end'") + wire.SYNC,
        run(READ) + run("do 'begin end'") + wire.SYNC,
        wire.parse("s", "execute p") + wire.bind("", "s") + wire.execute() + wire.SYNC,
        run("do 'begin end'") + wire.FLUSH + run(READ) + wire.SYNC,
        wire.query("do 'begin end'"),
    ]
    with pooler.raw() as session:
        session.query("select 1")
        for group in groups:
            session.query("begin")
            assert not session.query(READ).errors
            assert session.query("select a / 0 from shop").error["C"] == "22012"
            session.send(group)
            answer = session.until()
            assert answer.status == "E" and answer.error["C"] == "25P02", answer
            assert session.query("rollback").status == "I"
        assert not session.query("insert into shop values (300)").errors


def test_a_client_that_listens_reads_at_the_standby(shop):  # noqa: F811
    """Its channels stay at the primary: no standby is asked to listen, and no notification is lost."""
    two, pooler = shop(FIRST)
    primary, standby = two.all
    with psycopg.connect(pooler.dsn(), autocommit=True) as session:
        heard = []
        session.add_notify_handler(lambda told: heard.append(told.payload))
        session.execute("listen news")
        for number, (begin, hint) in enumerate([("", ""), ("", "/* pgweir: standby */ "), ("begin read only", ""), ("begin", "")]):
            if begin:
                session.execute(begin)
            text, mark = marked(hint + READ)
            session.execute(text)
            assert ran_on(two.all, mark) == [standby.port], (begin, hint)
            if begin:
                session.execute("commit")
            primary.sql(f"notify news, '{number}'")
            eventually(lambda: session.execute("select 1") and heard == [str(n) for n in range(number + 1)], "it is told")  # noqa: B023
        session.execute("/* pgweir: standby */ unlisten news")
        primary.sql("notify news, 'late'")
        for _ in range(3):
            session.execute("insert into shop values (1)")
        assert "late" not in heard
        assert session.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)
    assert "25006" not in pooler.log() and "could not be restored" not in pooler.log()

"""How what a session holds ends: with its client, its transaction, its server. Nothing of it reaches another client."""

import threading

import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import Closed, Raw, bind, execute, parse, query

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

LEFT = {
    "a setting": ("set work_mem = '7777kB'", "show work_mem", "4MB"),
    "a custom setting": ("set left.behind = 'secret'", "select coalesce(current_setting('left.behind', true), '')", ""),
    "a role": ("set role bob", "select current_user", "alice"),
    "a temporary table": ("create temp table left_t (a int)", "select to_regclass('left_t') is null", "t"),
    "a lock": ("select pg_advisory_lock(8810)", "select pg_try_advisory_lock(8810)", "t"),
    "a channel": ("listen left_c", "select count(*) from pg_listening_channels()", "0"),
    "a statement": ("prepare left_p as select 1", "select count(*) from pg_prepared_statements", "0"),
    "a cursor": ("declare left_c cursor with hold for select 1", "select count(*) from pg_cursors", "0"),
}


@pytest.fixture
def roles(pg):
    """A role that alice may become."""
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as session:
        session.execute("do $$ begin create role bob; exception when duplicate_object then null; end $$")
        session.execute("grant bob to alice")


@pytest.mark.parametrize("when", ["in a transaction", "behind a commit", "behind a rollback", "with its answer unread", "without its sync"])
@pytest.mark.parametrize("name", LEFT)
def test_a_client_that_vanishes_leaves_nothing(pooled, roles, name, when):
    """It changes its session and is gone, at whatever moment: the next client finds a new one."""
    change, question, expected = LEFT[name]
    pooler = pooled(default_pool_size=1)
    for _ in range(3):
        session = pooler.raw()
        if when == "with its answer unread":
            session.send(query(change))
        elif when == "without its sync":
            session.send(parse("", change) + bind("", "") + execute())
        else:
            session.query("begin")
            session.query(change)
            if when != "in a transaction":
                session.query("commit" if when == "behind a commit" else "rollback")
        session.reset()
        with pooler.raw() as other:
            if name == "a lock":
                # Where its server was closed, PostgreSQL gives up the lock when that process has ended.
                eventually(lambda other=other: other.value(question) == expected, "no client has the lock")
            assert other.value(question) == expected
            other.query("select pg_advisory_unlock_all()")


@pytest.mark.parametrize(("text", "reason"), [("load 'plpgsql'", "LOAD"), ("select setseed(0.5)", "setseed")])
def test_what_cannot_be_taken_back_ends_with_its_server(pooled, text, reason):
    """A loaded library and a seed stay with their client as long as it is there; no other client gets that server after it."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        session.query(text)
        own = session.value("select pg_backend_pid()")
        assert [row["pinned"].lower() for row in pooler.show("clients_extended") if row["database"] == "app"][0] != "", reason
        assert session.value("select pg_backend_pid()") == own
        session.terminate()
    with pooler.raw() as other:
        assert other.value("select pg_backend_pid()") != own


def test_a_seed_gives_its_client_the_same_numbers_as_directly(pooled, pg):
    """`setseed`, and other clients that ask for numbers in between."""
    pooler = pooled(default_pool_size=2)
    with Raw(("127.0.0.1", pg.port)) as direct:
        direct.login("alice", "app", "")
        direct.query("select setseed(0.25)")
        expected = [direct.value("select random()") for _ in range(5)]
    with pooler.raw() as session, pooler.raw() as other:
        session.query("select setseed(0.25)")
        got = []
        for _ in range(5):
            got.append(session.value("select random()"))
            other.query("select random()")
        assert got == expected


def test_a_blocking_lock_waits_for_the_other_client(pooled):
    """A client waits for an advisory lock that another one holds, until that unlocks it, and until that leaves."""
    pooler = pooled(default_pool_size=2)
    for end in ("unlock", "leave"):
        holder, waiter = pooler.raw(), pooler.raw()
        holder.query("select pg_advisory_lock(8820)")
        waiter.send(query("select pg_advisory_lock(8820)"))
        assert waiter.quiet(0.2)
        if end == "unlock":
            holder.query("select pg_advisory_unlock(8820)")
        else:
            holder.hang_up()
        assert waiter.until("Z").commands == ["SELECT 1"]
        waiter.terminate()
        holder.hang_up()
        eventually(lambda: sum(int(row["sv_pinned"]) for row in pooler.show("pools_extended")) == 0, "no client keeps a server")


def test_in_session_pooling_the_process_id_is_the_servers(pooled, pg):
    """`pg_backend_pid()` is what was told at login; `pg_terminate_backend` of it ends this client, and no other."""
    pooler = pooled(pool_mode="session", default_pool_size=3)
    with pooler.raw() as one, pooler.raw() as two:
        for session in (one, two):
            assert session.value("select pg_backend_pid()") == str(session.pid)
        two.query(f"select pg_terminate_backend({one.pid})")
        with pytest.raises(Closed) as end:
            one.query("select 1")
        assert end.value.error["C"] == "57P01"
        assert two.value("select pg_backend_pid()") == str(two.pid)


@pytest.mark.needs("a server from the login on in session pooling")
def test_in_session_pooling_a_client_ends_with_its_server_before_it_has_asked_for_anything(pooled, pg):
    """Its server is terminated: it is told 57P01 at once, as on a connection of its own; another client goes on."""
    pooler = pooled(pool_mode="session", default_pool_size=3)
    with pooler.raw() as one, pooler.raw() as two:
        pg.sql("select pg_terminate_backend(%s)", (one.pid,))
        error = one.until_closed().errors[-1]
        assert (error["S"], error["C"]) == ("FATAL", "57P01")
        assert error["M"] == "terminating connection due to administrator command"
        assert two.value("select pg_backend_pid()") == str(two.pid)


def test_a_table_that_another_client_drops_is_no_loss_of_a_session(pooled):
    """Statements by SQL over it cannot be prepared again: they are an error for their client, which goes on."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as two:
        two.query("create table dropped_by_two (a int)")
        one.query("prepare d as select * from dropped_by_two")
        one.query("prepare stays as select 5")
        assert one.query("execute d").rows == []
        two.query("drop table dropped_by_two")
        blockers = [pooler.raw() for _ in range(2)]
        for turn in range(4):
            for blocker in blockers:
                blocker.query(f"set left.turn = '{turn}'")
            assert one.query("execute d").error["C"] in ("26000", "42P01")
            assert one.value("execute stays") == "5"


def test_two_clients_in_turn_many_times(pooled):
    """Two clients set the same custom parameter to different values in turn, from two threads, on one server."""
    pooler = pooled(default_pool_size=1)
    faults = []

    def work(who):
        try:
            with pooler.raw() as session:
                for turn in range(500):
                    session.query(f"set app.whose = '{who}{turn % 5}'")
                    assert session.value("show app.whose") == f"{who}{turn % 5}"
        except Exception as fault:  # noqa: BLE001  # reported below
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(who,)) for who in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults

"""Clients and servers that go away at every bad moment: what it costs, and that no other client notices."""

import os
import signal
import time

import pytest

from harness.machine import eventually
from harness.wire import SYNC, Closed, Raw, bind, execute, group, parse, query, startup


def pids(pg):
    return {b[0] for b in pg.backends("app")}


@pytest.mark.parametrize("how", ["hang_up", "reset", "terminate"])
def test_mid_transaction_costs_exactly_one_server(pooled, pg, how):
    """A client goes away inside a transaction: its work is rolled back, its server closed, the other servers stay."""
    pooler = pooled(default_pool_size=3)
    clients = [pooler.raw() for _ in range(3)]
    for client in clients:
        client.query("begin")
    before = pids(pg)
    assert len(before) == 3
    victim = int(clients[0].value("select pg_backend_pid()"))
    clients[0].query("insert into scratch values (50, 1)")
    getattr(clients[0], how)()
    eventually(lambda: victim not in pids(pg), "the vanished client's server is gone")
    assert before - pids(pg) == {victim}
    for client in clients[1:]:
        assert client.query("commit").status == "I"
    with pooler.raw() as other:
        assert other.value("select count(*) from scratch where who = 50") == "0"
    assert len(pids(pg)) <= 3


def test_between_transactions_costs_nothing(pooled, pg):
    """A client that goes away while it is idle leaves the server for the next one."""
    pooler = pooled(default_pool_size=1)
    seen = set()
    for how in ("hang_up", "reset", "terminate") * 3:
        client = pooler.raw()
        seen.add(client.value("select pg_backend_pid()"))
        getattr(client, how)()
    assert len(seen) == 1


def test_with_a_statement_running(pooled, pg):
    """A client goes away while its statement runs: no other client gets its answer."""
    pooler = pooled(default_pool_size=1)
    client = pooler.raw()
    client.value("select 1")
    client.send(query("select 'not for you' from pg_sleep(0.5)"))
    time.sleep(0.1)
    client.hang_up()
    with pooler.raw() as other:
        for n in range(20):
            assert other.value(f"select {n}") == str(n)
            time.sleep(0.05)


@pytest.mark.needs("pipelines known to the pooler")
def test_with_a_pipeline_in_flight(pooled):
    """The same with fifty groups in flight."""
    pooler = pooled(default_pool_size=1)
    client = pooler.raw()
    client.send(b"".join(group("", "select 'not for you' from pg_sleep(0.01)") for _ in range(50)))
    client.until("Z")
    client.hang_up()
    with pooler.raw() as other:
        for n in range(20):
            assert other.value(f"select {n}") == str(n)


def test_in_the_middle_of_a_message(pooled):
    """Half a message, then gone: the half never reaches another client's session."""
    pooler = pooled(default_pool_size=1)
    whole = query("select 'half'") + group("", "select 'other half'")
    for cut in range(1, len(whole), 3):
        client = pooler.raw()
        client.send(whole[:cut])
        client.hang_up()
    with pooler.raw() as other:
        assert other.value("select 'mine'") == "mine"


def test_without_its_sync(pooled):
    """Parse, Bind, Execute without Sync, then gone: the open group is not the next client's problem."""
    pooler = pooled(default_pool_size=1)
    client = pooler.raw()
    client.send(parse("", "insert into scratch values (51, 1)") + bind("", "") + execute())
    time.sleep(0.1)
    client.hang_up()
    with pooler.raw() as other:
        assert other.value("select count(*) from scratch where who = 51") == "0"


def test_while_waiting(pooled):
    """Clients that leave the queue delay no other client: the next one gets the server."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as holder, pooler.raw() as last:
        holder.query("begin")
        leavers = [pooler.raw() for _ in range(10)]
        for client in leavers:
            client.send(query("select 'nobody reads this'"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 10, "ten wait")
        last.send(query("select 'last'"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 11, "eleven wait")
        for client in leavers:
            client.reset()
        holder.query("commit")
        assert last.until("Z").rows == [["last"]]
        eventually(lambda: pooler.pool()["cl_active"] == 2 and pooler.pool()["cl_waiting"] == 0, "the leavers are out of the books")


@pytest.mark.needs("waiting clients are watched")
def test_a_waiting_client_that_leaves_is_noticed(pooled):
    """The queue's length follows its clients: a client that hangs up while it waits is out at once, and its statement never runs."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as holder:
        holder.query("begin")
        leavers = [pooler.raw() for _ in range(5)]
        for client in leavers:
            client.send(query("insert into scratch values (52, 1)"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 5, "five wait")
        for client in leavers:
            client.reset()
        eventually(lambda: pooler.pool()["cl_waiting"] == 0, "no client waits")
        holder.query("commit")
        assert holder.value("select count(*) from scratch where who = 52") == "0"


def test_during_login(pooled):
    """Connections that end at each point of the startup packet and of the authentication leave nothing behind."""
    pooler = pooled(auth_type="md5")
    packet = startup({"user": "alice", "database": "app"})
    with pooler.raw() as client:
        assert client.value("select 1") == "1"
        # What it keeps open is open then; this client goes.
        before = pooler.open_files() - 1
    for cut in range(0, len(packet) + 1, 2):
        with Raw(pooler.address) as client:
            client.send(packet[:cut])
    eventually(lambda: pooler.open_files() <= before, "all file descriptors are given back")
    with pooler.raw(password="pw-of-alice") as session:
        assert session.value("select 1") == "1"


def test_fifty_at_once(pooled, pg):
    """Fifty clients, ten of them in transactions, vanish at once: the pool recovers and never exceeds its size."""
    pooler = pooled(default_pool_size=10)
    clients = [pooler.raw() for _ in range(50)]
    for client in clients[:10]:
        client.query("begin")
    for client in clients[10:]:
        client.send(query("select pg_sleep(0.01)"))
    eventually(lambda: pooler.pool()["cl_waiting"] == 40, "forty wait")
    for client in clients:
        client.reset()
    with pooler.raw() as other:
        for _ in range(20):
            assert other.value("select 1") == "1"
            assert len(pooler.servers()) <= 10
    # PostgreSQL notices the end of a connection in its own time.
    eventually(lambda: len(pids(pg)) <= 10, "PostgreSQL has no more")
    eventually(lambda: pooler.pool()["cl_active"] == 0, "no client is left in the books")


def test_an_idle_server_that_dies(pooled, pg):
    """PostgreSQL ends an idle server connection: the next statement runs on another and its client notices nothing."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        for _ in range(5):
            pid = session.value("select pg_backend_pid()")
            pg.sql(f"select pg_terminate_backend({pid})")
            eventually(lambda: not pooler.servers(), "the pooler has noticed")
            assert session.value("select 1") == "1"


def test_a_busy_server_that_dies(pooled, pg):
    """The server dies under a running statement: that client is told and disconnected, the other clients are not."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as victim, pooler.raw() as other:
        other.query("begin")
        pid = victim.value("select pg_backend_pid()")
        victim.send(query("select pg_sleep(30)"))
        eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
        pg.sql(f"select pg_terminate_backend({pid})")
        ended = victim.until_closed()
        assert ended.errors and ended.errors[0]["C"] in ("57P01", "08P01", "08006")
        assert other.query("commit").status == "I"
    with pooler.raw() as another:
        assert another.value("select 1") == "1"


def test_a_killed_server(pooled, pg):
    """SIGKILL of a backend: PostgreSQL restarts all; clients of the pooler are told, later ones are served."""
    pooler = pooled(default_pool_size=2, server_login_retry=1)
    with pooler.raw() as busy, pooler.raw() as idle:
        pid = int(busy.value("select pg_backend_pid()"))
        idle.value("select 1")
        busy.query("begin")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Closed):
            busy.query("select 1")

        def served():
            try:
                with pooler.raw() as session:
                    return session.value("select 1") == "1"
            except Closed:
                return False

        eventually(served, "clients are served again", timeout_s=20)


def test_a_restart_of_postgres(pooled, pg):
    """PostgreSQL stops and starts: idle clients stay connected and go on working."""
    pooler = pooled(default_pool_size=2, server_login_retry=1)
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
        pg.stop()
        eventually(lambda: not pooler.servers(), "the pooler has noticed")
        pg.start()

        def again():
            try:
                return session.value("select 2") == "2"
            except AssertionError:
                return False

        eventually(again, "the same client is served", timeout_s=20)


def test_postgres_is_down(pooled, pg):
    """No PostgreSQL: a new client gets a clear error, not a hang; when it is back, so is service."""
    pooler = pooled(default_pool_size=2, server_login_retry=1, server_connect_timeout=2, query_wait_timeout=3, client_login_timeout=3)
    pg.stop()
    try:
        with pytest.raises(Closed) as refused, pooler.raw(timeout_s=30) as session:
            session.query("select 1")
        assert refused.value.error["S"] == "FATAL"
    finally:
        pg.start()

    def served():
        try:
            with pooler.raw() as session:
                return session.value("select 1") == "1"
        except Closed:
            return False

    eventually(served, "clients are served again", timeout_s=20)


def test_a_failed_database_disturbs_no_other(pooled, pg):
    """One database of the pooler points nowhere; clients of another never notice."""
    pooler = pooled(databases={"nowhere": "host=127.0.0.1 port=1 dbname=app"}, server_login_retry=1, query_wait_timeout=2, client_login_timeout=2)
    with pooler.raw() as good:
        for _ in range(3):
            with pytest.raises(Closed), pooler.raw("nowhere") as bad:
                bad.query("select 1")
            assert good.value("select 1") == "1"


def test_no_file_descriptor_is_lost(pooled, pg):
    """A thousand clients that come and go, politely and not: as many open files afterwards as before."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as session:
        session.value("select 1")
    before = pooler.open_files()
    for turn in range(250):
        clients = [pooler.raw() for _ in range(4)]
        clients[0].terminate()
        clients[1].hang_up()
        clients[2].send(SYNC)
        clients[2].reset()
        clients[3].value("select 1")
        clients[3].terminate()
    eventually(lambda: pooler.open_files() <= before + 2, "all file descriptors are given back")

"""Clients that leave while their statements run, in order and not: what PostgreSQL runs, and what counts as running."""

import socket
import time

import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import TERMINATE, group, query

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer closes the server connection and forgets it")

MODES = ["transaction", "session", "statement"]


def rows_of(pg, who):
    return pg.sql(f"select count(*) from scratch where who = {who}")[0][0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", ["simple", "extended"])
def test_a_statement_and_terminate_in_one_packet(pooled, pg, mode, protocol):
    """PostgreSQL runs what stands ahead of Terminate: 50 of 50 changes are committed, with and without the client's patience."""
    pg.sql("delete from scratch where who = 61")
    pooler = pooled(pool_mode=mode, default_pool_size=3)
    for n in range(50):
        client = pooler.raw()
        text = f"insert into scratch values (61, {n})"
        client.send((query(text) if protocol == "simple" else group("", text)) + TERMINATE)
        client.hang_up()
    eventually(lambda: rows_of(pg, 61) == 50, "all changes are there", timeout_s=60)
    pg.sql("delete from scratch where who = 61")


@pytest.mark.parametrize("how", ["hang_up", "reset"])
def test_a_commit_whose_client_is_gone_at_once(pooled, pg, how):
    """The transaction is committed, as PostgreSQL does it."""
    pg.sql("delete from scratch where who = 62")
    pooler = pooled(default_pool_size=3)
    for n in range(20):
        client = pooler.raw()
        client.query("begin")
        client.query(f"insert into scratch values (62, {n})")
        client.send(query("commit"))
        # The bytes are in the pooler's kernel; a reset would take back what was not read.
        time.sleep(0.05 if how == "reset" else 0)
        getattr(client, how)()
    eventually(lambda: rows_of(pg, 62) == 20, "all are committed", timeout_s=60)
    pg.sql("delete from scratch where who = 62")


def test_terminate_ends_an_open_transaction(pooled, pg):
    """What the client has not committed is rolled back, although its last statement runs."""
    pg.sql("delete from scratch where who = 63")
    pooler = pooled(default_pool_size=1)
    client = pooler.raw()
    client.query("begin")
    client.send(query("insert into scratch select 63, 1 from pg_sleep(0.3)") + TERMINATE)
    client.hang_up()
    with pooler.raw() as other:
        assert other.value("select count(*) from scratch where who = 63") == "0"


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_vanished_clients_do_not_pile_up(pooled, pg, mode):
    """Twenty clients give up while their statements run: PostgreSQL never has more than two, and the next client is served."""
    pooler = pooled(pool_mode=mode, default_pool_size=20, max_db_connections=2, cancel_vanished_after=0.5)
    highest = 0
    for _ in range(10):
        clients = [pooler.raw() for _ in range(2)]
        for client in clients:
            client.send(query("select pg_sleep(600) /* abandoned */"))
        eventually(lambda: len(pg.running("abandoned")) == 2, "they run", timeout_s=30)
        for client in clients:
            client.hang_up()
        highest = max(highest, len(pg.backends("app")))
        eventually(lambda: not pg.running("abandoned"), "they are canceled", timeout_s=30)
        highest = max(highest, len(pg.backends("app")))
    assert highest <= 2
    with pooler.raw() as other:
        assert other.value("select 1") == "1"


def test_a_statement_that_may_run_to_its_end_counts_until_then(pooled, pg):
    """`cancel_vanished_after=0`: nothing is canceled, and no other server takes the place."""
    pg.sql("delete from scratch where who = 64")
    pooler = pooled(default_pool_size=1, cancel_vanished_after=0)
    client = pooler.raw()
    client.send(query("insert into scratch select 64, 1 from pg_sleep(3)"))
    eventually(lambda: pg.running("scratch select 64"), "it runs")
    client.hang_up()
    with pooler.raw() as other:
        assert other.value("select count(*) from scratch where who = 64") == "1"
    assert len(pg.backends("app")) == 1


def test_query_timeout_ends_the_statement_in_postgresql(pooled, pg):
    """The client is told, and PostgreSQL does not go on."""
    pooler = pooled(default_pool_size=1)
    pooler.limit(query_timeout=1)
    with pooler.raw() as client:
        client.send(query("select pg_sleep(600) /* too long */"))
        client.until_closed()
    eventually(lambda: not pg.running("too long"), "it was canceled", timeout_s=30)


@pytest.mark.parametrize("first", [TERMINATE, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x04", b"\xff\xff\xff\xff\xff"])
def test_no_startup_packet(pooled, pg, first):
    """The connection is closed in silence, by pgweir and by PostgreSQL."""
    pooler = pooled()
    for address in (pooler.address, ("127.0.0.1", pg.port)):
        with socket.create_connection(address, timeout=20) as client:
            client.sendall(first)
            try:
                said = client.recv(100)
            except ConnectionResetError:
                said = b""
            assert said == b""


def test_a_session_that_idles_is_closed(pooled):
    """`client_idle_timeout` in session pooling, after a statement."""
    pooler = pooled(pool_mode="session", client_idle_timeout=1)
    with pooler.raw() as client:
        assert client.value("select 1 from pg_sleep(2)") == "1"
        end = client.until_closed()
        assert end.errors[-1]["M"] == "client_idle_timeout"

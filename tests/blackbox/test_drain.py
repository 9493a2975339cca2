"""SIGTERM with shutdown_drain_seconds: not ready at once, clients still come in, then transactions end and the process with them."""

import os
import signal
import urllib.error
import urllib.request

import psycopg
import pytest
from harness.machine import eventually, free_port
from harness.pooler import kind

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer has no shutdown_drain_seconds")


def ready(port):
    """Status and words of /readyz."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def draining(pooled):
    """A pooler that drains for this time, and the port of its HTTP server."""

    def start(seconds):
        web = free_port()
        pooler = pooled(shutdown_drain_seconds=seconds, http_listen=f"127.0.0.1:{web}", workers=2)
        eventually(lambda: ready(web)[0] == 200, "it is ready")
        return pooler, web

    return start


def test_a_drain_accepts_clients_and_is_not_ready(draining):
    """While it drains, clients come in and are served; a reload changes nothing of that; SHUTDOWN at the console ends it."""
    pooler, web = draining(3600)
    pooler.signal(signal.SIGTERM)
    pooler.logged("got SIGTERM, draining")
    eventually(lambda: ready(web) == (503, b"draining\n"), "it is not ready")
    os.kill(pooler.pid, signal.SIGHUP)
    pooler.logged("got SIGHUP")
    with pooler.connect() as late:
        assert late.execute("select 2").fetchone() == (2,)
    assert ready(web) == (503, b"draining\n")
    pooler.expect_exit = True
    pooler.admin("SHUTDOWN WAIT_FOR_SERVERS")
    assert pooler.wait_exit() == 0


def test_after_a_drain_transactions_end_and_clients_go(draining):
    """After the drain no client comes in, an open transaction goes on to its end, an idle client is not waited for, exit code 0."""
    pooler, web = draining(1)
    with pooler.connect() as idle, pooler.connect() as busy:
        idle.execute("select 1")
        busy.execute("begin")
        pooler.signal(signal.SIGTERM)
        pooler.logged("drain is over")
        eventually(lambda: ready(web) == (503, b"shutting down\n"), "it is shutting down")
        with pytest.raises(psycopg.OperationalError):
            pooler.connect()
        assert pooler.process.poll() is None, "the transaction is waited for"
        busy.execute("select 2")
        busy.execute("commit")
        assert pooler.wait_exit() == 0


def test_a_second_signal_ends_a_drain(pooled):
    """SIGTERM again while it drains: the process ends at once."""
    pooler = pooled(shutdown_drain_seconds=3600)
    with pooler.raw() as session:
        session.query("begin")
        pooler.signal(signal.SIGTERM)
        pooler.logged("got SIGTERM, draining")
        assert session.value("select 2") == "2"
        pooler.signal(signal.SIGTERM)
        assert pooler.wait_exit(5) == 0

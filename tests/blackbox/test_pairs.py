"""Two poolers side by side: behind HAProxy, and with both in a client's connection string."""

import contextlib
import re
import signal
import urllib.request

import psycopg
import pytest

from harness.machine import eventually, free_port
from harness.pair import HAPROXY, Balancer
from harness.pooler import kind

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no /readyz")


class Pair:
    """Two poolers that know each other as peers."""

    def __init__(self, pooled):
        self.web = [free_port(), free_port()]
        self.members = [pooled(start=False, peer_id=n, http_listen=str(port)) for n, port in enumerate(self.web, 1)]
        peers = [f"{n} = host=127.0.0.1 port={member.port}" for n, member in enumerate(self.members, 1)]
        for member in self.members:
            member.ini_tail = "\n".join(["[peers]", *peers, ""])
            member.write_ini()
            member.start()

    def clients(self):
        """The number of clients that each pooler has in its pools."""
        return [len(member.show("CLIENTS", database="app")) for member in self.members]


@pytest.fixture
def pair(pooled):
    return Pair(pooled)


@pytest.fixture
def balancer(pair):
    """The port of an HAProxy that sends clients to the poolers in turn, as docs/operate/high-availability.md says."""
    if HAPROXY is None:
        pytest.skip("haproxy is not installed (tests/setup.sh installs it)")
    port = free_port()
    servers = [("127.0.0.1", member.port, web) for member, web in zip(pair.members, pair.web, strict=True)]
    balancer = Balancer(port, servers, balance="roundrobin", check="inter 200ms fall 2 rise 1")
    eventually(balancer.are_up, "HAProxy has found the poolers ready")
    yield port
    balancer.end()


def connect(port, host="127.0.0.1"):
    """A client of the pair, as alice on app."""
    return psycopg.connect(
        host=host, port=port, dbname="app", user="alice", password="pw-of-alice", autocommit=True, connect_timeout=2, sslmode="disable"
    )


def cancel_each(pg, clients):
    """Cancels a statement of each of these clients, several times, by its own connection string."""
    for client in clients:
        for _ in range(2):
            # libpq opens a connection for each cancel request: a balancer may send that to the other pooler.
            sleeping = pg.when_running("pg_sleep(30)", client.cancel)
            with pytest.raises(psycopg.errors.QueryCanceled):
                client.execute("select pg_sleep(30)")
            sleeping.join(30)
            assert client.execute("select 7").fetchone() == (7,)


def test_a_cancel_request_behind_a_balancer(pair, balancer, pg):
    """HAProxy gives each connection to the next pooler, so half of the cancel requests arrive at the wrong one: all find their statement."""
    clients = [connect(balancer) for _ in range(4)]
    for client in clients:
        client.execute("select 1")
    assert pair.clients() == [2, 2]
    cancel_each(pg, clients)
    # Nothing else came by HAProxy, which takes turns: of the two requests for each client one arrived at each pooler.
    assert [requests(port) for port in pair.web] == [6, 6], "each has 4 of clients, and 2 that the other one passed on"
    for client in clients:
        client.close()


def requests(port):
    """The number of cancel requests that a pooler has received, of clients and of its peer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(re.search(r"^pgweir_cancel_requests_total (\d+)", answer.read().decode(), re.M)[1])


def test_a_paused_pooler_keeps_its_clients(pair, balancer):
    """HAProxy disconnects the clients of a pooler that is not ready: not those of one that is paused."""
    with connect(balancer) as one, connect(balancer) as other:
        for client in (one, other):
            client.execute("select 1")
        for member in pair.members:
            member.admin("PAUSE")
        for member in pair.members:
            member.admin("RESUME")
        assert [client.execute("select 7").fetchone() for client in (one, other)] == [(7,), (7,)]


def test_a_draining_pooler_gets_no_new_clients(pair, balancer):
    """A pooler that drains says so, and HAProxy sends new clients to the other one."""
    leaving, staying = pair.members
    leaving.write_ini(shutdown_drain_seconds=3600)
    leaving.reload()
    leaving.signal(signal.SIGTERM)
    leaving.logged("draining")

    def all_at_the_other():
        with contextlib.ExitStack() as clients:
            try:
                for _ in range(4):
                    clients.enter_context(connect(balancer)).execute("select 1")
            except psycopg.OperationalError:
                # HAProxy has not asked since the pooler began to drain.
                return False
            return len(staying.show("CLIENTS", database="app")) == 4

    eventually(all_at_the_other, "new clients reach the other pooler")


def test_both_in_the_connection_string(pair, pg):
    """`host=a,b`: a client whose pooler is killed is served by the other, and a cancel request goes where its client is."""
    ports = ",".join(str(member.port) for member in pair.members)
    with connect(ports, host="127.0.0.1,127.0.0.1") as client:
        cancel_each(pg, [client])
        first, second = pair.members
        first.expect_exit = True
        first.signal(signal.SIGKILL)
        first.process.wait()
        with pytest.raises(psycopg.OperationalError):
            client.execute("select 1")
    with connect(ports, host="127.0.0.1,127.0.0.1") as client:
        assert client.execute("select 7").fetchone() == (7,)
        assert len(second.show("CLIENTS", database="app")) == 1

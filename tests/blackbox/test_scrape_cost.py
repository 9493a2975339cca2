"""What a scrape of /metrics costs where there is much to tell: 1,000 pools and 10,000 clients."""

import os
import resource
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from harness.fake import LOGIN, READY, FakeServer
from harness.machine import free_port
from harness.pooler import Pooler
from harness.wire import message, query, startup

POOLS, CLIENTS, SCRAPES = 1_000, 10_000, 20

CPU_MS_MAX = 50
"""Of a scrape, with an optimized build."""


def behave(conversation):
    """A server that lets every client in and answers every query with nothing."""
    conversation.peer.settimeout(None)
    conversation.startup()
    conversation.send(LOGIN)
    done = message("C", b"SELECT 0\0")
    # A session is brought to its server by extended messages.
    answers = {"Q": done + READY, "P": message("1"), "B": message("2"), "D": message("n"), "E": done, "C": message("3"), "S": READY}
    while (kind := conversation.read()[0]) != "X":
        conversation.send(answers.get(kind, b""))


def cpu_ms(pid):
    """CPU time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def ready(client):
    """Reads up to ReadyForQuery."""
    received = b""
    while not received.endswith(b"Z\0\0\0\5I"):
        more = client.recv(65_536)
        assert more, received
        received += more


@pytest.mark.slow
def test_a_scrape_of_many_pools_and_clients(request):
    """The CPU time of a scrape is printed; `-s` shows it. Nothing is asserted of builds that are not optimized."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CLIENTS:
        pytest.skip("needs 20,000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
    server = FakeServer(behave, free_port())
    request.addfinalizer(server.stop)
    http = free_port()
    databases = {f"db{number}": f"host=127.0.0.1 port={server.port} user=alice" for number in range(POOLS)}
    pooler = Pooler(
        databases, auth_type="any", max_client_conn=2 * CLIENTS, http_listen=str(http), http_anonymous="all", default_pool_size=1,
        server_tls_sslmode="disable", log_connections=0, log_disconnections=0,
    )  # fmt: skip
    request.addfinalizer(pooler.finish)
    clients = []
    for start in range(0, CLIENTS, 500):
        batch = [socket.create_connection(pooler.address) for _ in range(500)]
        for number, client in enumerate(batch, start):
            client.settimeout(120)
            client.sendall(startup({"user": "alice", "database": f"db{number % POOLS}", "application_name": f"app{number % 20}"}))
        for client in batch:
            ready(client)
        for client in batch:
            client.sendall(query("select 1"))
        for client in batch:
            ready(client)
        clients += batch
    request.addfinalizer(lambda: [client.close() for client in clients])

    def used_ms(scrapes):
        began, before = time.monotonic(), cpu_ms(pooler.pid)
        sizes = [len(urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=60).read()) for _ in range(scrapes)]
        time.sleep(max(0, 10 - (time.monotonic() - began)))
        return (cpu_ms(pooler.pid) - before) / (time.monotonic() - began), time.monotonic() - began, sizes

    idle_ms_per_s, _, _ = used_ms(0)
    busy_ms_per_s, elapsed_s, sizes = used_ms(SCRAPES)
    each_ms = (busy_ms_per_s - idle_ms_per_s) * elapsed_s / SCRAPES
    print(f"\na scrape of {POOLS} pools and {CLIENTS} clients: {each_ms:.1f} ms of CPU, {sizes[-1] / 1e6:.1f} MB; idle: {idle_ms_per_s:.1f} ms/s")
    if "release" in os.environ.get("POOLER", "release"):
        assert each_ms < CPU_MS_MAX

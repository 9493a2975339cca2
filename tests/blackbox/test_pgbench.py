"""pgbench, PostgreSQL's own load tool, through the pooler in each of its protocols: nothing may fail."""

import re
import subprocess

import pytest

MODES = ["simple", "extended", pytest.param("prepared", marks=pytest.mark.needs("prepared statements"))]


def pgbench(pooler, *arguments, seconds=60):
    """Runs pgbench and returns (transactions, failed). So many transactions with `-t`, else so many seconds."""
    length = [] if "-t" in arguments else ["-T", str(seconds)]
    command = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", *length, *arguments, "bench"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr and "aborted" not in done.stderr, done.stderr
    failed = int(re.search(r"number of failed transactions: (\d+)", done.stdout)[1])
    processed = int(re.search(r"number of transactions actually processed: (\d+)", done.stdout)[1])
    return processed, failed


@pytest.mark.parametrize(
    "protocol", ["simple", "extended", pytest.param("prepared", marks=pytest.mark.needs("known statements prepared without a server"))]
)
def test_pgbench_in_transaction_pooling(poolers, bench, protocol):
    """The TPC-B-like script (7 statements in a transaction) by 20 clients over 5 servers.

    pgbench prepares with blocking calls, in a thread that other clients share. When those hold all servers, a client's Parse must
    not have to wait for one of them, or no client ever goes on.
    """
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=5)
    processed, failed = pgbench(pooler, "-M", protocol, "-c", "20", "-j", "2", "-t", "100")
    assert processed == 2000 and failed == 0
    assert len(bench.backends("bench")) <= 5


@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_pgbench_in_session_pooling(poolers, bench, protocol):
    """The same by 5 clients with a server each."""
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=5, pool_mode="session")
    processed, failed = pgbench(pooler, "-M", protocol, "-c", "5", "-j", "2", "-t", "200")
    assert processed == 1000 and failed == 0


@pytest.mark.parametrize("protocol", MODES)
def test_pgbench_with_two_hundred_clients_on_ten_servers(poolers, bench, protocol):
    """Far more clients than servers: short selects, no client starves, nothing fails, the limit holds."""
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=10)
    processed, failed = pgbench(pooler, "-S", "-M", protocol, "-c", "200", "-j", "2", "-t", "200")
    assert processed == 40_000 and failed == 0
    assert len(bench.backends("bench")) <= 10


@pytest.mark.slow
@pytest.mark.parametrize("script", [["-S"], ["-N"], []], ids=["select", "simple-update", "tpcb"])
@pytest.mark.parametrize(
    "protocol", ["simple", "extended", pytest.param("prepared", marks=pytest.mark.needs("known statements prepared without a server"))]
)
def test_pgbench_with_a_thousand_clients_for_a_minute(poolers, bench, protocol, script):
    """1000 clients on a pool of 20 against max_connections = 100, for 60 seconds, without a single failure."""
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=20, max_client_conn=1200)
    processed, failed = pgbench(pooler, *script, "-M", protocol, "-c", "1000", "-j", "2", seconds=60)
    assert processed >= 1000 and failed == 0
    assert len(bench.backends("bench")) <= 20


def test_pgbench_reconnecting_for_every_transaction(poolers, bench):
    """`-C`: a new client connection for every transaction."""
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=5)
    processed, failed = pgbench(pooler, "-S", "-C", "-c", "10", "-j", "2", "-t", "200")
    assert processed == 2000 and failed == 0

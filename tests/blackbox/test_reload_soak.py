"""Random valid reloads under load: no transaction is lost, nothing leaks. A short run here; `--slow` makes two thousand reloads."""

import random
import subprocess

import pytest

from harness.machine import eventually

CHANGES = {
    "default_pool_size": [2, 3, 5, 8, 13],
    "min_pool_size": [0, 1, 3],
    "reserve_pool_size": [0, 2],
    "reserve_pool_timeout": [0, 1, 5],
    "server_lifetime": [1, 5, 3600],
    "server_idle_timeout": [1, 60, 600],
    "server_check_delay": [0, 1, 30],
    "server_check_query": ["", "<empty>", "select 1"],
    "server_round_robin": [0, 1],
    "server_reset_query_always": [0, 1],
    "max_prepared_statements": [2, 20, 200],
    "max_db_connections": [0, 10],
    "max_user_connections": [0, 12],
    "max_client_conn": [300, 500],
    "query_wait_timeout": [0, 60, 120],
    "query_wait_notify": [0, 1, 5],
    "idle_transaction_timeout": [0, 60],
    "client_idle_timeout": [0, 60],
    "server_tls_sslmode": ["disable", "prefer", "require"],
    "log_connections": [0, 1],
    "log_stats": [0, 1],
    "stats_period": [1, 60],
    "verbose": [0, 1],
    "tcp_keepalive": [0, 1],
    "application_name_add_host": [0, 1],
    "max_packet_size": [65536, 2147483647],
    "auth_type": ["trust", "md5", "scram-sha-256"],
    "stats_users": ["stats", "stats, bob", ""],
}
"""Settings that a reload may change under running clients, with values that all are valid."""


def draw(randomness, pg):
    """The next configuration: a few settings, and now and then the database's line."""
    settings = {name: randomness.choice(CHANGES[name]) for name in randomness.sample(sorted(CHANGES), 3)}
    line = {
        "pool_size": randomness.choice([None, 3, 6]),
        "connect_query": randomness.choice([None, "'select 1'"]),
        "host": randomness.choice(["127.0.0.1", "localhost"]),
        "application_name": randomness.choice([None, "soak"]),
    }
    return settings, pg.at("bench", **{name: value for name, value in line.items() if value is not None and name != "host"}).replace(
        "host=127.0.0.1", f"host={line['host']}"
    )


def soak(poolers, bench, reloads, clients, seed):
    """Reloads so often while pgbench runs; returns the pooler, at rest again."""
    randomness = random.Random(seed)
    pooler = poolers({"bench": bench.at("bench"), "app": bench.at("app")}, default_pool_size=5, workers=2)
    loads = []

    def reload():
        settings, line = draw(randomness, bench)
        pooler.databases["bench"] = line
        if randomness.random() < 0.2:
            pooler.databases[f"other{randomness.randrange(3)}"] = bench.at("app2")
        elif randomness.random() < 0.2:
            pooler.databases = {name: line for name, line in pooler.databases.items() if not name.startswith("other")}
        pooler.write_ini(**settings)
        with pooler.console() as console:
            answer = console.query("RELOAD")
            assert answer.commands == ["RELOAD"], (settings, answer.errors)

    for _ in range(20):
        reload()
    before = None
    command = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-c", str(clients), "-j", "2", "-T", "3600", "-R", "300"]
    for protocol in ("simple", "prepared"):
        environment = {"PGPASSWORD": "pw-of-alice", "PGSSLMODE": "disable", "PATH": "/usr/bin:/bin"}
        loads.append(
            subprocess.Popen([*command, "-M", protocol, "bench"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
    try:
        eventually(lambda: any(row["total_xact_count"] != "0" for row in pooler.show("STATS", database="bench")), "the load runs")
        for number in range(reloads):
            reload()
            if number == reloads // 4:
                before = pooler.open_files(), pooler.resident_kib()
            for load in loads:
                assert load.poll() is None, load.stderr.read()
        during = pooler.open_files(), pooler.resident_kib()
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    for load in loads:
        said = load.stderr.read()
        assert not any(word in said for word in ("ERROR", "FATAL", "aborted", "closed")), said
    return pooler, before, during


def check(pooler, before, during):
    """What the soak must leave: descriptors and memory as before, and the pooler well."""
    assert during[0] - before[0] < 60, f"open files grew from {before[0]} to {during[0]}"
    assert during[1] - before[1] < 12 * 1024, f"memory grew from {before[1]} to {during[1]} KiB"
    assert pooler.alive()
    eventually(lambda: not pooler.show("CLIENTS", database="bench"), "all clients are gone")


@pytest.mark.needs("all settings of 1.25")
def test_sixty_reloads_under_load(poolers, bench):
    """Sixty random reloads while pgbench runs by two protocols."""
    check(*soak(poolers, bench, reloads=60, clients=8, seed=1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.needs("all settings of 1.25")
def test_two_thousand_reloads_under_load(poolers, bench):
    """A week's worth of reloads."""
    check(*soak(poolers, bench, reloads=2000, clients=20, seed=2))

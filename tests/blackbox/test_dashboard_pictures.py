"""The pictures of the documents: a pooler that is well, one with too much to do, one with a database that is down, and one whose
cluster lost its primary.

    tests/run.sh --slow blackbox/test_dashboard_pictures.py

leaves them in target/dashboard. docs/img has some of them, with 256 colours.
"""

import os
import signal
import subprocess
import time
from contextlib import ExitStack

import pytest
from harness.machine import TESTS, eventually, free_port
from harness.pooler import kind
from harness.wire import Raw, startup
from test_clusters import clustered, node_states, nodes, shown  # noqa: F401
from test_dashboard import PICTURES, chromium

pytestmark = [pytest.mark.slow, pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no dashboard")]

ORDERS = "\\set id random(1, 100000)\nselect abalance from pgbench_accounts where aid = :id;\n\\sleep {think_ms} ms\n"
CHECKOUT = (
    "\\set id random(1, 100000)\nbegin;\nselect abalance from pgbench_accounts where aid = :id;\n\\sleep {think_ms} ms\n"
    "update pgbench_accounts set abalance = abalance + 1 where aid = :id;\ncommit;\n"
)
REPORT = "select bid, count(*), sum(abalance) from pgbench_accounts group by bid;\n\\sleep 400 ms\n"


@pytest.fixture
def scene(pg, poolers):
    """Starts a pooler with databases and loads; each load: database, user, application, script, clients."""
    with ExitStack() as ends:

        def make(loads, **settings):
            if not pg.sql("select 1 from pg_database where datname = 'shop'"):
                pg.sql("create database shop owner alice")
                subprocess.run(["pgbench", "-i", "-q", "-h", "127.0.0.1", "-p", str(pg.port), "-U", "alice", "shop"], check=True, capture_output=True)
                pg.sql("grant select on pgbench_accounts to bob", database="shop")
            http = free_port()
            databases = {"shop": pg.at("shop"), "reports": pg.at("shop"), "old": f"host=127.0.0.1 port={free_port()}"}
            pooler = poolers(databases, http_listen=f"127.0.0.1:{http}", query_wait_timeout=0, log_min_duration_ms=50, **settings)
            for place, (database, user, application, text, clients) in enumerate(loads):
                script = pooler.folder / f"load{place}.sql"
                script.write_text(text)
                where = ["-h", "127.0.0.1", "-p", str(pooler.port), "-U", user, "-c", str(clients), "-T", "300", "-f", str(script), database]
                process = subprocess.Popen(["pgbench", "-n", *where], env=os.environ | {"PGAPPNAME": application}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                ends.callback(process.wait)
                ends.callback(process.kill)
            return pooler, f"http://127.0.0.1:{http}"

        yield make


def take(name, url):
    done = subprocess.run(
        ["node", "pictures.mjs", name], cwd=TESTS / "browser", capture_output=True, text=True, timeout=300,
        env=os.environ | {"URL": url, "PICTURES": str(PICTURES), "CHROMIUM": chromium()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_healthy(scene):
    """Nothing to find: the verdict is green."""
    loads = [("shop", "alice", "orders", ORDERS.format(think_ms=150), 60), ("reports", "bob", "reporting", REPORT, 4)]
    _, url = scene(loads, default_pool_size=10)
    take("healthy", url)


def test_overloaded(scene):
    """More to do than ten servers can, of which six wait for their clients."""
    loads = [("shop", "alice", "checkout", CHECKOUT.format(think_ms=40), 60), ("reports", "bob", "reporting", REPORT, 4)]
    pooler, url = scene(loads, default_pool_size=10)
    with ExitStack() as idle:
        for _ in range(6):
            idle.enter_context(pooler.raw("shop", application_name="batch")).query("begin; select 1")
        take("overloaded", url)


def test_down(scene):
    """One of three databases has no server."""
    pooler, url = scene([("shop", "alice", "orders", ORDERS.format(think_ms=150), 60)], default_pool_size=10, server_login_retry=15)
    with Raw(pooler.address) as client:
        client.send(startup({"user": "alice", "database": "old", "application_name": "archive"}))
        take("down", url)


def test_cluster(nodes, clustered):  # noqa: F811
    """A primary was lost under load; clients waited until one of two standbys was promoted, and the other follows it."""
    three = nodes(3)
    first, second, third = three.all
    http = free_port()
    pooler = clustered(three, http_listen=f"127.0.0.1:{http}", query_wait_timeout=0)
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby", "m3": "standby"}, "all nodes are known")
    script = pooler.folder / "load.sql"
    script.write_text("insert into changes values ('p', 1);\n\\sleep 20 ms\n")
    load = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-c", "12", "-T", "200", "-f", str(script), "app"]
    process = subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(40)  # to be seen in the lines of time
        first.stop(signal.SIGQUIT)
        eventually(lambda: node_states(pooler)["m1"] == "down", "the old primary is down")
        time.sleep(4)
        second.promote()
        eventually(lambda: shown(pooler)["primary"] == "m2", "the standby is the primary")
        third.sql(f"alter system set primary_conninfo = 'host=127.0.0.1 port={second.port} user=u_repl'")
        third.sql("select pg_reload_conf()")
        time.sleep(15)
        take("cluster", f"http://127.0.0.1:{http}")
    finally:
        process.kill()
        process.wait()

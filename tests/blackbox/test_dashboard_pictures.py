"""The pictures of the documents: a pooler that is well, one with too much to do, and one with a database that is down.

    tests/run.sh --slow blackbox/test_dashboard_pictures.py

leaves them in target/dashboard. docs/img has some of them, with 256 colours.
"""

import os
import subprocess
from contextlib import ExitStack

import pytest
from harness.machine import TESTS, free_port
from harness.pooler import kind
from harness.wire import Raw, startup
from test_dashboard import PICTURES, chromium

pytestmark = [pytest.mark.slow, pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no dashboard"), pytest.mark.timeout(400)]

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

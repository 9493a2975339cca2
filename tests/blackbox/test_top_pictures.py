"""The pictures of docs/operate/top.md: `pgweir top` of a pooler with too much to do, in two sizes.

    tests/run.sh --slow blackbox/test_top_pictures.py

leaves the screens and their pictures in target/top. docs/img has copies of top-*.svg.
"""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from harness.machine import REPOSITORY, eventually
from harness.pooler import binary, kind
from harness.terminal import Terminal
from harness.wire import Raw, startup
from test_dashboard_pictures import CHECKOUT, REPORT, scene  # noqa: F401: a fixture

PICTURES = REPOSITORY / "target" / "top"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such command")]


def take(terminal, name, title):
    """Writes what the terminal shows, and its picture."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    capture, picture = PICTURES / f"{name}.json", PICTURES / f"{name}.svg"
    capture.write_text(json.dumps(terminal.capture()))
    subprocess.run([sys.executable, REPOSITORY / "docs" / "img" / "terminal.py", capture, picture, title], check=True)


def test_overloaded(scene):  # noqa: F811
    """Ten servers, of which four wait for their clients; another database cannot be reached."""
    loads = [("shop", "alice", "checkout", CHECKOUT.format(think_ms=40), 40), ("reports", "bob", "reporting", REPORT, 4)]
    pooler, _ = scene(loads, default_pool_size=10, server_login_retry=15)
    url = f"postgres://admin@127.0.0.1:{pooler.port}"
    with ExitStack() as idle:
        for _ in range(4):
            idle.enter_context(pooler.raw("shop", application_name="batch")).query("begin; select 1")
        archive = idle.enter_context(Raw(pooler.address))
        archive.send(startup({"user": "alice", "database": "old", "application_name": "archive"}))
        for name, columns, lines in (("top-80x24", 80, 24), ("top-160x50", 160, 50)):
            with Terminal(binary(), "top", "--url", url, "--interval=1", columns=columns, lines=lines) as terminal:
                terminal.shows("cannot connect", "all servers busy", "idle in transaction", "update pgbench_accounts")
                # Rates are there.
                eventually(lambda: "after the next reading" not in "\n".join(terminal.lines()), "there are two readings")
                take(terminal, name, f"pgweir top in {columns} columns and {lines} lines: two pools, why their clients wait, and the statements")
                terminal.type("3/batch\r")
                terminal.shows("6 Nodes   /batch", "idle tx")
                terminal.type("k")
                terminal.shows("Disconnect client")
                take(terminal, name.replace("top", "top-question"), "pgweir top asks before it disconnects a client")
                terminal.type("nq")
                assert terminal.ended() == 0

"""The dashboard in a real browser, with pgbench running through the pooler. The stories are in tests/browser/story.mjs."""

import os
import shutil
import subprocess

import pytest
from harness.machine import REPOSITORY, TESTS, free_port
from harness.pooler import binary, kind
from harness.wire import Raw, startup

PICTURES = REPOSITORY / "target" / "dashboard"
"""Screenshots are left there, to be looked at."""


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""


@pytest.fixture
def page(request, poolers, pg):
    """The URL of a dashboard with a load to show: 30 clients, most of them waiting or thinking, on one to 4 server connections.
    For the story of trouble they do not think, and a client asks for a database whose server cannot be reached."""
    story, anonymous = request.param
    trouble = story == "trouble"
    if not pg.sql("select 1 from pg_database where datname = 'bench'"):
        pg.sql("create database bench owner alice")
        subprocess.run(["pgbench", "-i", "-q", "-h", "127.0.0.1", "-p", str(pg.port), "-U", "alice", "bench"], check=True, capture_output=True)
    http = free_port()
    databases = {"bench": pg.at("bench"), "old": f"host=127.0.0.1 port={free_port()}"}
    pooler = poolers(databases, default_pool_size=4, http_listen=f"127.0.0.1:{http}", http_anonymous=anonymous, query_wait_timeout=0)
    script = pooler.folder / "load.sql"
    select = "\\set id random(1, 100000)\nselect abalance from pgbench_accounts where aid = :id;\n"
    script.write_text(f"begin;\n{select}\\sleep 30 ms\ncommit;\n" if trouble else f"{select}\\sleep 50 ms\n")
    load = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-c", "30", "-T", "120", "-M", "prepared"]
    process = subprocess.Popen([*load, "-f", str(script), "bench"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with Raw(pooler.address) as client:
        if trouble:
            client.send(startup({"user": "alice", "database": "old"}))
        yield f"http://127.0.0.1:{http}"
    process.kill()
    process.wait()


@pytest.mark.needs("metrics over HTTP")
@pytest.mark.parametrize(
    "page",
    [*((story, "numbers") for story in ("stranger", "reader", "admin", "phone", "keyboard", "trouble")), ("locked", "none")],
    indirect=True,
    ids=lambda page: page[0],
)
def test_dashboard(page, request):
    """Each story goes to its end, the browser's console stays empty, and axe finds nothing serious on any page."""
    story, _ = request.node.callspec.params["page"]
    done = subprocess.run(
        ["node", "story.mjs", story], cwd=TESTS / "browser", capture_output=True, text=True, timeout=140,
        env=os.environ | {"URL": page, "PICTURES": str(PICTURES), "CHROMIUM": chromium()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(kind() != "pgweir", reason="a subcommand of pgweir")
def test_report_of_bench(tmp_path):
    """The page that `pgweir bench` leaves has its charts, on a screen and on a phone, with nothing that axe finds serious."""
    command = [binary(), "bench", "overhead", "--quick", "--no-peer", "--seconds", "3", "--rounds", "1", "--output", tmp_path / "report"]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run(
        ["node", "report.mjs"], cwd=TESTS / "browser", capture_output=True, text=True, timeout=140,
        env=os.environ | {"URL": (tmp_path / "report" / "report.html").as_uri(), "PICTURES": str(PICTURES), "CHROMIUM": chromium()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

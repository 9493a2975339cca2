"""The dashboard in a real browser, with pgbench running through the pooler. The stories are told in tests/browser/story.mjs."""

import os
import shutil
import subprocess

import pytest
from harness.machine import REPOSITORY, TESTS, free_port
from harness.pooler import binary, kind

PICTURES = REPOSITORY / "target" / "dashboard"
"""Screenshots are left there, to be looked at."""


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""


@pytest.fixture
def page(request, poolers, pg):
    """The URL of a dashboard with a load to show: 30 clients, most of them waiting or thinking, on one to 4 server connections."""
    if not pg.sql("select 1 from pg_database where datname = 'bench'"):
        pg.sql("create database bench owner alice")
        subprocess.run(["pgbench", "-i", "-q", "-h", "127.0.0.1", "-p", str(pg.port), "-U", "alice", "bench"], check=True, capture_output=True)
    http = free_port()
    pooler = poolers({"bench": pg.at("bench")}, default_pool_size=4, http_listen=f"127.0.0.1:{http}", http_anonymous=request.param)
    script = pooler.folder / "load.sql"
    script.write_text("\\set id random(1, 100000)\nselect abalance from pgbench_accounts where aid = :id;\n\\sleep 50 ms\n")
    load = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-c", "30", "-T", "120", "-M", "prepared"]
    process = subprocess.Popen([*load, "-f", str(script), "bench"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{http}"
    process.kill()
    process.wait()


@pytest.mark.needs("metrics over HTTP")
@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "story, page", [*((story, "numbers") for story in ("stranger", "reader", "admin", "phone", "keyboard")), ("locked", "none")], indirect=["page"]
)
def test_dashboard(page, story):
    """Each story goes to its end, the browser's console stays empty, and axe finds nothing serious on any page."""
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

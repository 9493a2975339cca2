"""pgweir bench on a user's server, and everything that can be wrong about it: a clear message, an exit code, nothing left."""

import json
import os
import re
import signal
import shutil
import subprocess
import time

import pytest

from harness.cluster import PASSWORDS
from harness.machine import free_port
from harness.pooler import binary, kind

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="a subcommand of pgweir")


def command(*words):
    return [str(binary()), "bench", *map(str, words)]


def run(*words, timeout_s=120, **environment):
    """Runs pgweir bench to its end; returns the finished process."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout_s, env=os.environ | environment)


def url(cluster, user="u_scram", password=None, port=None):
    return f"postgres://{user}:{PASSWORDS[user] if password is None else password}@127.0.0.1:{port or cluster.port}/app"


@pytest.fixture
def output(tmp_path):
    return tmp_path / "report"


def test_help():
    """Every experiment is named."""
    done = run("--help")
    assert done.returncode == 0
    for word in ("saturation", "reconnect", "storm", "overhead", "thousand", "all", "load", "compare", "peers"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["storm", "--rounds", "0"],
        ["storm", "--postgres", "nowhere"],
        ["storm", "--config", "/nonexistent.ini"],
        ["storm", "--peer", "x=postgres://u@127.0.0.1/d"],
        ["load", "--mix", "/nonexistent"],
        ["compare", "/nonexistent", "/nonexistent"],
    ],
)
def test_wrong_options(words):
    """Exit code 2, and one line that says what is wrong."""
    done = run(*words)
    assert done.returncode == 2 and done.stderr.startswith("pgweir bench: ") and "panicked" not in done.stderr


def test_no_server_listens(output):
    """A server that is not there is named."""
    port = free_port()
    done = run("storm", "--no-peer", "--postgres", f"postgres://u:p@127.0.0.1:{port}/d", "--output", output)
    assert done.returncode == 1 and str(port) in done.stderr and "refused" in done.stderr.lower()
    assert not output.exists()


def test_wrong_password(pg, output):
    """The server's words, and never the password."""
    done = run("storm", "--no-peer", "--postgres", url(pg, password="not-this-one"), "--output", output)
    assert done.returncode == 1 and "28P01" in done.stderr and "not-this-one" not in done.stderr + done.stdout


def test_too_few_connections(pg, output):
    """Told with numbers, before anything is made there."""
    [(most,)] = pg.sql("select setting::int from pg_settings where name = 'max_connections'")
    held = []
    try:
        # The experiment needs 81 connections of its own.
        while pg.sql("select count(*) < %d from pg_stat_activity where backend_type = 'client backend'" % (most - 75)) == [(True,)]:
            held.append(pg.connect("app"))
        done = run("saturation", "--no-peer", "--postgres", url(pg), "--output", output)
    finally:
        for connection in held:
            connection.close()
    assert done.returncode == 1 and "too few connections" in done.stderr and f"max_connections = {most}" in done.stderr
    assert pg.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgweir_bench'", database="app") == [(0,)]


@pytest.mark.slow
def test_a_peer_that_dies(tmp_path, output):
    """The others are measured; which one is left out, and why, is said at the end."""
    dying = tmp_path / "dying"
    dying.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{binary()} "$@" &\nsleep 2\nkill -9 $!\nexit 7\n')
    dying.chmod(0o755)
    done = run("overhead", "--peer", f"dying={dying}", "--seconds", "4", "--rounds", "1", "--output", output)
    assert done.returncode == 1 and "dying was left out" in done.stderr, done.stderr
    targets = json.loads((output / "report.json").read_text())["experiments"][0]["steps"][0]["targets"]
    assert targets["direct"]["medians"]["tps"] > 0 and targets["pgweir"]["medians"]["tps"] > 0


def test_unwritable_output():
    """Told before anything is started."""
    done = run("storm", "--no-peer", "--postgres", "postgres://u:p@127.0.0.1:1/d", "--output", "/proc/nowhere")
    assert done.returncode == 1 and "/proc/nowhere" in done.stderr


def test_interrupted(output):
    """SIGINT in the middle of a run: what was measured is reported, exit code 130, nothing is left."""
    running = subprocess.Popen(
        command("load", "--no-peer", "--seconds", "300", "--scale", "1", "--clients", "5", "--output", output),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for line in running.stderr:
        if line.startswith("starting a throw-away PostgreSQL and filling"):
            break
    time.sleep(2)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "direct" in said
    report = json.loads((output / "load.json").read_text())
    assert report["targets"]["direct"]["medians"]["tps"] > 0
    children = subprocess.run(["ps", "--ppid", str(running.pid), "-o", "pid="], capture_output=True, text=True)
    assert children.stdout.strip() == ""


@pytest.mark.slow
def test_the_generator_is_not_what_limits(tmp_path):
    """Against a server that answers at once it makes at least 1.5 times pgbench's requests in a second of CPU time; against one that
    takes 20 ms both report the same latencies, mean and median within 5 %, from runs that take turns."""
    done = run("generator", "--rounds", "5", "--seconds", "2")
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    [ratio] = re.findall(r"^unix, at once: requests per CPU second: ([0-9.]+) x pgbench's$", done.stdout, re.M)
    assert float(ratio) >= 1.5
    [(mean, p50)] = re.findall(r"^TCP, slow: latencies against pgbench's log: mean ([-+0-9.]+) %, p50 ([-+0-9.]+) %", done.stdout, re.M)
    assert abs(float(mean)) <= 5 and abs(float(p50)) <= 5


def test_load_on_a_server(pg):
    """An open loop with a mix on a server that asks for a password: every transaction is answered."""
    done = run("load", "--postgres", url(pg), "--statement", "SELECT {1..9}", "--rate", "200", "--clients", "5", "--seconds", "1", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.strip().startswith("server"))
    failed, refused = row.split()[8:10]
    assert (failed, refused) == ("0", "0")


def test_on_a_users_server(pg18, output):
    """In a schema of its own, which is gone afterwards; version 17's new statistics are found."""
    done = run("overhead", "--no-peer", "--seconds", "3", "--rounds", "1", "--postgres", url(pg18), "--output", output)
    assert done.returncode == 0, done.stderr
    report = json.loads((output / "report.json").read_text())
    step = report["experiments"][0]["steps"][0]
    for target in ("direct", "pgweir"):
        assert step["targets"][target]["medians"]["tps"] > 0
        assert len(step["targets"][target]["rounds"][0]["series"]["buffers_allocated"]) > 1
    assert "<svg" in (output / "report.html").read_text()
    same = run("compare", output / "report.json", output / "report.json")
    assert same.returncode == 0 and "pgweir" in same.stdout and "1.00x" in same.stdout and "another machine" not in same.stdout, same
    assert pg18.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgweir_bench'", database="app") == [(0,)]


@pytest.mark.skipif(not (shutil.which("pgpool") or os.path.exists("/usr/sbin/pgpool")), reason="needs Pgpool-II (Debian: pgpool2)")
def test_pgpool_is_a_peer(output):
    """Pgpool-II is configured, started, measured and gone, with clients that reconnect: pgbench waits for each connection alone."""
    done = run("peers", "--pooler", "pgpool", "--only", "reconnect", "--rounds", "1", "--seconds", "1", "--scale", "1", "--output", output)
    assert done.returncode == 0, done.stderr
    report = json.loads((output / "report.json").read_text())
    for workload in report["workloads"]:
        assert workload["targets"]["pgpool"]["metrics"]["tps"]["median"] > 0, done.stdout
    assert "left out" not in done.stdout.replace("not installed, left out", "")


def test_existing_tables_are_not_touched(pg18, output):
    """A schema that has tables is left alone without --force."""
    pg18.sql("CREATE SCHEMA pgweir_bench; CREATE TABLE pgweir_bench.pgbench_accounts (mine int)", database="app")
    try:
        done = run("overhead", "--no-peer", "--postgres", url(pg18), "--output", output)
        assert done.returncode == 1 and "--force" in done.stderr
        assert pg18.sql("SELECT count(*) FROM pgweir_bench.pgbench_accounts", database="app") == [(0,)]
    finally:
        pg18.sql("DROP SCHEMA pgweir_bench CASCADE", database="app")

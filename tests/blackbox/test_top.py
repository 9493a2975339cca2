"""`pgweir top` in a pseudo-terminal: what it shows, what its keys do, and what it leaves behind."""

import contextlib
import os
import re
import signal
import subprocess
import threading

import psycopg
import pytest

from harness.machine import as_service, eventually, reachable
from harness.pooler import binary, kind
from harness.terminal import DOWN, END, ENTER, ESCAPE, Terminal
from test_clusters import clustered, node_states, nodes  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such command")


def url(pooler, user="admin"):
    return f"postgres://{user}@127.0.0.1:{pooler.port}"


def top(pooler, *options, user="admin", **size):
    """`pgweir top` in a terminal."""
    return Terminal(binary(), "top", "--url", url(pooler, user), "--interval=0.2", *options, **size)


@contextlib.contextmanager
def waiting(pooler, application="waiter"):
    """A client that waits for the only server, which another client keeps in a transaction."""
    with pooler.raw(application_name="holder") as holder:
        holder.query("begin")
        waiter = pooler.connect(application_name=application)
        outcome = []

        def work():
            with contextlib.suppress(psycopg.Error):
                outcome.append(waiter.execute("select 42").fetchone())

        thread = threading.Thread(target=work)
        thread.start()
        try:
            eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the client waits")
            yield outcome
        finally:
            holder.query("rollback")
            thread.join(30)
            waiter.close()


def row_of(lines, text):
    """The words of the line that has this text."""
    found = [line for line in lines if text in line]
    assert found, f"{text} in {lines}"
    return found[0].split()


def test_the_verdict_comes_first(pooled):
    """The first lines tell the waiting clients, the longest wait, its cause and what helps, in 80 columns."""
    pooler = pooled(default_pool_size=1)
    with top(pooler) as terminal:
        terminal.shows("no client waits", "1 Overview")
        with waiting(pooler):
            lines = terminal.shows("1 client waits for", "app: its only server is busy (1 idle in transaction), 1 client waiting", "raise pool_size")
            assert lines[1].startswith("1 client waits for")
            assert row_of(lines, "Clients  ")[1:4] == ["2:", "1", "waiting,"]
            words = row_of(lines, "1/1")
            assert words[:2] == ["app", "alice"] and words[-3:] == ["all", "servers", "busy"]
        terminal.shows("no client waits")
        terminal.type("q")
        assert terminal.ended() == 0


def test_a_window_that_grows_shows_more(pooled):
    """From 80x24 to 160x50 and back."""
    pooler = pooled()
    with pooler.connect(application_name="checkout"), top(pooler) as terminal:
        lines = terminal.shows("DATABASE", "CALLS/S", "q quit")
        assert not any("MODE" in line for line in lines)
        assert "q quit" in lines[23]
        terminal.resize(160, 50)
        lines = terminal.shows("MODE", "KEEPS SERVER FOR", "checkout")
        eventually(lambda: "q quit" in terminal.lines()[49], "the last line has the keys")
        terminal.resize(80, 24)
        eventually(lambda: "q quit" in terminal.lines()[23], "the last line has the keys again")
        terminal.type("q")
        assert terminal.ended() == 0


def test_lines_are_filtered_sorted_and_looked_at(pooled):
    pooler = pooled()
    with pooler.connect(application_name="alpha"), pooler.connect(application_name="beta") as beta, top(pooler, columns=160, lines=50) as terminal:
        terminal.shows("1 Overview", "no client waits")
        terminal.type("3")
        terminal.shows("ID", "alpha", "beta")
        # Sorted by application, from a to z and back.
        terminal.type("ssss")

        def order():
            return [name for line in terminal.lines() for name in ("alpha", "beta") if f" {name} " in line]

        eventually(lambda: order() == ["alpha", "beta"], "a to z")
        terminal.type("S")
        eventually(lambda: order() == ["beta", "alpha"], "z to a")
        terminal.type("/alph")
        terminal.shows("filter: alph_", "6 Nodes   /alph")
        terminal.hides(" beta ")
        terminal.type(ENTER + ENTER)
        lines = terminal.shows("details", "application_name", "connect_time")
        assert any(re.search(r"application_name\s+alpha", line) for line in lines)
        terminal.type(ESCAPE)
        terminal.hides("details:")
        terminal.type(ESCAPE)
        terminal.shows("alpha", "beta")
        terminal.type("?")
        terminal.shows("disconnect the client")
        terminal.type("q")
        terminal.hides("disconnect the client")
        assert beta.execute("select 1").fetchone() == (1,)
        terminal.type("\x03")
        assert terminal.ended() == 0


def test_a_client_is_killed_after_a_yes_and_not_before(pooled):
    pooler = pooled()
    with pooler.raw(application_name="victim") as victim, top(pooler) as terminal:
        terminal.shows("no client waits")
        terminal.type("3")
        terminal.shows("victim")
        [client] = [row for row in pooler.show("CLIENTS") if row["application_name"] == "victim"]
        for no in ("n", ENTER, ESCAPE):
            terminal.type("k")
            terminal.shows(f"Disconnect client {client['id']} (alice@app, victim)?", f"KILL_CLIENT {client['id']}")
            terminal.type(no)
            terminal.shows(f"KILL_CLIENT {client['id']}: not sent")
        assert victim.value("select 1") == "1"
        terminal.type("k")
        terminal.shows("Disconnect client")
        terminal.type("y")
        terminal.shows(f"KILL_CLIENT {client['id']}: KILL_CLIENT")
        victim.until_closed()
        terminal.hides(" victim")
        terminal.type("2" + END + "p")
        terminal.shows("PAUSE app", "y yes, send it")
        terminal.type("y")
        terminal.shows("app: paused", "RESUME app")
        assert pooler.show("DATABASES", name="app")[0]["paused"] == "1"
        terminal.type("r")
        terminal.shows("Resume database app?")
        terminal.type("y")
        terminal.hides("app: paused")
        terminal.type("q")
        assert terminal.ended() == 0


def test_a_stats_user_looks_and_changes_nothing(pooled):
    pooler = pooled()
    with pooler.connect(application_name="victim") as victim, top(pooler, user="stats") as terminal:
        terminal.shows("as stats, who may only look", "no client waits")
        terminal.type("3")
        terminal.shows("victim")
        terminal.type("k")
        terminal.shows("this user may only look (stats_users)")
        terminal.type("y")
        assert victim.execute("select 1").fetchone() == (1,)
        terminal.type("q")
        assert terminal.ended() == 0


def test_a_pooler_that_goes_away_is_shown_and_entered_again(pooled):
    pooler = pooled()
    with top(pooler) as terminal:
        terminal.shows("no client waits", "statements/s")
        pooler.expect_exit = True
        pooler.signal(signal.SIGKILL)
        pooler.process.wait(20)
        terminal.shows("LOST", "trying again")
        pooler.expect_exit = False
        pooler.start()
        terminal.hides("LOST")
        with pooler.connect() as client:
            client.execute("select 7 as after_the_restart")
            terminal.type("5")
            terminal.shows("after_the_restart")
        terminal.type("q")
        assert terminal.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_the_terminal_back(pooled, number):
    with top(pooled()) as terminal:
        terminal.shows("no client waits")
        terminal.end_by(number)
        assert terminal.ended() == 128 + number


def test_statements_are_shown_by_what_they_take_now(pooled):
    """A statement that ran much before is below one that runs now, and falls to 0 when it ends."""
    pooler = pooled()
    with pooler.connect() as client, top(pooler, "--interval=0.5") as terminal:
        for _ in range(300):
            client.execute("select 1 as much_before")
        terminal.type("5")
        terminal.shows("much_before")
        stop = threading.Event()

        def load():
            with pooler.connect() as other:
                while not stop.is_set():
                    other.execute("select pg_sleep(0.01) as runs_now")

        thread = threading.Thread(target=load)
        thread.start()
        try:

            def is_first():
                lines = terminal.lines()
                places = {name: place for place, line in enumerate(lines) for name in ("much_before", "runs_now") if name in line}
                words = lines[places["runs_now"]].split() if "runs_now" in places else ["0"]
                return len(places) == 2 and places["runs_now"] < places["much_before"] and float(words[0]) > 0.2

            eventually(is_first, "the statement that runs is first")
        finally:
            stop.set()
            thread.join(30)
        eventually(lambda: row_of(terminal.lines(), "runs_now")[:2] == ["0", "0"], "nothing runs any more")


def test_once_is_plain_text(pooled):
    pooler = pooled(default_pool_size=1)
    with waiting(pooler):
        where = [str(reachable(binary(), pooler.folder)), "top", "-c", str(pooler.ini), "--once", "--interval=0.2"]
        done = subprocess.run(as_service(*where), capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("1 client waits for") and any("app: its only server is busy" in line for line in lines)
    assert "\x1b" not in done.stdout and len(lines) <= 24 and max(map(len, lines)) <= 80
    wide = subprocess.run(as_service(*where), capture_output=True, text=True, cwd="/", timeout=60, env=os.environ | {"COLUMNS": "160", "LINES": "50"})
    assert "MODE" in wide.stdout and "MODE" not in done.stdout


def test_what_cannot_be_shown_is_said(pooled):
    pooler = pooled()

    def refused(*words):
        done = subprocess.run([binary(), "top", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and not done.stdout
        return done.stderr

    assert "--once" in refused("--url", url(pooler))
    assert "Connection refused" in refused("--once", "--url", "postgres://admin@127.0.0.1:1")
    assert "s3cret" not in refused("--once", "--url", f"postgres://nobody:s3cret@127.0.0.1:{pooler.port}")
    assert "No such file" in refused("--once", "-c", "/nowhere.ini")
    assert "from 0.1" in refused("--interval=0")


def test_nodes_are_shown_and_switched(nodes, clustered):  # noqa: F811
    pooler = clustered(nodes(2), {"warm_up_ms": 200})
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    with top(pooler) as terminal:
        terminal.shows("main.m1", "primary", "main.m2", "standby", "100 %")
        terminal.type("6" + DOWN + "d")
        terminal.shows("Drain node main.m2", "DRAIN NODE main.m2")
        terminal.type("y")
        terminal.shows("node main.m2 is draining", "ATTACH NODE main.m2")
        assert pooler.show("NODES", node="m2")[0]["switch"] == "draining"
        terminal.type("a")
        terminal.shows("Attach node main.m2")
        terminal.type("y")
        terminal.hides("node main.m2 is draining")
        terminal.type("q")
        assert terminal.ended() == 0

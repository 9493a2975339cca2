"""systemd: what is said to the service manager, and sockets that it has opened already. Its part is played by the test."""

import os
import signal
import socket
import time
import urllib.request

import pytest

from harness.machine import ACCOUNT, eventually, free_port
from harness.wire import query

pytestmark = pytest.mark.needs("systemd sockets by name")

# Opens listening sockets, passes them as systemd does, and becomes the program behind the arguments: kind, place and name of each.
PASSES = """
import fcntl, os, socket, sys
cut = sys.argv.index("--")
names, copies = [], []
for word in sys.argv[1:cut]:
    name, kind, place = word.split("=")
    if kind == "tcp":
        opened = socket.create_server(("127.0.0.1", int(place)))
    elif kind == "udp":
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    else:
        opened = socket.socket(socket.AF_UNIX)
        opened.bind(place)
        opened.listen()
    names.append(name)
    copies.append(fcntl.fcntl(opened, fcntl.F_DUPFD, 50))
for number, copy in enumerate(copies):
    os.dup2(copy, 3 + number)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)}
os.execvp(sys.argv[cut + 1], sys.argv[cut + 1 :])
"""

PYTHON = ["env", "python3"]
"""Looked for by a program that has nothing but the service account's rights: ours may be in a place that only root can read."""


class Manager:
    """The service manager's ear."""

    def __init__(self, folder, monkeypatch):
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        if ACCOUNT:
            os.chown(self.path, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
        self._socket.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", self.path)

    def hears(self, word):
        """Waits for a message with this line, which comes before any other that is no STATUS; returns its lines."""
        while True:
            lines = self._socket.recv(4096).decode().splitlines()
            if word.startswith("STATUS") or not lines[0].startswith("STATUS="):
                break
        assert any(line.startswith(word) for line in lines), (word, lines)
        return lines

    def close(self):
        """Hears nothing more."""
        self._socket.close()


@pytest.fixture
def manager(pooled, monkeypatch):
    """A function that starts a pooler and gives it and its manager; a second one by this name takes the first one's place."""
    managers = []

    def start(**settings):
        pooler = pooled(start=False, **settings)
        managers.append(Manager(pooler.folder, monkeypatch))
        pooler.write_ini(pidfile=str(pooler.folder / "pid"))
        pooler.start()
        return pooler, managers[-1]

    yield start
    for one in managers:
        one.close()


def test_what_the_manager_is_told(manager):
    """Ready, reloading with the time and ready again, the status line, stopping."""
    pooler, hears = manager(stats_period=1)
    assert f"MAINPID={pooler.pid}" in hears.hears("READY=1")
    for reload in (lambda: pooler.signal(signal.SIGHUP), pooler.reload):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        reload()
        said = dict(line.split("=") for line in hears.hears("RELOADING=1"))
        assert before <= int(said["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        hears.hears("READY=1")
    # A fault in the file ends the reload, too.
    pooler.write_ini(no_such_setting=1)
    pooler.signal(signal.SIGHUP)
    hears.hears("RELOADING=1")
    hears.hears("READY=1")
    assert "xacts/s" in hears.hears("STATUS=stats: ")[0]
    pooler.signal(signal.SIGINT)
    hears.hears("STOPPING=1")
    assert pooler.wait_exit() == 0


def test_the_main_process_changes(manager):
    """An online restart: the new process says that it is the main one; the old one does not say that the service stops."""
    pooler, hears = manager(server_tls_sslmode="disable")
    old = pooler.process
    hears.hears("READY=1")
    pooler.arguments = ["--quiet", "-R"]
    pooler.start(wait=False)
    assert f"MAINPID={pooler.pid}" in hears.hears("READY=1")
    assert old.wait(timeout=20) == 0
    pooler.reload()
    hears.hears("RELOADING=1")


def test_no_process_listens_to_it(pooled, monkeypatch):
    """A manager that is gone is a warning, no reason to stop."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    pooler = pooled()
    pooler.logged("could not tell the service manager")
    assert pooler.alive()


def passed(pooled, *sockets, **settings):
    """A pooler that is started as by socket activation."""
    pooler = pooled(start=False, listen_addr="", unix_socket_dir="", **settings)
    pooler.sockets = [one.format(port=pooler.port, folder=pooler.folder) for one in sockets]
    pooler.limits = [*PYTHON, "-c", PASSES, *pooler.sockets, "--"]
    pooler.start(wait=False)
    return pooler


@pytest.mark.parametrize("workers", [1, 3])
def test_sockets_by_activation(pooled, workers):
    """Clients come in on what was passed, over TCP and the unix socket; HTTP by its name. Nothing that was passed is removed."""
    http = free_port()
    pooler = passed(pooled, "pgweir.socket=tcp={port}", "pgweir.socket=unix={folder}/.s.PGSQL.{port}", f"http=tcp={http}", workers=workers)
    pooler.logged("process up")
    with pooler.raw() as session, pooler.raw(unix=True) as local:
        assert session.value("select 1") == local.value("select 1") == "1"
    assert urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=20).status == 200
    pooler.logged(r"listening on 127.0.0.1:[0-9]+ \(passed by socket activation\)")
    assert pooler.show("CONFIG", key="listen_addr")[0]["value"] == ""
    pooler.signal(signal.SIGQUIT)
    assert pooler.wait_exit() == 0
    assert os.path.exists(pooler.unix_address)


def test_sockets_that_cannot_be_used(pooled):
    """What is no listening stream socket ends the start; so does -R, as the sockets are the manager's."""
    pooler = passed(pooled, "pgweir.socket=udp=0")
    assert pooler.wait_exit() == 1
    assert "no listening stream socket" in pooler.output()
    pooler = pooled(start=False)
    pooler.limits = [*PYTHON, "-c", PASSES, f"pgweir.socket=tcp={pooler.port}", "--"]
    pooler.arguments = ["-R"]
    pooler.start(wait=False)
    assert pooler.wait_exit() == 1
    assert "-R cannot be used with socket activation" in pooler.output()


def test_sockets_for_another_process(pooled, monkeypatch):
    """An environment that passes sockets to another process is ignored."""
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "3")
    pooler = pooled()
    assert pooler.alive()


def test_http_goes_over(pooled, pg):
    """An online restart hands over the address of `http_listen`, too: no request is refused, and the old process answers none."""
    http = free_port()
    pooler = pooled(start=False, server_tls_sslmode="disable", http_listen=f"127.0.0.1:{http}")
    pooler.write_ini(pidfile=str(pooler.folder / "pid"))
    pooler.start()

    def serves():
        page = urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=20).read().decode()
        return next(line for line in page.splitlines() if line.startswith("pgbouncer_process_start_time_seconds"))

    before = serves()
    busy = pooler.raw()  # while its statement runs it stays, and the old process with it
    busy.send(query("select pg_sleep(100)"))
    eventually(lambda: pg.running("pg_sleep(100)"), "the statement runs")
    old = pooler.process
    pooler.arguments = ["--quiet", "-R"]
    pooler.start(wait=False)
    eventually(lambda: all(serves() != before for _ in range(20)), "the new process answers, and it alone", timeout_s=30)
    assert old.poll() is None
    busy.cancel()  # which the new process hears
    assert busy.until().error["C"] == "57014"
    assert old.wait(timeout=20) == 0
    assert serves() != before
    assert "no HTTP until" not in pooler.log()

"""SHOW FDS: the sockets of the process, by number for an administrator, and themselves for a process of the same user."""

import os
import socket

import pytest

from harness.machine import ACCOUNT
from harness.pooler import kind
from harness.wire import Raw

COLUMNS = [
    "fd", "task", "user", "database", "addr", "port", "cancel", "link", "client_encoding", "std_strings", "datestyle", "timezone",
    "password", "scram_client_key", "scram_server_key",
]  # fmt: skip


class Collecting:
    """A unix socket that keeps the descriptors which arrive beside the bytes."""

    def __init__(self, plain):
        self._plain, self.descriptors = plain, []

    def recv(self, size):
        data, descriptors, _, _ = socket.recv_fds(self._plain, size, 1)
        self.descriptors += descriptors
        return data

    def __getattr__(self, name):
        return getattr(self._plain, name)


def house(pooler):
    """A session on the console as the pooler's own user, over the unix socket."""
    if ACCOUNT:
        os.seteuid(ACCOUNT.pw_uid)
    try:
        session = Raw(pooler.unix_address)
    finally:
        if ACCOUNT:
            os.seteuid(0)
    session.login("pgbouncer", "pgbouncer")
    return session


def test_for_an_administrator(pooled):
    """The columns, and a row for each listener, each client and each server that has logged in; linked ones name each other."""
    pooler = pooled()
    with pooler.raw(TimeZone="Asia/Tokyo") as session:
        session.query("begin")
        with pooler.console() as console:
            answer = console.query("SHOW FDS")
        assert answer.columns == COLUMNS
        types = dict(answer.of("T")[0].columns())
        assert types["cancel"] == 20 and types["scram_client_key"] == types["scram_server_key"] == 17
        assert all(types[name] == (23 if name in ("fd", "port", "link") else 25) for name in COLUMNS if not name.startswith(("cancel", "scram")))
        rows = [dict(zip(COLUMNS, row)) for row in answer.rows]
        doors = [row for row in rows if row["task"] == "pooler"]
        assert [(row["addr"], row["port"]) for row in doors] == [("127.0.0.1", str(pooler.port)), ("unix", str(pooler.port))]
        (client,) = [row for row in rows if row["task"] == "client"]
        (server,) = [row for row in rows if row["task"] == "server" and row["link"] != "0"]
        assert (client["user"], client["database"], client["addr"]) == ("alice", "app", "127.0.0.1")
        assert client["port"] == str(session.socket.getsockname()[1])
        assert (client["link"], server["link"]) == (server["fd"], client["fd"])
        assert (client["client_encoding"], client["std_strings"], client["timezone"]) == ("UTF8", "on", "Asia/Tokyo")
        assert len({row["fd"] for row in rows}) == len(rows)
        assert all(not row["password"] for row in rows)


@pytest.mark.parametrize("workers", [1, 3])
def test_for_a_process_of_the_same_user(pooled, workers):
    """Over the unix socket each row has its socket beside it, whichever worker it belongs to."""
    pooler = pooled(**({"workers": workers} if kind() == "pgweir" else {}))
    with pooler.raw() as session, house(pooler) as console:
        session.query("begin")
        console.socket = Collecting(console.socket)
        answer = console.query("SHOW FDS")
        sockets = [socket.socket(fileno=number) for number in console.socket.descriptors]
        assert not answer.errors and len(sockets) == len(answer.rows) >= 4
        by_task = {}
        for row, one in zip(answer.rows, sockets):
            by_task.setdefault(row[1], []).append(one)
        assert by_task["pooler"][0].getsockname() == ("127.0.0.1", pooler.port)
        assert by_task["client"][0].getpeername() == session.socket.getsockname()
        for one in sockets:
            one.close()
        assert session.query("commit").status == "I"


def test_without_the_socket_of_ours(pooled):
    """An administrator over the unix socket that is not the pooler's own user gets only the list."""
    pooler = pooled()
    with pooler.raw("pgbouncer", "admin", unix=True) as console:
        console.socket = Collecting(console.socket)
        assert console.query("SHOW FDS").rows and console.socket.descriptors == []

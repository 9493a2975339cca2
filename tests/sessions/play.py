"""Plays a round to one address: every client is a connection of its own, and the answers of each are kept as they came.

Turns are played in the round's order as long as their clients' earlier answers are there. A client that waits for an answer keeps its
later turns, and the other clients go on; so a round ends however few servers there are. Nothing here depends on how fast the
machine is: what is waited for is an answer, and the moment between two turns only decides how often clients overlap.
"""

import select
import socket
import struct
import time
from collections import deque

from harness.wire import SYNC, TERMINATE, startup

GRACE_S = 0.004
"""How long a turn's answer is waited for before the other clients go on."""
HANG_S = 30.0
"""After this long without a byte from anywhere the round hangs."""
BETWEEN_WRITES_S = 0.0002
"""The pause between the writes of one turn, so that they arrive apart."""

HEADER = struct.Struct("!ci")
ENDS = b"123nTCsI"
"""What answers one message of the extended protocol."""


class Client:
    """One client of a round: its connection, its turns, and what it was told."""

    def __init__(self, player, startup):
        self.player = player
        self.startup = startup
        self.todo = deque()
        self.told = []
        self.said = []
        self.settled = 0
        self.pids = []
        self.socket = None
        self.leaving = False
        self.ends_work = False
        """Its last connection had Terminate behind statements, which may still run."""
        self._forget()

    def _forget(self):
        self.buffer = b""
        self.owed = 0
        self.sent = 0
        self.answered = 0
        self.failed = False
        self.flushed = False
        self.waits = False
        self.ended = False
        self.status = b"I"

    def ready(self):
        """Whether its next turn may be played."""
        if self.leaving:
            return self.socket is None
        if self.ends_work:
            return self.player.are(len(self.player.by_socket))
        if self.todo and self.todo[0].connection == "meanwhile":
            self.await_all()
        return not self.waits or self.socket is None or self._is_answered()

    def _is_answered(self):
        return self.owed == 0 and (not self.flushed or self.failed or self.answered >= self.sent)

    def connect(self, parameters):
        """Opens a connection and sends the startup packet."""
        self.player.connects()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self.player.path)
        self.player.open(self)
        self._forget()
        self.told.append(("connect", b""))
        self.said.append(("connect",))
        self.socket.sendall(startup({"user": "alice", "database": self.player.database, **parameters}))
        self.owed, self.waits = 1, True

    def play(self, turn):
        """One turn."""
        kind = turn.connection
        if self.waits:
            self.settled = len(self.told)
        if kind == "connect":
            self.leave()
            self.ends_work = False
            self.connect(turn.messages[0][1] if len(turn.messages[0]) > 1 else self.startup)
        elif kind == "terminate":
            self.say_goodbye()
        elif kind == "hang up":
            self.leave()
        elif kind == "meanwhile":
            # In a transaction this client may hold a lock that the other session would wait for.
            if self.socket is not None and self.status == b"I":
                self.player.meanwhile(*turn.messages[0][1:])
        elif self.socket is not None:
            self._count(turn)
            self.said += turn.messages
            self._send(turn.encoded())
            if turn.messages[-1][0] == "X":
                self.leaving = self.ends_work = True

    def _count(self, turn):
        for said in turn.messages:
            kind = said[0]
            if kind in "QS":
                self.owed += 1
                self.sent, self.flushed = 0, False
            elif kind == "H":
                self.flushed = True
            elif kind not in ("copy", "X"):
                self.sent += 1
                self.flushed = False
        self.waits = turn.waits and (self.sent == 0 or self.flushed)

    def _send(self, writes):
        try:
            for number, data in enumerate(writes):
                if number:
                    time.sleep(BETWEEN_WRITES_S)
                self.socket.sendall(data)
        except OSError:
            pass  # that the other side hung up is read where it is read from

    def say_goodbye(self):
        """Terminate; the connection's end is awaited."""
        if self.socket is not None:
            self.leaving = True
            self._send([TERMINATE])

    def await_all(self):
        """From here on all its answers are waited for; an open group gets the Sync that it lacks."""
        if self.socket is not None and not self.leaving:
            self.waits = True
            if self.sent:
                self.owed, self.sent, self.flushed = self.owed + 1, 0, False
                self.said.append(("S",))
                self._send([SYNC])

    def leave(self):
        """Closes the socket. What was not waited for is forgotten: how much of it came is chance."""
        if self.socket is not None:
            self.player.shut(self)
            self.socket.close()
            self.socket = None
            if not self.ended and (self.ends_work or not (self.waits and self._is_answered())):
                del self.told[self.settled :]
        self.leaving = False

    def receive(self):
        """Reads what has come."""
        try:
            data = self.socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            if not self.leaving:
                self.told.append(("closed", b""))
                self.ended = True
            self.leave()
            return
        buffer, at = self.buffer + data, 0
        while len(buffer) - at >= 5:
            tag, length = HEADER.unpack_from(buffer, at)
            if len(buffer) - at <= length:
                break
            self._told(tag, buffer[at + 5 : at + 1 + length])
            at += 1 + length
        self.buffer = buffer[at:]

    def _told(self, tag, body):
        self.told.append((tag.decode("latin-1"), body))
        if tag == b"Z":
            self.owed -= 1
            self.answered, self.failed = 0, False
            self.status = body
        elif tag == b"E":
            self.failed = True
        elif tag == b"K":
            self.pids.append(body[:4])
        elif tag in ENDS and self.owed == 0:
            self.answered += 1


class Player:
    """Plays one round to one socket path and database."""

    def __init__(self, path, database, meanwhile, are, connects=lambda: None):
        """`meanwhile`: runs another session's SQL without going through the pooler; its second argument is None or a command of the console.

        `are`: whether there are just so many clients, counting those that have left and whose statements still run. `connects`: is called
        before a client opens a connection.
        """
        self.path, self.database, self.meanwhile, self.are, self.connects = path, database, meanwhile, are, connects
        self.poll = select.poll()
        self.by_socket = {}
        self.hung = False

    def open(self, client):
        """A client has a connection."""
        self.by_socket[client.socket.fileno()] = client
        self.poll.register(client.socket, select.POLLIN)

    def shut(self, client):
        """A client's connection ends."""
        self.poll.unregister(client.socket)
        del self.by_socket[client.socket.fileno()]

    def pump(self, wait_s):
        """Reads what comes within this time; whether something came."""
        ready = self.poll.poll(wait_s * 1000)
        for number, _ in ready:
            client = self.by_socket.get(number)
            if client:
                client.receive()
        return bool(ready)

    def go_on(self, client):
        """Plays the client's turns as far as its answers are there."""
        while client.todo and client.ready():
            client.play(client.todo.popleft())
        self.give_time(client)

    def give_time(self, client):
        """Waits a moment for the client's answer."""
        until = time.monotonic() + GRACE_S
        while not client.ready() and (left := until - time.monotonic()) > 0:
            self.pump(left)

    def play(self, played):
        """Plays the round; returns its clients, by number."""
        clients = {number: Client(self, startup) for number, startup in played.startups.items()}
        try:
            for client in clients.values():
                client.connect(client.startup)
                self.give_time(client)
            for turn in played.turns:
                client = clients[turn.client]
                client.todo.append(turn)
                self.go_on(client)
            self._finish(list(clients.values()))
        finally:
            for client in clients.values():
                client.leave()
        return clients

    def _stirs(self, clients):
        """Waits for a byte from anywhere, or until one of these clients can go on."""
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            if self.pump(0.05) or any(client.ready() for client in clients):
                return True
        return False

    def _finish(self, clients):
        while True:
            for client in clients:
                self.go_on(client)
                if not client.todo and client.ready():
                    client.await_all()
                    self.give_time(client)
            going = [client for client in clients if client.todo or not client.ready()]
            if not going:
                return
            if any(client.ready() for client in going):
                continue
            if self.pump(0.02):
                continue
            # Those that are done make room for those that wait.
            for client in clients:
                if client not in going:
                    client.leave()
            if not self._stirs(going):
                self.hung = True
                for client in going:
                    client.told.append(("hangs", b""))
                    client.ended = True
                return

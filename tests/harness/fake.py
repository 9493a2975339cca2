"""A PostgreSQL that says what the test wants: for everything no honest server does."""

import socket
import struct
import threading

from .wire import cstr, message

AUTH_OK = message("R", struct.pack("!i", 0))
READY = message("Z", b"I")
KEY = message("K", struct.pack("!i", 4711) + b"key!")


def parameter(name, value):
    """ParameterStatus."""
    return message("S", cstr(name) + cstr(value))


PARAMETERS = b"".join(
    parameter(name, value)
    for name, value in {
        "server_version": "15.0", "server_encoding": "UTF8", "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "TimeZone": "UTC",
        "integer_datetimes": "on", "standard_conforming_strings": "on", "application_name": "", "IntervalStyle": "postgres",
    }.items()
)  # fmt: skip

LOGIN = AUTH_OK + PARAMETERS + KEY + READY
"""What a server says to a client that it lets in."""


def error(severity="ERROR", code="XX000", text="made up", fields=None):
    """ErrorResponse, with other fields when given."""
    fields = {"S": severity, "V": severity, "C": code, "M": text} if fields is None else fields
    return message("E", b"".join(k.encode() + cstr(v) for k, v in fields.items()) + b"\0")


def row(*values):
    """RowDescription of text columns, one DataRow, CommandComplete."""
    names = b"".join(cstr(f"c{n}") + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0) for n in range(len(values)))
    data = b"".join(struct.pack("!i", len(v)) + v for v in values)
    return message("T", struct.pack("!h", len(values)) + names) + message("D", struct.pack("!h", len(values)) + data) + message("C", b"SELECT 1\0")


class FakeServer:
    """Listens on a port and hands every connection, after its startup packet, to `behave(connection)` in a thread.

    `behave` gets a `Conversation`. An exception in it (a closed socket, mostly) ends that connection only.
    """

    def __init__(self, behave, port):
        self.behave = behave
        self.port = port
        self.connections = 0
        self._sockets = []
        self._listener = socket.create_server(("127.0.0.1", port), backlog=200)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer):
        try:
            self.behave(Conversation(peer))
        except (OSError, EOFError):
            pass
        finally:
            peer.close()

    def stop(self):
        """Closes everything."""
        self._listener.close()
        for peer in self._sockets:
            peer.close()


class Conversation:
    """One connection as the server sees it."""

    def __init__(self, peer):
        self.peer = peer
        peer.settimeout(30)

    def exactly(self, count):
        """That many bytes."""
        data = b""
        while len(data) < count:
            part = self.peer.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def startup(self):
        """Reads first packets, declines TLS, returns the startup packet's parameters."""
        while True:
            (length,) = struct.unpack("!i", self.exactly(4))
            body = self.exactly(length - 4)
            if body[:4] in (struct.pack("!i", 80877103), struct.pack("!i", 80877104)):
                self.peer.sendall(b"N")
                continue
            parts = body[4:].split(b"\0")
            return dict(zip(parts[::2], parts[1::2]))

    def read(self):
        """One message: (tag, body)."""
        tag = self.exactly(1).decode("latin-1")
        (length,) = struct.unpack("!i", self.exactly(4))
        return tag, self.exactly(length - 4)

    def send(self, *parts):
        """Sends bytes."""
        self.peer.sendall(b"".join(parts))

    def wait_for_query(self):
        """Answers empty queries, SETs and the question for routines of the pooler until another query comes; returns its text."""
        while True:
            tag, body = self.read()
            if tag == "X":
                raise EOFError
            text = body.rstrip(b"\0").decode(errors="replace")
            if tag == "Q" and not text.strip():
                self.send(message("I"), READY)
            elif tag == "Q" and text.upper().startswith(("SET ", "DISCARD", "RESET")):
                self.send(message("C", b"SET\0"), READY)
            elif tag == "Q" and text.startswith("SELECT 'g', NULL"):
                self.send(message("C", b"SELECT 0\0"), READY)
            elif tag == "Q":
                return text

    def hold(self):
        """Reads and ignores until the other side goes away."""
        while self.peer.recv(65536):
            pass

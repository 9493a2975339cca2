"""The readers: each in a process of its own, with one connection through pgweir, on which it checks every answer."""

import random
import re
import socket
import struct
import time

from harness.wire import SYNC, Raw, bind, describe, execute, parse, query

from .ledger import VALUES_MAX
from .world import CLOCKS, ROLES, TENANTS, faces

SESSION_READS = 400
"""After so many reads a reader with settings takes those of another tenant."""

SHAPED = "select * from shaped"
GUARDED = "select count(*) from guarded"
WAYS = ["simple", "unnamed", "prepared"]


class Reader:
    """One connection, and what it has seen."""

    def __init__(self, number, address, ledger, limit_s, report):
        self.number, self.ledger, self.limit_s, self.report = number, ledger, limit_s, report
        self.random = random.Random(number)
        self.way = WAYS[number % len(WAYS)]
        self.user = ROLES[number % 5 == 4]
        self.has_tenants = number % 4 == 3
        self.has_transactions = number % 3 == 2
        self.is_in_transaction = False
        self.raw = Raw(address, timeout_s=60)
        self.raw.login(self.user, "app", f"pw-of-{self.user}")
        self.seen = [0] * CLOCKS
        self.told = 0
        self.statements = 0
        self.faces = []
        self.requests = {}

    def run(self):
        """Reads and checks until the ledger says that all is over."""
        while not self.ledger.is_over():
            self._settle(self.random.choice(TENANTS) if self.has_tenants else None)
            for _ in range(SESSION_READS):
                if self.has_transactions and self.random.random() < 0.4:
                    self._begin_or_end()
                if not self.is_in_transaction and self.random.random() < 0.02:
                    self._check_definitions()
                else:
                    self._check(self.random.choice(self.faces))
            if self.is_in_transaction:
                self._begin_or_end()

    def _begin_or_end(self):
        """Each statement of a READ COMMITTED transaction must show what one outside of it must show."""
        answer = self.raw.query("commit" if self.is_in_transaction else "begin")
        assert not answer.errors, answer.errors
        self.is_in_transaction = not self.is_in_transaction

    def _settle(self, tenant):
        """Takes the settings of a tenant, and the faces that can be read with them."""
        self.faces = [face for face in faces() if face.tenant in (None, tenant)]
        settings = [text for face in self.faces for text in face.settings]
        for text in dict.fromkeys(settings):
            answer = self.raw.query(text)
            assert not answer.errors, answer.errors

    def _request(self, text, plain, values):
        """The bytes that ask a statement in the reader's way."""
        found = self.requests.get(plain)
        if found is None:
            if self.way == "simple":
                found = query(plain)
            elif self.way == "unnamed":
                found = parse("", text) + bind("", "", values) + describe("P", "") + execute() + SYNC
            else:
                self.statements += 1
                name = f"s{self.statements}"
                self.raw.send(parse(name, text) + SYNC)
                answer = self.raw.until("Z")
                assert not answer.errors, answer.errors
                found = bind("", name, values) + describe("P", "") + execute() + SYNC
            self.requests[plain] = found
        return found

    def _ask(self, text, plain, values=()):
        """Asks a statement. Returns the time before it was sent, its first row as bytes, its RowDescription, and its error (each or None)."""
        request = self._request(text, plain, values)
        asked_s = time.monotonic()
        self.raw.socket.sendall(request)
        return asked_s, *answer(self.raw.socket)

    def _check(self, face):
        asked_s, row, _, error = self._ask(face.text, face.plain(), face.values)
        if error:
            raise RuntimeError(f"{face.plain()}: {error}")
        clock, ledger = face.clock, self.ledger
        shown = row and row[0]
        value = int(shown) if shown else -1
        if not 0 <= value <= ledger.begun[clock]:
            return self._fault("never committed", face, f"{shown} was shown, at most {ledger.begun[clock]} was written")
        if face.tenant and row[1].decode() != face.tenant:
            self._fault("other session", face, f"a session of {face.tenant} was shown the row of {row[1].decode()}")
        if value < self.seen[clock]:
            self._fault("back in time", face, f"{value} after {self.seen[clock]}")
        self.seen[clock] = max(value, self.seen[clock])
        due_s = ledger.acknowledged_s(clock, min(value + 1, VALUES_MAX))
        behind_s = asked_s - due_s if 0 < due_s < asked_s else 0
        ledger.count(self.number, behind_s)
        if behind_s > self.limit_s:
            self._fault("too old", face, f"{value} was shown {behind_s * 1000:.0f} ms after {value + 1} was acknowledged")

    def _check_definitions(self):
        """The column of `shaped` has its newest name, and `bob` is refused while he has no right to read `guarded`."""
        if self.random.random() < 0.5 or self.user != "bob":
            asked_s, _, described, _ = self._ask(SHAPED, SHAPED)
            # PostgreSQL refuses a prepared statement whose columns have changed: then nothing is described.
            shown = described and re.search(rb"\0g(\d+)\0", described)
            if shown and 0 < self.ledger.shapes[int(shown[1]) + 1] < asked_s:
                self._fault("definitions", None, f"column g{shown[1].decode()} was shown, which had another name by then")
            return
        refused_s = self.ledger.rights[0]
        asked_s, row, _, _ = self._ask(GUARDED, GUARDED)
        # The right is given back only after the ledger says so: if it says so neither before nor after, it was missing all the time.
        if row and 0 < refused_s < asked_s and refused_s == self.ledger.rights[0]:
            self._fault("definitions", None, "a table was read without the right to")

    def _fault(self, kind, face, what):
        self.ledger.fault(self.number, kind)
        if self.told < 3:
            self.told += 1
            self.report.put(f"{kind}: {what} ({self.way}, {self.user}{', ' + face.plain() if face else ''})")


def answer(connection: socket.socket):
    """Reads up to ReadyForQuery: the values of the first row, the row description, and the error; each None if there is none."""
    data = connection.recv(65536)
    while data[-6:-1] != b"Z\0\0\0\5":
        more = connection.recv(65536)
        if not more:
            raise RuntimeError("the connection has ended")
        data += more
    at, row, described, error = 0, None, None, None
    while at < len(data):
        tag, (length,) = data[at], struct.unpack_from("!i", data, at + 1)
        if tag == 0x44 and row is None:
            row = _values(data, at + 5)
        elif tag == 0x54:
            described = data[at + 7 : at + 1 + length]
        elif tag == 0x45:
            error = data[at + 5 : at + 1 + length].decode(errors="replace")
        at += 1 + length
    return row, described, error


def _values(data, at):
    (count,) = struct.unpack_from("!h", data, at)
    at, values = at + 2, []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", data, at)
        values.append(data[at + 4 : at + 4 + length] if length >= 0 else None)
        at += 4 + max(length, 0)
    return values

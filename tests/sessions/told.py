"""Reads a client's answers as its driver does: rows by the columns that the client was told last.

PostgreSQL never sends rows of other columns than it described, so this is held against both sides, whatever the two may answer
differently. A client that was told nothing about a statement has nothing to go by: its rows are not looked at.
"""

import re
import struct
from collections import deque

UNASKED = set("SAN")
"""Messages that may come at any time."""

NAMES_CHANGE = re.compile(r"\b(prepare|deallocate|discard|do|call|fz\.\w+_it)\b", re.IGNORECASE)
"""SQL after which a name may stand for another statement than the client prepared under it."""

NOT_FIXED = re.compile(r"\s*(execute|fetch|show)\b", re.IGNORECASE)
"""Statements that may have other columns each time. (plancache.c does not compare them.)"""

INT2, INT4, INT8, FLOAT4, FLOAT8, BOOL = 21, 23, 20, 700, 701, 16
BINARY = {INT2: "!h", INT4: "!i", INT8: "!q", FLOAT4: "!f", FLOAT8: "!d", BOOL: "!?"}
TEXT = {INT2: r"-?\d+", INT4: r"-?\d+", INT8: r"-?\d+", FLOAT4: r"-?[\d.e+-]+", FLOAT8: r"-?[\d.e+-]+", BOOL: "[tf]"}
LARGEST_INT4 = 1 << 29
"""No int4 of a round is as large. The bytes of a small float4 other than 0, read as int4, are larger."""
SMALLEST_FLOAT4 = 1e-20
"""The bytes of a small int4, read as float4, are a smaller number."""


class Misread(Exception):
    """The answers do not fit the messages that the client sent."""


def columns(body):
    """The (name, type) of each column of a RowDescription."""
    found, at = [], 2
    for _ in range(struct.unpack_from("!h", body)[0]):
        end = body.index(b"\0", at)
        found.append((body[at:end].decode(errors="replace"), struct.unpack_from("!I", body, end + 7)[0]))
        at = end + 19
    return found


def values(body):
    """The values of a DataRow; NULL is None."""
    found, at = [], 2
    for _ in range(struct.unpack_from("!h", body)[0]):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        found.append(None if length < 0 else body[at : at + length])
        at += max(length, 0)
    return found


def fits(value, kind, binary):
    """Whether a value can be of this type."""
    if value is None:
        return True
    if not binary:
        return kind not in TEXT or re.fullmatch(TEXT[kind], value.decode(errors="replace")) is not None
    if kind not in BINARY:
        return True
    if len(value) != struct.calcsize(BINARY[kind]):
        return False
    (read,) = struct.unpack(BINARY[kind], value)
    return {INT4: abs(read) < LARGEST_INT4, FLOAT4: read == 0 or abs(read) > SMALLEST_FLOAT4}.get(kind, True)


def misled(client):
    """The first row that this client would take for something else, in words; None if there is none.

    Raises `Misread` if the answers fit nothing that it sent.
    """
    told, sent = _connections(client.told), _connections(client.said)
    for answers, messages in zip(told, sent):
        found = Driver([answer for answer in answers if answer[0] not in UNASKED]).read(messages)
        if found:
            return found
    return None


def _connections(log):
    """What was sent or told on each connection."""
    parts = []
    for entry in log:
        if entry[0] == "connect":
            parts.append([])
        else:
            parts[-1].append(entry)
    return parts


class Statement:
    """What a client knows of a statement that it has prepared: a portal keeps it although its name stands for another one later."""

    def __init__(self, text=""):
        self.text, self.told = text, None


class Driver:
    """One connection's answers, and what its client knows of its statements and portals."""

    def __init__(self, answers):
        self.answers = deque(answers)
        self.statements, self.portals = {}, {}

    def read(self, messages):
        """Goes through what was sent; the first row that does not fit, or None."""
        self._until("Z")
        skips = False
        for kind, *arguments in messages:
            if not self.answers or self.answers[0][0] in ("closed", "hangs"):
                return None
            if kind == "S":
                self._until("Z")
                skips = False
            elif kind == "Q" and not skips:
                self._forget_by(arguments[0])
                self._until("Z")
            elif not skips and kind in self.HANDLERS:
                found = self.HANDLERS[kind](self, *arguments)
                if found == "E":
                    skips = True
                elif found:
                    return found
        return None

    def _until(self, last):
        while self.answers and self.answers[0][0] not in ("closed", "hangs"):
            if self.answers.popleft()[0] == last:
                return

    def _next(self, expected):
        """The next answer; ("E", ...) if it is an error, ("closed", ...) behind the end of what came."""
        answer = self.answers.popleft() if self.answers else ("closed", b"")
        if answer[0] not in (*expected, "E", "closed", "hangs"):
            raise Misread(f"{answer} in place of {expected}; then {list(self.answers)[:3]}")
        return answer

    def _forget_by(self, text):
        if NAMES_CHANGE.search(text):
            for statement in [*self.statements.values(), *(statement for statement, _ in self.portals.values())]:
                statement.told = None

    def _statement(self, name):
        return self.statements.setdefault(name, Statement())

    def _parse(self, name, text, *_):
        answer = self._next("1")
        if answer[0] == "1":
            self.statements[name] = Statement(text)
        return answer[0] == "E" and "E"

    def _bind(self, portal, name, values=(), formats=()):
        answer = self._next("2")
        if answer[0] == "2":
            self.portals[portal] = (self._statement(name), formats)
        return answer[0] == "E" and "E"

    def _describe(self, what, name):
        if what == "S" and self._next("t")[0] == "E":
            return "E"
        tag, body = self._next("Tn")
        if tag == "T":
            described = self._statement(name) if what == "S" else self.portals.get(name, (Statement(),))[0]
            described.told = columns(body)
        return tag == "E" and "E"

    def _close(self, what, name):
        answer = self._next("3")
        if what == "S":
            self._statement(name).told = None
        return answer[0] == "E" and "E"

    def _execute(self, portal, *_):
        statement, formats = self.portals.get(portal, (Statement(), ()))
        text, told = statement.text, None if NOT_FIXED.match(statement.text) else statement.told
        self._forget_by(text)
        while True:
            tag, body = self._next("DCsIGHWdc")
            if tag == "D" and told is not None and (wrong := self._wrong(told, formats, values(body))):
                return f"{text!r}: {wrong}"
            if tag in "CsI" or tag == "E" or len(tag) > 1:
                return tag == "E" and "E"

    @staticmethod
    def _wrong(told, formats, row):
        if len(told) != len(row):
            return f"the client was told {told}, and gets {row}"
        each = formats if len(formats) == len(row) else [*formats, 0][:1] * len(row)
        for (name, kind), value, binary in zip(told, row, each):
            if not fits(value, kind, binary):
                return f"the client was told that {name} is of type {kind}, and gets {value} (format {binary})"
        return None

    HANDLERS = {"P": _parse, "B": _bind, "D": _describe, "C": _close, "E": _execute}

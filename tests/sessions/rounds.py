"""A round: what several clients send, in which order. It has a text form that can be read, edited, kept and played again.

The text form has one line for each turn: the client's number, what it sends at once, and options::

    servers 1
    client 0 TimeZone=Asia/Tokyo
    0 ["Q", "set a.b = 'x'"]
    1 ["P", "p", "select $1::int", []] ["B", "", "p", ["1"]] ["E", "", 0] ["S"] go cut 3,17
    0 ["terminate"]

`go`: the client does not wait for the answer before its next turn. `cut`: the bytes leave in several writes, cut there.
A line that begins with `#` is a remark. `settings {"defer_begin": "off"}` are the pooler's, beside those of the arena (`swarm.py`).
"""

import json
import re
import struct
from dataclasses import dataclass, field, replace

from harness.wire import FLUSH, SYNC, TERMINATE, bind, close, copy_data, copy_fail, describe, execute, message, parse, query

CONNECTION = ("connect", "terminate", "hang up", "meanwhile")
"""Turns that are no messages: another login (with its own startup parameters), an orderly goodbye, a closed socket, and another session's SQL
that does not go through the pooler, while this client waits for nothing and has no transaction; `RECONNECT` behind it replaces the pool's
servers."""

def bound(portal, name, values=(), formats=()):
    """Bind. A value that is a number is sent as a binary int4, as drivers do that were told this type; all others are text."""
    binary = [isinstance(value, int) for value in values]
    sent = [struct.pack("!i", value) if is_binary else value for value, is_binary in zip(values, binary)]
    return bind(portal, name, sent, formats, list(map(int, binary)) if any(binary) else ())


ENCODERS = {
    "Q": query,
    "P": parse,
    "B": bound,
    "D": describe,
    "E": execute,
    "C": close,
    "S": lambda: SYNC,
    "H": lambda: FLUSH,
    "X": lambda: TERMINATE,
    "copy": lambda chunks, end=None: b"".join(map(copy_data, (c.encode() for c in chunks))) + (copy_fail(end) if end else message("c")),
}
"""How each kind of message is written. `copy` is the data of one COPY with its end."""


@dataclass(frozen=True)
class Turn:
    """What one client sends at once."""

    client: int
    messages: tuple
    waits: bool = True
    cuts: tuple = ()

    @property
    def connection(self):
        """`connect`, `terminate`, `hang up`, `meanwhile`, or None for a turn of messages."""
        return self.messages[0][0] if self.messages and self.messages[0][0] in CONNECTION else None

    def encoded(self):
        """The writes."""
        data = b"".join(ENCODERS[kind](*arguments) for kind, *arguments in self.messages)
        edges = [0, *sorted({cut for cut in self.cuts if 0 < cut < len(data)}), len(data)]
        return [data[a:b] for a, b in zip(edges, edges[1:])]

    def __str__(self):
        words = [str(self.client), *(json.dumps(list(m), ensure_ascii=False) for m in self.messages)]
        if not self.waits:
            words.append("go")
        if self.cuts:
            words.append("cut " + ",".join(map(str, self.cuts)))
        return " ".join(words)


@dataclass(frozen=True)
class Round:
    """Clients (their startup parameters), the pool's size, the turns in their order, and settings of the pooler."""

    servers: int
    startups: dict
    turns: tuple
    remarks: tuple = field(default=(), compare=False)
    settings: dict = field(default_factory=dict)

    def __str__(self):
        lines = [f"# {remark}" for remark in self.remarks]
        if self.settings:
            lines.append(f"settings {json.dumps(self.settings)}")
        lines.append(f"servers {self.servers}")
        for client, startup in self.startups.items():
            lines.append(f"client {client} {json.dumps(startup)}" if startup else f"client {client}")
        return "\n".join([*lines, *map(str, self.turns)]) + "\n"

    def with_turns(self, turns):
        """The same clients with other turns; clients without turns are left out."""
        turns = tuple(turns)
        present = {turn.client for turn in turns}
        return replace(self, turns=turns, startups={c: s for c, s in self.startups.items() if c in present})

    def started(self, client):
        """The names in this client's startup packets."""
        later = (turn.messages[0][1:] for turn in self.turns if turn.client == client and turn.connection == "connect")
        return {name for startup in [self.startups[client], *(each[0] for each in later if each)] for name in startup}

    def prepared(self, client):
        """The SQL texts that this client prepares through the protocol, and those that another session runs meanwhile."""
        texts = {"P": 2, "meanwhile": 1}
        return [m[texts[m[0]]] for turn in self.turns if turn.client == client for m in turn.messages if m[0] in texts]

    def texts(self):
        """All SQL texts in it."""
        return [m[-1] if m[0] == "Q" else m[2] for turn in self.turns for m in turn.messages if m[0] in "QP"]


def read(text):
    """The round that a text describes."""
    servers, startups, turns, remarks, settings = 1, {}, [], [], {}
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word.startswith("#"):
            remarks.append(line[1:].strip())
        elif word == "settings":
            settings = json.loads(rest)
        elif word == "servers":
            servers = int(rest)
        elif word == "client":
            client, _, startup = rest.partition(" ")
            startups[int(client)] = json.loads(startup) if startup.strip() else {}
        else:
            turns.append(_turn(int(word), rest.strip()))
    for turn in turns:
        startups.setdefault(turn.client, {})
    return Round(servers, startups, tuple(turns), tuple(remarks), settings)


def _turn(client, rest):
    decoder, messages = json.JSONDecoder(), []
    while rest.startswith("["):
        said, end = decoder.raw_decode(rest)
        messages.append(tuple(said))
        rest = rest[end:].strip()
    cuts = re.search(r"cut ([\d,]+)", rest)
    return Turn(client, tuple(messages), not re.match(r"go\b", rest), tuple(map(int, cuts[1].split(","))) if cuts else ())

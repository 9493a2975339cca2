"""Makes a round out of a seed: what each client does, and in which order."""

import random
import re

from sessions import drivers, words
from sessions.rounds import Round, Turn

STARTUPS = {
    "TimeZone": ["Asia/Tokyo", "PST8PDT"], "DateStyle": ["German", "Postgres, MDY"], "application_name": ["began", "Two Words"],
    "client_encoding": ["UTF8", "LATIN1"], "search_path": ["public, pg_catalog", "nowhere"], "work_mem": ["5MB"], "extra_float_digits": ["2"],
    "tenant.id": ["began"], "options": ["-c work_mem=7MB", "-c a.b=began -c statement_timeout=50s"], "role": ["bob"], "user": ["postgres", "bob"],
    "IntervalStyle": ["iso_8601"],
}  # fmt: skip
"""What a client may ask for in its startup packet."""

FEATURES = {
    "comments", "quoted names", "null settings", "many names", "resets in a body", "prepared in a body", "pg_prepared_statements",
    "unnamed without parse", "mixed names", "errors in a group", "computed names", "backslashes", "prepared settings",
    "long identifiers",
    "pipelined rollback", "names of three parts", "custom startup parameters", "changed columns", "drivers",
}  # fmt: skip
"""What can be left out of rounds by name, while it is known to fail."""


RESETS = re.compile(r"reset|discard|default|null|zone local|set names|from stdin|fz\.", re.IGNORECASE)
UNSEEN = re.compile(r"\bexecute\b|fz\.reset|do \$\$.*reset|, null,", re.IGNORECASE)
"""Resets without a telling word: what the client started with comes back when its transaction and its pipeline are over.

(session-state.md, What is not seen.)
"""


class Client:
    """Makes one client's turns, and keeps in mind what makes them meaningful."""

    def __init__(self, chance, number, topics, features):
        self.started = {}
        self.custom = words.CUSTOM
        self.secretive = False
        self.chance, self.client, self.topics, self.features = chance, number, topics, features
        self.pick = chance.choice
        self.values = 0
        self.key = 1000 * number + chance.randrange(10) * 10
        self.named = []
        self.changes, self.drives = False, False

    def may(self, feature):
        """Whether rounds may have this."""
        return feature in self.features

    def statement(self):
        """A statement of one of the client's topics."""
        return words.TOPICS[self.pick(self.topics)](self)

    def unbound(self):
        """One that needs no values and no data: it can stand in a string with other statements."""
        while True:
            made = self.statement()
            if not made.values and not made.data:
                return made

    def resets(self, text):
        """Whether this resets what the client started with: what reads it in the same string or group is told the server's own value.

        (session-state.md, What is not seen.)
        """
        return bool(self.started) and RESETS.search(text) is not None

    # What is sent. Each of these returns a list of turns.

    def turn(self, messages, waits=None):
        """One turn, perhaps in several writes."""
        if waits is None:
            waits = self.chance.random() < 0.85
        if self.started and any(UNSEEN.search(text) for said in messages for text in said if isinstance(text, str)):
            # With its answer the pipeline is over.
            waits = True
        cuts = ()
        if self.chance.random() < 0.15:
            cuts = tuple(sorted({self.chance.randrange(1, self.pick([8, 30, 90])) for _ in range(self.pick([1, 1, 2, 4]))}))
        return Turn(self.client, tuple(messages), waits, cuts)

    def run(self, made, name="", parsed=True, described=None):
        """Messages that run a statement by the extended protocol, without a Sync."""
        said = [("P", name, made.sql, [])] if parsed else []
        if self.chance.random() < 0.15:
            said.append(("D", "S", name))
        said.append(("B", "", name, list(made.values)))
        if self.chance.random() < 0.3:
            said.append(("D", "P", ""))
        said.append(("E", "", self.pick([0, 0, 0, 0, 1])))
        if made.data:
            said[-1] = ("E", "", 0)
            said.append(self.data(made))
        return said

    def data(self, made):
        """The data of a COPY, and its end."""
        return ("copy", list(made.data), "changed my mind") if self.chance.random() < 0.15 else ("copy", list(made.data))

    def simple(self):
        """One string in the simple protocol."""
        made = self.statement()
        if made.values:
            return self.extended(made)
        if made.data:
            return [self.turn([("Q", made.sql), self.data(made)])]
        return [self.turn([("Q", made.sql)])]

    def string(self):
        """Several statements in one string."""
        texts = []
        for _ in range(self.pick([2, 2, 3, 4])):
            texts.append(self.unbound().sql)
            if self.resets(texts[-1]):
                break
        return [self.turn([("Q", self.pick(["; ", ";", " ; "]).join(texts))])]

    def extended(self, made=None):
        """One statement, one group."""
        return [self.turn([*self.run(made or self.statement()), ("S",)])]

    def pipeline(self):
        """Several statements, in one group or several, sent at once."""
        said = []
        for _ in range(self.pick([2, 2, 3, 5])):
            if self.chance.random() < 0.2:
                # Without the Sync it would be skipped after an error, and the number of answers would be unknown.
                ends = said and said[-1][0] not in "SQ"
                said += [*([("S",)] if ends else []), ("Q", self.unbound().sql)]
                if self.started and UNSEEN.search(said[-1][1]):
                    break
                continue
            made = self.statement()
            said += self.run(made)
            if self.started and UNSEEN.search(made.sql):
                break
            if self.chance.random() < 0.5 or self.resets(made.sql):
                said.append(("S",))
            elif self.chance.random() < 0.2:
                said.append(("H",))
        return [self.turn([*said, ("S",)])]

    def apart(self):
        """A group in several turns: Flush or Sync between its parts."""
        made = self.statement()
        if self.started and UNSEEN.search(made.sql):
            return self.extended(made)
        named = self.may("mixed names") or "prepared" not in self.topics
        name = self.pick(["", "", self.pick(words.NAMES) if named else ""])
        messages = self.run(made, name)
        at = self.chance.randrange(1, len(messages)) if not made.data else 1
        between = self.pick([("H",), ("S",), ("S",), None] if name or self.may("unnamed without parse") else [("H",), None])
        first = [*messages[:at], *([between] if between else [])]
        return [self.turn(first), *(self.block(1) if between == ("S",) and self.chance.random() < 0.3 else []), self.turn([*messages[at:], ("S",)])]

    def names(self):
        """Statements by name through the protocol."""
        name = self.pick(words.NAMES)
        how = self.chance.random()
        if how < 0.4 or not self.named:
            made = self.statement()
            # This generator could not see a reset that runs under a name. And if another server prepares the text again, it
            # reads it in the client's present encoding. (session-state.md, What is not seen.)
            if made.data or not made.sql.isascii() or self.started and UNSEEN.search(made.sql):
                made = words.Statement("select 1")
            said = [("P", name, made.sql, [])]
            if self.chance.random() < 0.3:
                said.insert(0, ("C", "S", name))
            self.named.append((name, len(made.values)))
            if self.chance.random() < 0.5:
                said += [("B", "", name, list(made.values)), ("E", "", 0)]
            return [self.turn([*said, ("S",)])]
        name, count = self.pick(self.named)
        values = [self.pick(["tenant.id", "work_mem"]), f"{self.client}v"][:count]
        said = []
        for _ in range(self.pick([1, 1, 2])):
            said += self.pick(
                [
                    [("B", "", name, values), ("E", "", 0)],
                    [("D", "S", name)],
                    [("C", "S", name)],
                    [("B", "", name, values), ("D", "P", ""), ("E", "", 0)],
                ]
            )
        return [self.turn([*said, ("S",)])]

    def unnamed(self):
        """The unnamed statement without a Parse in front."""
        said = self.pick([
            [("D", "S", "")], [("B", "", "", []), ("E", "", 0)], [("C", "S", ""), ("B", "", "", []), ("E", "", 0)], [("E", "", 0)],
            [("D", "P", "")], [("C", "S", "")], [("C", "P", "")], [("D", "S", ""), ("B", "", "", []), ("E", "", 0)],
            [("B", "", "never", []), ("E", "", 0)],
        ])  # fmt: skip
        return [self.turn([*said, ("S",)])]

    def reset_with_error(self):
        """What resets a session and an error, in one group or string."""
        reset = self.pick(["discard all", "reset all", "reset timezone", "set timezone to default"])
        error = self.pick(["select 1/0", "selec", "select nonsense"])
        how = self.chance.random()
        if how < 0.4:
            said = [*self.run(words.Statement(reset)), *self.run(words.Statement(error)), ("S",)]
        elif how < 0.6:
            said = [("Q", f"{reset}; commit; {error}")]
        elif how < 0.8:
            said = [("Q", f"{reset}; {error}")]
        else:
            said = [("Q", "begin"), ("Q", reset), ("Q", self.pick(["commit", "rollback"])), ("Q", error)]
        # In a pipeline what it started with comes back after the last answer. (session-state.md, What is not seen.)
        return [self.turn(said, True), self.turn([("Q", self.pick(["show timezone", "show datestyle", "show application_name"]))])]

    def failed_block(self):
        """A transaction that fails, and what is pipelined behind its ROLLBACK."""
        said = [("Q", "begin"), ("Q", "select 1/0")] if self.chance.random() < 0.7 else [("Q", "begin; select 1/0")]
        said += [("P", self.pick(["", *words.NAMES]), "select 1", []), ("S",)] if self.chance.random() < 0.3 else []
        turns = [self.turn(said)] if self.chance.random() < 0.5 else []
        behind = [] if turns else said
        name = self.pick(words.NAMES)
        after = self.pick([
            [*self.run(self.statement()), ("S",)], [("Q", self.unbound().sql)], [("Q", f'execute "{name}"')],
            [("P", name, "select 5", []), ("B", "", name, []), ("E", "", 0), ("S",)], [("B", "", name, []), ("E", "", 0), ("S",)],
        ])  # fmt: skip
        rollback = self.pick([[("Q", "rollback")], [*self.run(words.Statement("rollback")), ("S",)], self.run(words.Statement("rollback"))])
        return [*turns, self.turn([*behind, *rollback, *after])]

    def asks(self):
        """A value that was drawn: in the transaction that drew it, or alone."""
        n = self.client
        ask = self.pick([f"select currval('c{n}.s')", "select lastval()"])
        if self.chance.random() < 0.6:
            return [self.turn([("Q", f"begin; select nextval('c{n}.s')")], True), self.turn([("Q", ask)]), self.turn([("Q", "commit")])]
        # Outside of a transaction: it may fail where PostgreSQL alone would answer.
        return [self.turn([("Q", "commit")], True), self.turn([("Q", ask)], True)]

    def portal(self):
        """A portal with a name, read in parts."""
        made = words.Statement(self.pick(["select generate_series(1, 4)", f"select v from c{self.client}.t order by id", "values ('a'), ('b')"]))
        name = self.pick(["c1", "c3"])
        turns = [self.turn([("P", "", made.sql, []), ("B", name, "", []), ("E", name, 1), ("S",)])]
        rest = [[("E", name, 1)], [("D", "P", name), ("E", name, 0)], [("C", "P", name)], [("Q", f"fetch 1 from {name}")]]
        rest += [[("B", name, "", [])]] if self.may("unnamed without parse") else []
        for _ in range(self.pick([1, 2, 3])):
            said = self.pick(rest)
            turns.append(self.turn(said if said[0][0] == "Q" else [*said, ("S",)]))
        return turns if self.chance.random() < 0.3 else [self.turn([("Q", "begin")]), *turns, self.turn([("Q", "commit")])]

    def block(self, depth=0):
        """A transaction."""
        said = lambda text: self.turn([("Q", text)] if self.chance.random() < 0.7 else [*self.run(words.Statement(text)), ("S",)])  # noqa: E731
        named = self.may("mixed names") or "prepared" not in self.topics
        turns = [said(self.pick(["begin", "BEGIN", "start transaction", "begin isolation level serializable"]))]
        ends = depth > 0
        for _ in range(self.pick([1, 2, 3, 5])):
            act = self.pick([self.simple, self.simple, self.string, self.extended, self.pipeline, self.names if named else self.simple])()
            texts = [text for turn in act for message in turn.messages for text in message if isinstance(text, str)]
            if self.started and any(map(UNSEEN.search, texts)):
                if sum(message[0] in "PQ" for message in act[0].messages) > 1 or act[0].messages[0][0] == "P" and act[0].messages[0][1]:
                    continue
                # What it would read in the rest of this transaction is not what it started with.
                turns += act
                ends = True
                break
            turns += act
            if self.chance.random() < 0.15:
                turns.append(said(self.pick(["savepoint a", "rollback to a", "release a", "savepoint b"])))
        if ends or self.chance.random() < 0.95:
            turns.append(said(self.pick(["commit", "commit", "rollback", "end", "rollback and chain" if not depth else "rollback"])))
        return turns

    def act(self, way):
        """The turns of one way. A transaction in which something was reset unseen ends, and the client waits for that."""
        turns = way()
        if self.started and any(UNSEEN.search(text) for turn in turns for said in turn.messages for text in said if isinstance(text, str)):
            turns = [*turns, self.turn([("Q", "commit")], True)]
        return turns

    def again(self):
        """Leaves, and comes again."""
        # What was sent before must have happened: whether it does after a closed socket is chance.
        turns = [Turn(self.client, (("S",), ("Q", "select 'done'")))]
        if self.chance.random() < 0.2:
            turns.append(self.turn([("Q", words.sets(self).sql)], False))
            turns.append(Turn(self.client, (("hang up",),)))
        else:
            turns.append(self.turn([("Q", "select 'done'")], True))
            turns.append(Turn(self.client, (self.pick([("terminate",), ("terminate",), ("hang up",)]),)))
        self.named.clear()
        self.started = startup(self.chance, self.features, self.topics)
        return [*turns, Turn(self.client, (("connect", self.started),))]

    def turns(self, acts):
        """The client's whole session."""
        ways = [(self.simple, 8), (self.string, 2), (self.extended, 4), (self.pipeline, 2), (self.apart, 1), (self.block, 3), (self.again, 1)]
        if self.may("pipelined rollback"):
            ways.append((self.failed_block, 1))
        if "prepared" not in self.topics or self.may("mixed names"):
            ways.append((self.names, 6 if "prepared" in self.topics else 2))
        if "prepared" in self.topics:
            ways += [(self.unnamed, 2)] if self.may("unnamed without parse") else []
        if "resets" in self.topics and self.may("errors in a group"):
            ways.append((self.reset_with_error, 2))
        if "cursors" in self.topics:
            ways.append((self.portal, 4))
        if "sequences" in self.topics:
            ways.append((self.asks, 4))
        if self.changes:
            ways.append((lambda: drivers.changed(self), 4))
        if self.drives:
            ways += [((lambda way=way: way(self)), weight) for way, weight in drivers.WAYS]
        made = []
        for _ in range(acts):
            made += self.act(self.chance.choices([way for way, _ in ways], [weight for _, weight in ways])[0])
        return made


def startup(chance, features, topics):
    """Parameters of a startup packet.

    No role where roles are set: SET ROLE NONE goes back to it (session-state.md, What is not seen).
    """
    count = chance.choice([0, 0, 1, 1, 2, 3])
    made = {name: chance.choice(STARTUPS[name]) for name in chance.sample(sorted(STARTUPS), count)}
    return {
        k: v for k, v in made.items()
        if ("." not in f"{k} {v}" or "custom startup parameters" in features) and (k != "role" or "roles" not in topics)
    }  # fmt: skip


def round_of(seed, clients=4, features=FEATURES):
    """The round of a seed."""
    chance = random.Random(seed)
    topics = sorted(words.TOPICS)
    chosen = chance.sample(topics, chance.choice([1, 2, 3, 5])) + ["looks"]
    if chance.random() < 0.5:
        chosen.append("plain")
    if "mixed names" in features and chance.random() < 0.3:
        chosen.append("prepared")
    players = [Client(chance, number, chosen, features) for number in range(clients)]
    # In some rounds the names of settings stand nowhere in plain words: the pool must not depend on having read them before.
    known = words.CUSTOM if "names of three parts" in features else words.CUSTOM[:-1]
    secretive, custom = chance.random() < 0.4, chance.sample(known, chance.choice([1, 2, len(known)]))
    for player in players:
        player.secretive, player.custom = secretive, custom
        player.started = startup(chance, features, chosen)
        player.changes = "changed columns" in features and seed % 5 == 2
        player.drives = "drivers" in features and seed % 5 == 3
    startups = {player.client: player.started for player in players}
    left = {player.client: player.turns(chance.choice([2, 3, 4, 6, 9])) for player in players}
    turns = []
    while left:
        number = chance.choice(sorted(left))
        # Runs of one client's turns are as likely as strict alternation.
        for _ in range(chance.choice([1, 1, 2, 4])):
            if left[number]:
                turns.append(left[number].pop(0))
        if not left[number]:
            del left[number]
    return Round(chance.choice([1, 1, 2, 3]), startups, tuple(turns), (f"seed {seed}",))

"""Random sessions, played to PostgreSQL directly and through the pooler at once: every answer must be the same.

The sessions mix the simple and the extended protocol, named statements, pipelines, errors and transactions. Only what transaction
pooling cannot keep (the session of PostgreSQL between transactions) is left out. Several clients play at the same time over few
servers, so that their statements meet on the same connections. A seed makes a session; a failing one is named, and made as short as
it can be while it still fails.
"""

import os
import random
import struct
import threading
import time

import pytest

from harness.wire import FLUSH, SYNC, Raw, bind, close, describe, execute, parse, query

SEEDS = int(os.environ.get("DIFFERENTIAL_SEEDS", "12"))
"""How many random rounds are played; `DIFFERENTIAL_SEEDS=200 tests/run.sh blackbox/test_differential.py` for more."""
CLIENTS = 5
STEPS = 60
SHORTEN_S = 20
"""How long a failing session may be shortened."""

TEXTS = [
    "select 1", "select $1::int", "select $1::int, $2::text", "select generate_series(1, $1::int)", "select 'x' || $1::text",
    "select 1 / (n + $1::int) from generate_series(0, 0) n", "insert into scratch values (7000, $1)", "select count(*) > -1 from kv",
    "begin", "commit", "rollback", "savepoint a", "rollback to a", "select nonsense", "selec", "select v from kv where id = $1", "",
    "select repeat('r', $1::int * 1000)", "set local work_mem = '4MB'", "copy (select generate_series(1, 3)) to stdout",
]  # fmt: skip


def parameters(text):
    return 2 if "$2" in text else 1 if "$1" in text else 0


class Player:
    """Makes up one session: writes, each a list of messages. It keeps just enough in mind to make most of them meaningful."""

    def __init__(self, seed):
        self.choice = random.Random(seed)
        self.known = {}

    def value(self, text):
        if "1 / " in text:
            return self.choice.choice([0, 1, 2])
        return self.choice.choice([1, 2, 5, 40, None]) if self.choice.random() < 0.95 else "not a number"

    def statement(self):
        """Messages that run something: a known name, a new name, the unnamed statement, or a mistake."""
        choice, said = self.choice, []
        kind = choice.random()
        if kind < 0.45 and self.known:
            name = choice.choice(list(self.known))
            text = self.known[name]
        elif kind < 0.75:
            name, text = f"s{choice.randrange(8)}", choice.choice(TEXTS)
            if choice.random() < 0.3:
                said.append(close("S", name))
            said.append(parse(name, text))
            self.known.setdefault(name, text)
        elif kind < 0.95:
            name, text = "", choice.choice(TEXTS)
            said.append(parse("", text))
        else:
            name, text = "never", "select 1"
        if choice.random() < 0.2:
            said.append(describe("S", name))
        said.append(bind("", name, [self.value(text) for _ in range(parameters(text))]))
        if choice.random() < 0.4:
            said.append(describe("P", ""))
        said.append(execute("", choice.choice([0, 0, 0, 2])))
        if choice.random() < 0.1:
            said.append(close("S", name))
        return said

    def write(self):
        """What is sent at once."""
        choice = self.choice
        if choice.random() < 0.2:
            texts = [choice.choice([t for t in TEXTS if "$" not in t]) for _ in range(choice.choice([1, 1, 1, 3]))]
            return [query("; ".join(texts))]
        said = []
        for _ in range(choice.choice([1, 1, 1, 2, 5])):
            for _ in range(choice.choice([1, 1, 2, 4])):
                said += self.statement()
            if choice.random() < 0.1:
                said.append(FLUSH)
            said.append(SYNC)
        return said


def heard(session, writes):
    """What was answered, without what may differ: texts of errors, notices, reports of parameters."""
    said = []
    for _ in range(sum(message == SYNC or message[:1] == b"Q" for message in writes)):
        for message in session.until("Z").messages:
            if message.tag == "E":
                said.append(f"E({message.fields()['C']})")
            elif message.tag == "T":
                said.append(f"T{message.columns()}")
            elif message.tag not in "NS":
                body = message.body if len(message.body) < 40 else b"%d bytes %d" % (len(message.body), hash(message.body))
                said.append(f"{message.tag}({body.decode('latin-1')!r})" if body else message.tag)
    return said


def alike(wanted, got):
    """Whether two answers are the same, group by group, but for two things that a pooler cannot know better:

    A Parse with two faults, a name in use and a text that is wrong or not allowed now, may be refused for either: PostgreSQL looks at
    the text first, a pooler that has never seen the text can look only at the name.

    In a failed transaction a statement that the client's present server does not have cannot be prepared there: 25P02, where
    PostgreSQL would find another fault or describe it. Nothing can be done with it there in either case.
    """
    ours, theirs = groups(got), groups(wanted)
    return len(ours) == len(theirs) and all(alike_groups(w, g) for w, g in zip(theirs, ours))


def groups(answer):
    """The answer, cut behind each ReadyForQuery."""
    cut, start = [], 0
    for at, said in enumerate(answer, start=1):
        if said.startswith("Z("):
            cut.append(answer[start:at])
            start = at
    return cut + [answer[start:]]


def alike_groups(wanted, got):
    """`alike`, for one group."""
    either = {"E(42P05)", "E(42601)", "E(42703)", "E(25P02)"}
    if len(wanted) == len(got) and all(w == g or ({w, g} <= either and "E(42P05)" in (w, g)) for w, g in zip(wanted, got)):
        return True
    failed = "Z('E')"
    return got[-2:] == ["E(25P02)", failed] and wanted[-1] == failed and wanted[: len(got) - 2] == got[:-2]


def difference(pg, pooler, writes):
    """Plays the writes to both; returns the first write that was answered differently and the two answers."""
    with Raw(("127.0.0.1", pg.port)) as direct, pooler.raw(timeout_s=10) as through:
        direct.login("alice", "app")
        for number, write in enumerate(writes):
            direct.send(*write)
            wanted = heard(direct, write)
            try:
                through.send(*write)
                got = heard(through, write)
            except Exception as fault:  # noqa: BLE001  # a difference too
                got = [repr(fault)]
            if not alike(wanted, got):
                return number, wanted, got
    return None


def shortened(fails, writes):
    """Leaves out writes and messages as long as `fails(writes)` stays true."""
    stop = time.monotonic() + SHORTEN_S
    smaller = True
    while smaller and time.monotonic() < stop:
        smaller = False
        for number in reversed(range(len(writes))):
            tries = [writes[:number] + writes[number + 1 :]]
            tries += [writes[:number] + [write] + writes[number + 1 :] for write in without_one(writes[number])]
            for attempt in tries:
                if time.monotonic() < stop and attempt and fails(attempt):
                    writes, smaller = attempt, True
                    break
    return writes


def without_one(write):
    """The write without one of its messages, in turn; what is left still ends in something that is answered."""
    for at in range(len(write) - 1):
        yield write[:at] + write[at + 1 :]


def readable(write):
    """A write in words."""
    said = []
    for message in write:
        tag, body = message[:1].decode(), message[5:]
        parts = body.split(b"\0")
        shown = {"P": parts[:2], "B": parts[:2], "D": [body[:1], body[1:-1]], "C": [body[:1], body[1:-1]], "Q": parts[:1]}.get(tag, [])
        if tag == "E":
            shown = [b"%d" % struct.unpack("!i", body[-4:])]
        said.append(tag + ("(" + ", ".join(part.decode() for part in shown) + ")" if shown else ""))
    return " ".join(said)


def report(seed, pg, pooler, writes):
    """The shortest session that fails alone on a fresh pool, in words; the whole difference when it needs company to fail."""

    def fails(attempt):
        pooler.admin("RECONNECT")
        return difference(pg, pooler, attempt)

    first = difference(pg, pooler, writes)
    if not fails(writes):
        return f"seed {seed}: fails only beside others, or not every time; last seen: {first}"
    short = shortened(fails, writes)
    number, wanted, got = fails(short) or first
    lines = [f"  write {n}: {readable(write)}" for n, write in enumerate(short)]
    return "\n".join([f"seed {seed}, shortened:", *lines, f"  to write {number} PostgreSQL said {wanted}", f"  {'':10} the pooler said {got}"])


@pytest.mark.needs("prepared statement errors keep the session")
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_the_pooler_answers_as_postgres_does(pooled, pg, seed, mode):
    """CLIENTS sessions at once over two servers with room for four statements (over a server each in session mode)."""
    pooler = pooled(pool_mode=mode, default_pool_size=2 if mode == "transaction" else CLIENTS, max_prepared_statements=4)
    sessions, different = {}, {}

    def work(who):
        player = Player(who)
        sessions[who] = [player.write() for _ in range(STEPS)]
        found = difference(pg, pooler, sessions[who])
        if found:
            different[who] = found

    threads = [threading.Thread(target=work, args=(seed * 1000 + who,)) for who in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if different:
        who, (number, wanted, got) = min(different.items(), key=lambda item: item[1][0])
        writes = sessions[who][: number + 1]
        seen = f"to {readable(writes[-1])}\n  PostgreSQL said {wanted}\n  the pooler said {got}"
        pytest.fail(
            f"{len(different)} of {CLIENTS} sessions differ\n{report(who, pg, pooler, writes)}\nfirst seen with seed {who}, {seen}", pytrace=False
        )


def test_the_player_is_not_idle():
    """A guard for this file: the made up sessions do meet errors, transactions and statements with values."""
    said = [message for seed in range(50) for message in Player(seed).write()]
    for part in (b"selec\0", b"commit", b"begin", b"never", b"$1"):
        assert any(part in message for message in said), part

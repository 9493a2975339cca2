"""Random sessions of several clients: each is answered as it is when it is alone with PostgreSQL. `sessions/` makes and plays them.

What fails is made small and printed: save it as a file in `sessions/cases` to keep it, play it with
`python -m sessions.fuzz --replay FILE`. For hours of it: `make fuzz-sessions`.
"""

import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import REPOSITORY
from harness.pooler import kind
from sessions import rules, swarm, told, words
from sessions.arena import Arena
from sessions.fuzz import allowed, attempt, search
from sessions.generate import FEATURES, round_of
from sessions.known import KNOWN, UNFOLLOWED
from sessions.rounds import CONNECTION, Round, Turn, read
from sessions.shrink import Shrinker

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

FOLDER = Path(__file__).parent.parent / "sessions" / "cases"
CASES = sorted(FOLDER.glob("*.session"))
WITH_SETTINGS = {"session_pooling": {"pool_mode": "session"}, "sequences_pinned": {"sequence_affinity": "pin"}}
"""Folders of kept rounds that failed with these settings."""
ROUNDS = 40
"""The number of rounds that belong to each chunk."""
PLAYED = 20
"""The number of them that are played. A round takes a quarter of a second or less, most of it waiting for answers."""
CHUNKS = [{}] * 4 + [{"query_cache": "on"}] + [{"max_prepared_statements": 4}] * 2 + [{"pool_mode": "session"}, {"sequence_affinity": "pin"}]
"""The settings of the poolers in each chunk."""


@pytest.fixture(scope="module")
def arena_of(cluster_of):
    """A function: the poolers with these settings, started when first asked for."""
    arenas = {}

    def get(**settings):
        key = str(settings)
        if key not in arenas:
            arenas[key] = Arena(cluster_of(DISTRIBUTION), **settings)
        return arenas[key]

    yield get
    assert [fault for arena in arenas.values() for fault in arena.finish()] == []


@pytest.fixture
def arena(arena_of):
    """Poolers with default settings."""
    return arena_of()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_kept_rounds(arena, path):
    """Rounds that failed once."""
    played = read(path.read_text())
    found = next(filter(None, (attempt(arena, played) for _ in range(3))), None)
    known = next((known.name for known in KNOWN if path.stem in known.cases), None)
    if found and known:
        pytest.xfail(f"known: {known}")
    assert found is None, f"{played}\n{found}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.session")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_kept_rounds_with_settings(arena_of, path):
    """Rounds that failed once with other settings."""
    played = read(path.read_text())
    arena = arena_of(**WITH_SETTINGS[path.parent.name])
    found = next(filter(None, (attempt(arena, played) for _ in range(3))), None)
    assert found is None, f"{played}\n{found}"


@pytest.mark.parametrize("chunk", range(len(CHUNKS)))
def test_random_rounds(arena_of, chunk):
    """Four clients, pools of one to three servers."""
    arena = arena_of(**CHUNKS[chunk])
    before = arena.incomparable
    for finding in search(arena, range(chunk * ROUNDS, chunk * ROUNDS + PLAYED), features=allowed(), tries=150):
        pytest.fail(f"with {CHUNKS[chunk]}: {finding}", pytrace=False)
    assert arena.incomparable - before < PLAYED // 10, "rounds that hang with PostgreSQL itself compare nothing"


def test_each_setting_is_drawn_or_has_a_reason(pooled):
    """A new setting needs a row in one of the swarm's two tables."""
    shown = {row["key"] for row in pooled().admin("SHOW CONFIG")}
    assert shown == swarm.DRAWN.keys() | swarm.FIXED.keys()
    assert not swarm.DRAWN.keys() & swarm.FIXED.keys() and all(swarm.FIXED.values())
    drawn = [swarm.draw(number, clustered=True) for number in range(300)]
    for name, values in {**swarm.DRAWN, **{f"cluster.{name}": values for name, values in swarm.CLUSTER.items()}}.items():
        assert {draw[name] for draw in drawn if name in draw} == set(values), name


@pytest.mark.parametrize("number", range(2))
def test_random_rounds_with_drawn_settings(arena_of, number):
    """The answers do not depend on settings that are not about answers."""
    seeds = range(10_000 + number * swarm.ROUNDS, 10_000 + number * swarm.ROUNDS + 25)
    for finding in search(arena_of(), seeds, features=allowed(), tries=150, swarm_too=True):
        pytest.fail(str(finding), pytrace=False)


def test_another_answer_is_found(cluster_of):
    """A pooler that does not keep sessions is told from PostgreSQL within a few rounds."""
    arena = Arena(cluster_of(DISTRIBUTION), session_state="pgbouncer", ignore_startup_parameters="options,search_path,work_mem,extra_float_digits")
    try:
        assert next((seed for seed in range(20) if attempt(arena, round_of(seed, features=allowed()))), None) is not None
    finally:
        assert arena.finish() == []


def test_a_round_that_crashes_postgresql_is_not_compared(certificates):
    """It is reported as one that did, and the next round is played when PostgreSQL is up again."""
    texts = ("copy (select 1) to program 'kill -9 $PPID'", "select 1")
    crash, after = (read(f'client 0 {{"user": "postgres"}}\n0 ["Q", "{text}"]') for text in texts)
    cluster = Cluster(DISTRIBUTION, certificates)
    arena = Arena(cluster)
    # Commits are asynchronous: the crash would take the arena's last tables with it.
    cluster.sql("checkpoint")
    try:
        assert attempt(arena, crash) is None
        assert (arena.crashes, arena.incomparable) == ([crash], 1)
        assert arena.compare(after) is None
    finally:
        faults = arena.finish()
        cluster.discard()
    assert faults == []


def test_each_byte_counts(arena):
    """An answer with one byte changed, one message less or twice, differs, but for what no two connections share."""
    played = read(
        """
        client 0 {"TimeZone": "Asia/Tokyo"}
        0 ["Q", "set work_mem = '2MB'; show work_mem; select 1/0"]
        0 ["P", "p", "select $1::text", []] ["D", "S", "p"] ["B", "", "p", ["x"]] ["E", "", 0] ["S"]
        0 ["Q", "listen own; notify own, 'x'"]
        0 ["Q", "set timezone = 'UTC'"]
        0 ["Q", "copy (select 1) to stdout"]
        """.replace("        ", "")
    )
    client = arena.direct(played)[0]
    wanted = rules.groups(client, arena.lasting)
    assert rules.difference(wanted, rules.groups(client, arena.lasting), set()) is None
    unnoticed = []
    told = list(client.told)
    for at, (tag, body) in enumerate(told):
        changed = bytearray(body)
        if changed:
            changed[-1 if tag not in "KEN" else 0] ^= 1
        for other in ([(tag, bytes(changed))] if body else [], [], [(tag, body), (tag, body)]):
            client.told = [*told[:at], *other, *told[at + 1 :]]
            if other != [(tag, body)] and rules.difference(wanted, rules.groups(client, arena.lasting), set()) is None:
                unnoticed.append((tag, len(other)))
    # Nor does it count how often a parameter is reported at login: the last report counts.
    assert {tag for tag, _ in unnoticed} <= {"K", "S"} and unnoticed.count(("K", 1)) == 1, unnoticed
    reports_at_login = sum(tag == "S" for tag, _ in told[: [tag for tag, _ in told].index("Z")])
    assert [length for tag, length in unnoticed if tag == "S"].count(2) == reports_at_login, unnoticed
    assert len([length for tag, length in unnoticed if tag == "S" and length != 2]) <= 2 * len(UNFOLLOWED), unnoticed


ERROR = {"S": "ERROR", "V": "ERROR", "C": "26000", "M": "no", "F": "a.c", "L": "1", "R": "f"}


def error(**fields):
    """A group that is one error."""
    return [("E", tuple(sorted({**ERROR, **fields}.items()))), ("Z", b"I")]


def failed(routine):
    """A group that is refused in a failed transaction."""
    return [*error(C="25P02", R=routine)[:1], ("Z", b"E")]


def changed(**fields):
    """PostgreSQL's refusal to run a statement that has other columns now."""
    return error(C="0A000", R="RevalidateCachedQuery", **fields)


def row(length):
    """A group that is one row of one value without bytes."""
    return [("D", b"\0\1" + length), ("Z", b"I")]


def column(name, table):
    """A RowDescription of one column, as it is compared."""
    return ((name.encode() + b"\0", table, bytes(14)),)


BEGAN = b"\0\0\0\5began"
NULL, EMPTY = b"\xff\xff\xff\xff", b"\0\0\0\0"
CHANGED_OURS = [("E", tuple(f for f in changed()[0][1] if f[0] != "L")), ("Z", b"I")]
OURS = [("E", tuple(f for f in error()[0][1] if f[0] not in "FLR")), ("Z", b"I")]

EXCUSED = {
    "places in PostgreSQL's sources": (error(), OURS),
    "a statement not prepared in a failed transaction": ([("t", b""), ("Z", b"E")], failed("exec_parse_message")),
    "a Parse with two faults": (error(C="42601"), error(C="42P05")),
    "a sequence's value from an earlier transaction": (row(EMPTY), error(C="55000")),
    "empty in place of NULL": (row(NULL), row(EMPTY)),
    "empty in place of the startup value": (row(BEGAN), row(EMPTY)),
    "an unnamed statement from an earlier transaction": ([("2", b""), ("Z", b"I")], error(M="unnamed prepared statement does not exist")),
    "an unnamed portal that is another's": (error(C="34000"), error(C="55000")),
    "a prepared EXECUTE": ([("n", b""), ("Z", b"I")], [("T", b""), ("Z", b"I")]),
    "a name that can no longer be prepared": (error(C="42P01"), error(C="26000", R="FetchPreparedStatement")),
    "a prepared EXECUTE in a failed transaction": ([("t", b""), ("Z", b"E")], failed("exec_describe_statement_message")),
    "columns of a prepared EXECUTE": ([("T", column("v", 0)), ("Z", b"I")], [("T", column("v", 16487)), ("Z", b"I")]),
    "rows of a prepared EXECUTE": ([("C", b"SELECT 1\0"), ("Z", b"I")], [*row(EMPTY)[:1], ("C", b"SELECT 1\0"), ("Z", b"I")]),
    "a notification in another encoding": ([("Z", b"I")], error(C="0A000", M="in the client_encoding")),
    "why a client kept its server": (error(), error(D="Lost with the server, which")),
    "a statement whose columns have changed": (changed(), [("2", b""), ("Z", b"I")]),
    "columns that changed and changed back": ([("2", b""), ("Z", b"I")], CHANGED_OURS),
    "parameters of a text that was prepared before": ([("t", b"\0\1\0\0\0\x17"), ("Z", b"I")], [("t", b"\0\1\0\0\0\x19"), ("Z", b"I")]),
    "a value for a text that was prepared before": (error(C="42804"), [("2", b""), ("Z", b"I")]),
    "a text that was prepared between two changes": ([("2", b""), ("Z", b"I")], error(C="42883")),
    "a statement that is not shown": (row(b"p select id from c0.shaped where v = $1 order by id"), row(b"q select 2")),
    "a level after a read at a standby": (error(C="25001", R="call_enum_check_hook"), [("C", b"SET\0"), ("Z", b"I")]),
    "a temporary schema that is there": (error(C="3F000", M='schema "pg_temp" does not exist'), error(C="42883", M="no function")),
}
NOT_EXCUSED = {
    "places in PostgreSQL's sources": (error(M="other"), OURS),
    "a statement not prepared in a failed transaction": ([("t", b""), ("Z", b"E")], failed("exec_execute_message")),
    "a Parse with two faults": (error(C="42601"), error(C="42703")),
    "a sequence's value from an earlier transaction": (row(EMPTY), error(C="42P01")),
    "empty in place of NULL": (row(NULL), row(b"\0\0\0\1x")),
    "empty in place of the startup value": (row(EMPTY), row(BEGAN)),
    "an unnamed statement from an earlier transaction": ([("2", b""), ("Z", b"I")], error(M='prepared statement "x" does not exist')),
    "an unnamed portal that is another's": (error(C="55000"), error(C="34000")),
    "a prepared EXECUTE": ([("T", b""), ("Z", b"I")], [("n", b""), ("Z", b"I")]),
    "a name that can no longer be prepared": (error(C="22012"), error(C="26000", R="FetchPreparedStatement")),
    "a prepared EXECUTE in a failed transaction": ([("t", b""), ("Z", b"E")], failed("exec_bind_message")),
    "columns of a prepared EXECUTE": ([("T", column("v", 0)), ("Z", b"I")], [("T", column("w", 16487)), ("Z", b"I")]),
    "rows of a prepared EXECUTE": ([("C", b"SELECT 1\0"), ("Z", b"I")], [("Z", b"I")]),
    "a notification in another encoding": ([("Z", b"I")], error(C="0A000", M="no")),
    "why a client kept its server": (error(), error(D="something")),
    "a statement whose columns have changed": (changed(), [("D", b""), ("Z", b"I")]),
    "columns that changed and changed back": ([("D", b""), ("Z", b"I")], CHANGED_OURS),
    "parameters of a text that was prepared before": ([("t", b"\0\1\0\0\0\x17"), ("Z", b"I")], [("t", b"\0\0"), ("Z", b"I")]),
    "a value for a text that was prepared before": (error(C="42846"), [("2", b""), ("Z", b"I")]),
    "a text that was prepared between two changes": ([("t", b"\0\1\0\0\0\x17"), ("Z", b"I")], error(C="42883")),
    "a statement that is not shown": (row(b"p select 1"), row(b"q select 2")),
    "a level after a read at a standby": (error(C="25001", R="PreventInTransactionBlock"), [("C", b"SET\0"), ("Z", b"I")]),
    "a temporary schema that is there": (error(C="3F000", M='schema "x" does not exist'), error(C="42883", M="no function")),
}


def test_what_is_excused_is_documented():
    """The words that each rule names stand in the page."""
    page = " ".join((REPOSITORY / "docs" / "session-state.md").read_text().split())
    of_classes = [rules.NOTICE_MISSING, rules.NOTIFIED_LATE, rules.NOTIFIED_MORE, rules.NOTIFIED_IN_ANOTHER_ORDER, rules.REPORTED_TWICE, rules.MADE_UP_PID]
    for words_of_page in [*(rule.place for rule in rules.RULES), *of_classes]:
        assert words_of_page in page, words_of_page


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.name)
def test_a_rule_excuses_what_it_says_only(rule):
    """Each rule has an example of what it excuses, and of what is near it."""
    prepared = ["execute x", "alter table x drop column y"]
    wanted, got = EXCUSED[rule.name]
    assert rules.difference([wanted], [got], set(), prepared=prepared) is None
    assert rules.difference([wanted], [got], set(), [r for r in rules.RULES if r is not rule], prepared) is not None
    assert (rules.difference([wanted], [got], set()) is None) == (rule.prepares is None)
    wanted, got = NOT_EXCUSED[rule.name]
    assert rules.difference([wanted], [got], set(), prepared=prepared) is not None


def described(kind):
    """Answers to a client that describes its statement: one column of this type."""
    return [("1", b""), ("t", b"\0\0"), ("T", b"\0\1v\0" + struct.pack("!IhIhih", 0, 0, kind, 4, -1, 0)), ("Z", b"I")]


def test_a_client_that_is_misled_is_found():
    """A driver describes a statement once; each row after that is of those columns."""
    said = [("P", "p", "select v", []), ("D", "S", "p"), ("S",), ("B", "", "p", [], [1]), ("E", "", 0), ("S",)]
    rows = {"int": struct.pack("!hii", 1, 4, 7), "real": struct.pack("!hif", 1, 4, 7), "two": struct.pack("!hiiii", 2, 4, 7, 4, 7)}
    for kind, fitting in ((told.INT4, "int"), (told.FLOAT4, "real")):
        for name, sent in rows.items():
            answer = [("2", b""), ("D", sent), ("C", b"SELECT 1\0"), ("Z", b"I")]
            client = SimpleNamespace(
                said=[("connect",), *said],
                told=[("connect", b""), ("R", b""), ("Z", b"I"), *described(kind), *answer],
            )
            assert (told.misled(client) is None) == (name == fitting), (kind, name)
            client.told[-4:] = [*CHANGED_OURS]
            assert told.misled(client) is None
            client.told[-2:] = [("3", b""), ("Z", b"I")]
            with pytest.raises(told.Misread):
                told.misled(client)


def report(name, shown):
    """A ParameterStatus."""
    return ("S", name.encode() + b"\0" + shown.encode() + b"\0")


def test_a_report_that_stays_wrong_is_found():
    """The server's value first and the client's own behind it is documented for what the client started with; nothing more."""
    end = ("Z", b"I")
    late = [[report("TimeZone", "UTC"), end], [report("TimeZone", "Asia/Tokyo"), end]]
    assert rules.difference([[end], [end]], late, {"TimeZone"}) is not None, "PostgreSQL never said Asia/Tokyo here"
    began = [("connect", b""), report("TimeZone", "Asia/Tokyo"), end]
    assert rules.difference([began, [end], [end]], [began, *late], {"TimeZone"}) is None
    assert rules.difference([began, [end], [end]], [began, *late], set()) is not None
    after = [[end]] * rules.Reports.WHILE
    assert rules.difference([began, [end], *after], [began, late[0], *after], {"TimeZone"}) is not None


def test_a_lost_or_foreign_notification_is_found():
    """Late is documented, and one too many after an UNLISTEN; a lost one, or another, is not."""
    end, note, other = ("Z", b"I"), ("A", b"ownch1"), ("A", b"ownch2")
    assert rules.difference([[note, end], [end]], [[end], [note, end]], set()) is None
    assert rules.difference([[note, end], [end]], [[end], [end]], set()) is not None
    assert rules.difference([[note, end], [end]], [[end], [other, end]], set()) is not None
    assert rules.difference([[end]], [[note, end]], set()) is not None
    unlisten = ("C", b"UNLISTEN\0")
    assert rules.difference([[unlisten, end], [end]], [[unlisten, end], [note, end]], set()) is None
    within, over = [[("Z", b"T")]] * rules.Notifications.WHILE, [[end]] * rules.Notifications.WHILE
    assert rules.difference([[unlisten, ("Z", b"T")], *within, [end]], [[unlisten, ("Z", b"T")], *within, [note, end]], set()) is None
    assert rules.difference([[unlisten, end], *over, [end]], [[unlisten, end], *over, [note, end]], set()) is not None


def test_the_text_of_a_round_is_the_round():
    """What is printed can be played again."""
    for seed in range(100):
        played = replace(round_of(seed), settings=swarm.draw(seed % 3))
        assert read(str(played)) == played


def test_rounds_have_everything():
    """A guard for the generator: every topic, every kind of message and of turn appears."""
    made = [round_of(seed) for seed in range(300)]
    kinds = {said[0] for played in made for turn in played.turns for said in turn.messages}
    assert kinds == {"Q", "P", "B", "D", "E", "C", "S", "H", "X", "copy", *CONNECTION}
    assert any(len(turn.messages[0]) == 3 for played in made for turn in played.turns if turn.connection == "meanwhile")
    texts = "\n".join(text for played in made for text in played.texts()).lower()
    for word in ("discard all", "pg_advisory_lock", "with hold", "listen", "currval", "lastval", "copy c", "pg_prepared_statements", "set role",
                 "session authorization", "fz.", "do $$", "deallocate", "savepoint", '"tenant"', "u&", "null, false", "many.n69",
                 "temp table"):  # fmt: skip
        assert word in texts, word
    turns = [turn for played in made for turn in played.turns]
    assert any(turn.cuts for turn in turns) and any(not turn.waits for turn in turns)
    assert {played.servers for played in made} == {1, 2, 3}
    assert set(words.TOPICS) and {known for each in KNOWN for known in each.features} <= FEATURES


def test_shrinking_leaves_what_fails():
    """Of a long round with two telling statements these are left."""
    noise = [Turn(n % 4, (("Q", f"select {n}; select 2"), ("Q", "select 3")), n % 3 > 0, (4,)) for n in range(40)]
    turns = [*noise[:20], Turn(1, (("Q", "select 1; set a.b = 'x'; select 4"),)), *noise[20:], Turn(2, (("Q", "show a.b"),))]

    def fails(played):
        return any("set a.b" in text for text in played.texts()) and any("show a.b" in text for text in played.texts())

    small = Shrinker(fails).shrunk(Round(3, {n: {"TimeZone": "UTC"} for n in range(4)}, tuple(turns)))
    assert small == Round(1, {1: {}, 2: {}}, (Turn(1, (("Q", "set a.b = 'x'"),)), Turn(2, (("Q", "show a.b"),))))

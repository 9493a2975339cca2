"""Servers that answer nonsense. A server is not trusted: the client gets an error, the pooler goes on, no other client notices."""

import socket
import struct
import threading

import pytest

from harness.fake import AUTH_OK, KEY, LOGIN, PARAMETERS, READY, FakeServer, error, parameter, row
from harness.machine import eventually, free_port
from harness.wire import SYNC, Closed, bind, cstr, execute, message, parse, query

SHORT_TIMEOUTS = {"query_wait_timeout": 3, "client_login_timeout": 3, "server_login_retry": 1, "server_connect_timeout": 2}


@pytest.fixture
def faked(pooled):
    """A function: a pooler with the database `fake` in front of a server that behaves as told, and `app` on a real one."""
    servers = []

    def start(behave, **options):
        server = FakeServer(behave, free_port())
        servers.append(server)
        line = f"host=127.0.0.1 port={server.port} dbname=x"
        pooler = pooled(databases={"fake": line}, **(SHORT_TIMEOUTS | {"server_tls_sslmode": "disable"} | options))
        pooler.fake = server
        return pooler

    yield start
    for server in servers:
        server.stop()


def sasl(*mechanisms):
    return message("R", struct.pack("!i", 10) + b"".join(cstr(m) for m in mechanisms) + b"\0")


LOGIN_NONSENSE = {
    "nothing": b"",
    "a zero": b"\0",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "length 0": b"R" + struct.pack("!i", 0),
    "length 3": b"R" + struct.pack("!i", 3),
    "length -1": b"R" + struct.pack("!i", -1),
    "length 2^31-1": b"R" + struct.pack("!i", 2**31 - 1) + b"x" * 1000,
    "a short authentication": message("R", b"\0\0"),
    "an unknown authentication": message("R", struct.pack("!i", 99)),
    "kerberos": message("R", struct.pack("!i", 7)),
    "md5 without salt": message("R", struct.pack("!i", 5)),
    "md5 with a long salt": message("R", struct.pack("!i", 5) + b"s" * 500),
    "sasl without mechanisms": message("R", struct.pack("!i", 10)),
    "sasl with an unknown mechanism": sasl("NONSENSE"),
    "sasl without an end": message("R", struct.pack("!i", 10) + b"SCRAM-SHA-256"),
    "sasl continue first": message("R", struct.pack("!i", 11) + b"r=x,s=AAAA,i=1"),
    "sasl final first": message("R", struct.pack("!i", 12) + b"v=AAAA"),
    "a row before login": row(b"x"),
    "ready before login": READY,
    "login without ready": AUTH_OK + PARAMETERS + KEY,
    "a key that is too short": AUTH_OK + message("K", b"\0\0"),
    "a key of 5000 bytes": AUTH_OK + message("K", struct.pack("!i", 1) + b"k" * 5000) + READY,
    "ready with a strange status": AUTH_OK + PARAMETERS + KEY + message("Z", b"?"),
    "ready without a status": AUTH_OK + PARAMETERS + KEY + message("Z", b""),
    "ready inside a transaction": AUTH_OK + PARAMETERS + KEY + message("Z", b"T"),
    "a parameter without a value": AUTH_OK + message("S", b"TimeZone\0"),
    "a parameter without an end": AUTH_OK + message("S", b"TimeZone\0UTC"),
    "an error without fields": message("E", b""),
    "an error without a code": error(fields={"S": "FATAL", "M": "no code"}),
    "an error without a message": error(fields={"S": "FATAL", "C": "28000"}),
    "an error without an end": message("E", b"SFATAL\0Mno end"),
    "an error of a megabyte": error("FATAL", "28000", "m" * 1_000_000),
    "an unknown message": message("?", b"what"),
    "negotiate": message("v", struct.pack("!ii", 0, 0)),
    "a short negotiate": message("v", b"\0"),
    "a negotiate with lies": message("v", struct.pack("!ii", 0, 2**31 - 1)),
    "copy in": message("G", b"\0\0\0"),
}


def hard(names, *too_hard):
    """The names, of which some are too hard for any PgBouncer: it hangs, forwards the nonsense, or crashes."""
    return [pytest.param(name, marks=pytest.mark.needs("nonsense of servers refused")) if name in too_hard else name for name in names]


@pytest.mark.parametrize(
    "name", hard(LOGIN_NONSENSE, "ready before login", "ready with a strange status", "ready without a status", "ready inside a transaction")
)
def test_nonsense_instead_of_a_login(faked, name):
    """Whatever a server says instead of letting us in: the client is told within its time limit, other clients go on."""

    def behave(peer):
        peer.startup()
        peer.send(LOGIN_NONSENSE[name])
        if name != "nothing":
            peer.hold()

    pooler = faked(behave)
    with pooler.raw() as other:
        with pytest.raises(Closed) as refused, pooler.raw("fake", timeout_s=10) as session:
            session.query("select 1")
        assert refused.value.error["S"] == "FATAL"
        assert refused.value.error.get("C") and refused.value.error.get("M"), "every error has a code and a text"
        assert other.value("select 1") == "1"
    assert pooler.alive()


SCRAM_CHALLENGES = {
    "empty": b"",
    "no salt": b"r=%N%more,i=4096",
    "no iterations": b"r=%N%more,s=c2FsdHNhbHQ=",
    "another nonce": b"r=completelyother,s=c2FsdHNhbHQ=,i=4096",
    "our nonce alone": b"r=%N%,s=c2FsdHNhbHQ=,i=4096",
    "zero iterations": b"r=%N%more,s=c2FsdHNhbHQ=,i=0",
    "negative iterations": b"r=%N%more,s=c2FsdHNhbHQ=,i=-5",
    "two billion iterations": b"r=%N%more,s=c2FsdHNhbHQ=,i=2000000000",
    "iterations beyond 64 bits": b"r=%N%more,s=c2FsdHNhbHQ=,i=99999999999999999999999",
    "a salt that is not base64": b"r=%N%more,s=!!!!,i=4096",
    "an empty salt": b"r=%N%more,s=,i=4096",
    "a nonce of 60 kB": b"r=%N%" + b"n" * 60_000 + b",s=c2FsdHNhbHQ=,i=4096",
    "a salt of 60 kB": b"r=%N%more,s=" + b"QUJD" * 15_000 + b",i=4096",
    "an extension": b"m=must,r=%N%more,s=c2FsdHNhbHQ=,i=4096",
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("name", hard(SCRAM_CHALLENGES, "two billion iterations"))
def test_bad_scram_challenges(faked, name):
    """SCRAM messages of a malicious server (CVE-2026-6665): refused, without a crash and without burning the CPU."""

    def behave(peer):
        peer.startup()
        peer.send(sasl("SCRAM-SHA-256"))
        _, body = peer.read()
        nonce = body.split(b"r=")[-1]
        peer.send(message("R", struct.pack("!i", 11) + SCRAM_CHALLENGES[name].replace(b"%N%", nonce)))
        peer.read()
        peer.send(message("R", struct.pack("!i", 12) + b"v=d3Jvbmcgc2lnbmF0dXJl"), LOGIN)
        peer.hold()

    pooler = faked(behave)
    with pooler.raw() as other:
        with pytest.raises(Closed), pooler.raw("fake", timeout_s=10) as session:
            session.query("select 1")
        assert other.value("select 1") == "1"
    assert pooler.alive()


@pytest.mark.parametrize("final", [b"v=d3JvbmcgZGlnZXN0", b"", b"v=", b"v=!!!", b"e=other-error", b"x" * 50_000])
def test_a_server_that_does_not_know_the_secret(faked, final):
    """A wrong server signature: the server does not have our user's secret, and gets no statement."""
    seen = []

    def behave(peer):
        peer.startup()
        peer.send(sasl("SCRAM-SHA-256"))
        _, body = peer.read()
        nonce = body.split(b"r=")[-1]
        peer.send(message("R", struct.pack("!i", 11) + b"r=" + nonce + b"more,s=c2FsdHNhbHQ=,i=4096"))
        peer.read()
        peer.send(message("R", struct.pack("!i", 12) + final), LOGIN)
        seen.append(peer.wait_for_query())

    pooler = faked(behave)
    with pytest.raises(Closed), pooler.raw("fake", timeout_s=10) as session:
        session.query("select 'confidential'")
    assert not seen


ANSWER_NONSENSE = {
    "the end": b"",
    "length 0": b"D" + struct.pack("!i", 0),
    "length -1": b"D" + struct.pack("!i", -1),
    "length 3": b"Z" + struct.pack("!i", 3),
    "ready of the wrong size": message("Z", b"II"),
    "ready without a status": message("Z", b""),
    "an unknown status": message("Z", b"X"),
    "an unknown message": message("?", b"what"),
    "authentication again": AUTH_OK,
    "a short parameter": message("S", b"x"),
    "a short row description": message("T", b"\0") + READY[:3],
    "a fatal error": error("FATAL", "57P01", "going away"),
    "half a row": b"D" + struct.pack("!i", 1000) + b"half",
    "a key": KEY[:4],
}


@pytest.mark.parametrize("name", hard(ANSWER_NONSENSE, "ready of the wrong size"))
def test_nonsense_instead_of_an_answer(faked, name):
    """A logged in server answers a statement with nonsense and hangs up: its client gets an error, other clients go on."""

    def behave(peer):
        peer.startup()
        peer.send(LOGIN)
        peer.wait_for_query()
        peer.send(ANSWER_NONSENSE[name])

    pooler = faked(behave)
    with pooler.raw() as other:
        with pooler.raw("fake", timeout_s=10) as session:
            session.send(query("select 1"))
            answer = session.until_closed()
            assert not answer.of("Z") or name in ("ready of the wrong size", "an unknown status")
        assert other.value("select 1") == "1"
    assert pooler.alive()


TOO_MUCH = {
    "a second answer": row(b"stray") + READY,
    "a second ready": READY,
    "a stray row": message("D", struct.pack("!h", 0)),
    "a stray error": error("ERROR", "XX000", "stray"),
    "a stray ParseComplete": message("1"),
    "copy in": message("G", b"\0\0\0"),
    "half a message": b"D\0\0",
    "bytes that are none": b"\xff\xff\xff\xff\xff\xff",
}


@pytest.mark.parametrize("name", hard(TOO_MUCH, "half a message"))
def test_more_than_was_asked_for(faked, name):
    """A server that says more than it was asked for: the next client never sees it."""
    number = [0]
    lock = threading.Lock()

    def behave(peer):
        peer.startup()
        peer.send(LOGIN)
        while True:
            peer.wait_for_query()
            with lock:
                number[0] += 1
                mine = number[0]
            peer.send(row(b"answer %d" % mine), READY, TOO_MUCH[name] if mine == 1 else b"")

    pooler = faked(behave, default_pool_size=1)
    with pooler.raw("fake", timeout_s=10) as one:
        try:
            one.query("select 1")
        except Closed:
            pass
    for _ in range(3):
        with pooler.raw("fake", timeout_s=10) as two:
            answer = two.query("select 2")
            assert answer.rows and answer.rows[0][0].startswith("answer") and answer.rows[0][0] != "answer 1"
            assert len(answer.rows) == 1 and not answer.errors
    assert pooler.alive()


def test_answers_before_the_question(faked):
    """A server that speaks while it is idle is not given to a client."""

    def behave(peer):
        peer.startup()
        peer.send(LOGIN, row(b"nobody asked"), READY)
        while True:
            peer.wait_for_query()
            peer.send(row(b"asked"), READY)

    pooler = faked(behave, default_pool_size=1)
    try:
        with pooler.raw("fake", timeout_s=10) as session:
            assert session.query("select 1").rows == [["asked"]]
    except Closed as end:
        assert end.error
    assert pooler.alive()


def test_a_server_that_never_answers(faked):
    """No answer at all: query_timeout ends it, other clients of the same pool are served by another connection."""
    first = threading.Event()

    def behave(peer):
        peer.startup()
        peer.send(LOGIN)
        peer.wait_for_query()
        if not first.is_set():
            first.set()
            peer.hold()
        while True:
            peer.send(row(b"fine"), READY)
            peer.wait_for_query()

    pooler = faked(behave, default_pool_size=2, query_timeout=1)
    with pooler.raw("fake") as stuck, pooler.raw("fake") as fine:
        stuck.send(query("select 1"))
        assert first.wait(5)
        assert fine.query("select 2").rows == [["fine"]]
        assert "query timeout" in stuck.until_closed().errors[-1]["M"]


def test_a_server_that_answers_byte_by_byte(faked):
    """A server whose every byte is a packet of its own, login included."""

    def behave(peer):
        peer.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.startup()
        for byte in LOGIN:
            peer.send(bytes([byte]))
        while True:
            text = peer.wait_for_query()
            for byte in row(text.encode()) + READY:
                peer.send(bytes([byte]))

    pooler = faked(behave)
    with pooler.raw("fake") as session:
        for n in range(5):
            assert session.query(f"select {n}").rows == [[f"select {n}"]]


def test_endless_notices(faked):
    """A server that sends notices without end during login: given up, without growing."""

    def behave(peer):
        peer.startup()
        notice = message("N", b"SNOTICE\0C00000\0M" + b"n" * 1000 + b"\0\0")
        while True:
            peer.send(notice * 50)

    pooler = faked(behave)
    before = pooler.resident_kib()
    with pytest.raises(Closed), pooler.raw("fake", timeout_s=15) as session:
        session.query("select 1")
    assert pooler.resident_kib() - before < 40 * 1024
    assert pooler.alive()


def test_endless_parameters(faked):
    """A server that reports ten thousand parameters of its own at login: bounded, and no client is harmed."""

    def behave(peer):
        peer.startup()
        peer.send(AUTH_OK, PARAMETERS)
        peer.send(*(parameter(f"made_up_{n}", "v" * 100) for n in range(10_000)))
        peer.send(KEY, READY)
        while True:
            peer.wait_for_query()
            peer.send(row(b"fine"), READY)

    pooler = faked(behave)
    with pooler.raw() as other:
        try:
            with pooler.raw("fake", timeout_s=10) as session:
                session.query("select 1")
        except Closed:
            pass
        assert other.value("select 1") == "1"
    assert pooler.resident_kib() < 100 * 1024


def test_a_server_that_dies_at_each_point_of_its_login(faked):
    """The connection breaks after every byte of the login: each time a clear end, and the pool tries again."""
    cut = [0]

    def behave(peer):
        peer.startup()
        peer.send(LOGIN[: cut[0]])

    pooler = faked(behave, server_login_retry=0.1, client_login_timeout=1, query_wait_timeout=1)
    with pooler.raw() as other:
        for cut[0] in (0, 1, 4, 5, 9, 20, len(LOGIN) // 2, len(LOGIN) - 6, len(LOGIN) - 1):
            with pytest.raises(Closed), pooler.raw("fake", timeout_s=10) as session:
                session.query("select 1")
            assert other.value("select 1") == "1"
    assert pooler.alive()


@pytest.mark.needs("pipelines known to the pooler")
def test_a_server_that_dies_in_a_pipeline(faked):
    """It answers two of five groups and dies: two answers arrive, then the end; nothing is repeated."""
    asked = []

    def behave(peer):
        peer.startup()
        peer.send(LOGIN)
        syncs = 0
        while True:
            tag, body = peer.read()
            asked.append(tag)
            if tag == "S":
                syncs += 1
                peer.send(message("1"), message("2"), message("C", b"SELECT 0\0"), READY)
                if syncs == 2:
                    peer.peer.shutdown(socket.SHUT_WR)
                    peer.hold()
                    return
            if tag == "Q":
                peer.send(message("C", b"SET\0"), READY)

    pooler = faked(behave)
    with pooler.raw("fake") as session:
        session.send((parse("", "select 1") + bind("", "") + execute() + SYNC) * 5)
        answer = session.until_closed()
        assert len(answer.of("Z")) == 2 and answer.errors
    assert asked.count("S") <= 3


def test_refusal_texts_reach_the_client(faked):
    """FATAL of a server during login, with its own code, detail and hint."""

    def behave(peer):
        peer.startup()
        peer.send(error(fields={"S": "FATAL", "V": "FATAL", "C": "3D000", "M": 'database "x" does not exist', "H": "create it"}))

    pooler = faked(behave)
    with pytest.raises(Closed) as refused, pooler.raw("fake", timeout_s=10) as session:
        session.query("select 1")
    assert 'database "x" does not exist' in refused.value.error["M"]
    eventually(lambda: "does not exist" in pooler.log(), "it is logged too")

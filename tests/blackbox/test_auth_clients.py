"""How clients authenticate: every method, every stored form of a secret, and everything that must fail.

Two rules run through it: before a client has proved itself it cannot find out whether a user or a database exists, and a
failure disturbs no other client.
"""

import struct

import psycopg
import pytest

from harness.cluster import PASSWORDS
from harness.machine import eventually
from harness.wire import Closed, Raw, cstr, md5_secret, message, scram_secret, startup

PASSWORD = PASSWORDS["alice"]
STORED = {"plain": PASSWORD, "md5": md5_secret("alice", PASSWORD), "scram": scram_secret(PASSWORD)}
ADMIN = {"admin": "pw-of-admin"}

ACCEPTED = [
    ("trust", "plain"), ("trust", "md5"), ("trust", "scram"),
    ("plain", "plain"), ("plain", "md5"), ("plain", "scram"),
    ("md5", "plain"), ("md5", "md5"), ("md5", "scram"),
    ("scram-sha-256", "plain"), ("scram-sha-256", "scram"),
]  # fmt: skip


def request_kinds(answer):
    """The kinds of authentication requests the client saw, in order: 3 cleartext, 5 md5, 10 SASL."""
    return [struct.unpack_from("!i", m.body)[0] for m in answer.of("R")]


@pytest.mark.parametrize("method, form", ACCEPTED)
def test_the_right_password(pooled, method, form):
    """Every method with every stored form that can serve it."""
    pooler = pooled(auth_type=method, userlist={"alice": STORED[form]} | ADMIN)
    with pooler.raw(password=PASSWORD) as session:
        assert session.value("select current_user") == "alice"


@pytest.mark.parametrize("method, form", [pair for pair in ACCEPTED if pair[0] != "trust"])
@pytest.mark.parametrize("wrong", ["wrong", PASSWORD + "x", PASSWORD[:-1], PASSWORD.upper(), "x" * 800])
def test_the_wrong_password(pooled, method, form, wrong):
    """Every method refuses a wrong password, with words that say nothing else."""
    pooler = pooled(auth_type=method, userlist={"alice": STORED[form]} | ADMIN)
    with pytest.raises(Closed) as refused:
        pooler.raw(password=wrong)
    assert refused.value.error["M"] in ("password authentication failed", "SASL authentication failed") or (
        refused.value.error["C"] == "28P01" and "password authentication failed" in refused.value.error["M"]
    )
    assert refused.value.error["S"] == "FATAL"


@pytest.mark.parametrize("method", ["plain", "md5", pytest.param("scram-sha-256", marks=pytest.mark.needs("empty secrets never match"))])
def test_an_empty_password(pooled, method):
    """An empty password never gets in, not even when the stored one is empty."""
    pooler = pooled(auth_type=method, userlist={"alice": "", "bob": "pw-of-bob"} | ADMIN)
    for user in ("alice", "bob"):
        with pytest.raises(Closed), Raw(pooler.address) as session:
            session.login(user, "app", "")


def test_the_requests_are_those_of_the_method(pooled):
    """plain asks for cleartext, md5 for md5 (for SCRAM when the secret is one), scram-sha-256 for SCRAM-SHA-256 alone."""
    for method, form, kind in (("plain", "plain", 3), ("md5", "plain", 5), ("md5", "scram", 10), ("scram-sha-256", "plain", 10)):
        pooler = pooled(auth_type=method, userlist={"alice": STORED[form]} | ADMIN)
        with Raw(pooler.address) as session:
            session.send(startup({"user": "alice", "database": "app"}))
            request = session.receive()
            assert struct.unpack_from("!i", request.body)[0] == kind
            if kind == 10:
                assert request.body[4:] == b"SCRAM-SHA-256\0\0"
            if kind == 5:
                assert len(request.body) == 8


def conversation(pooler, user, database="app", password="wrong"):
    """What a client sees that tries to log in: tags and kinds of requests, lengths, and the last error's text and code."""
    with Raw(pooler.address) as session:
        with pytest.raises(Closed) as refused:
            session.login(user, database, password)
        seen = refused.value.seen
    kinds = [(m.tag, struct.unpack_from("!i", m.body)[0] if m.tag == "R" else 0) for m in seen]
    return kinds, refused.value.error["M"].replace(user, "USER"), refused.value.error["C"]


@pytest.mark.parametrize(
    "method, form", [("plain", "plain"), ("md5", "plain"), ("md5", "md5"), ("scram-sha-256", "plain"), ("scram-sha-256", "scram")]
)
def test_an_unknown_user_looks_like_a_wrong_password(pooled, method, form):
    """The same requests, the same words, the same code: no client learns which users exist."""
    pooler = pooled(auth_type=method, userlist={"alice": STORED[form]} | ADMIN)
    assert conversation(pooler, "alice") == conversation(pooler, "stranger")


@pytest.mark.parametrize("method", ["plain", "md5", "scram-sha-256"])
def test_an_unknown_database_is_told_after_login_only(pooled, method):
    """A wrong password hears nothing of the database; the right one hears that it does not exist."""
    pooler = pooled(auth_type=method, userlist={"alice": PASSWORD} | ADMIN)
    assert conversation(pooler, "alice", "app") == conversation(pooler, "alice", "nowhere")
    with pytest.raises(Closed) as refused:
        pooler.raw("nowhere", password=PASSWORD)
    assert "no such database: nowhere" in refused.value.error["M"]


def test_scram_salt_of_unknown_users_is_stable(pooled):
    """A user's salt does not change from login to login, and that of a user that does not exist must not either."""
    pooler = pooled(auth_type="scram-sha-256", userlist={"alice": STORED["scram"]} | ADMIN)

    def salt(user):
        with Raw(pooler.address) as session:
            session.send(startup({"user": user, "database": "app"}))
            session.receive()
            first = b"n,,n=,r=abcdefghijklmnopqrstuvwx"
            session.send(message("p", cstr("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first))
            challenge = session.receive().body[4:].decode().split(",")
            return [part for part in challenge if not part.startswith("r=")]

    assert salt("alice") == salt("alice")
    assert salt("stranger") == salt("stranger")
    assert salt("stranger") != salt("another stranger")
    assert salt("stranger")[1] == salt("alice")[1] == "i=4096"
    assert len(salt("stranger")[0]) == len(salt("alice")[0])


@pytest.mark.needs("malformed logins answered")
@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=,r=abcdefghijklmnop",
        b"n,a=bob,n=,r=abcdefghijklmnop",
        b"n,,r=abcdefghijklmnop",
        b"n,,n=,r=",
        b"",
        b"y,,",
        b"n,,n=,r=\x01\x02\x03\xff",
        b"n,,n=,r=" + b"a" * 5000,
        b"x" * 60_000,
    ],
)
def test_bad_first_scram_messages(pooled, first):
    """Channel binding that was not offered, another authzid, missing parts, giant nonces: refused, without disturbing other clients."""
    pooler = pooled(auth_type="scram-sha-256")
    with pooler.raw(password=PASSWORD) as other, Raw(pooler.address) as session:
        session.send(startup({"user": "alice", "database": "app"}))
        session.receive()
        session.send(message("p", cstr("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first))
        answer = session.until_closed()
        refused_now = bool(answer.errors)
        assert refused_now or answer.tags == "R"
        assert other.value("select 1") == "1"


@pytest.mark.needs("malformed logins answered")
@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"SCRAM-SHA-256", b"SCRAM-SHA-256\0", b"SCRAM-SHA-256\0\0\0", b"SCRAM-SHA-256\0\x7f\xff\xff\xff",
     b"SCRAM-SHA-256\0\xff\xff\xff\xfe", b"SCRAM-SHA-256\0\0\0\0\x05n,,", b"SCRAM-SHA-256-PLUS\0\0\0\0\x03n,,", b"NOSUCH\0\0\0\0\0"],
)  # fmt: skip
def test_malformed_sasl_messages(pooled, body):
    """SASLInitialResponse with every kind of wrong length: refused before authentication, never a crash."""
    pooler = pooled(auth_type="scram-sha-256")
    with pooler.raw(password=PASSWORD) as other, Raw(pooler.address, timeout_s=5) as session:
        session.send(startup({"user": "alice", "database": "app"}))
        session.receive()
        session.send(message("p", body))
        assert session.until_closed().errors
        assert other.value("select 1") == "1"


@pytest.mark.needs("malformed logins answered")
def test_a_scram_login_without_initial_response(pooled):
    """Length -1 means that the client's first message comes later: refused, or asked for with an empty challenge, as PostgreSQL does."""
    pooler = pooled(auth_type="scram-sha-256", client_login_timeout=2)
    with Raw(pooler.address, timeout_s=8) as session:
        session.send(startup({"user": "alice", "database": "app"}))
        session.receive()
        session.send(message("p", b"SCRAM-SHA-256\0\xff\xff\xff\xff"))
        answer = session.until_closed()
        assert answer.errors and all(m.body == struct.pack("!i", 11) for m in answer.of("R"))


@pytest.mark.needs("malformed logins answered")
@pytest.mark.parametrize(
    "final",
    [b"", b"c=biws", b"c=biws,p=AAAA", b"c=biws,r=wrong,p=AAAA", b"p=", b"c=biws,r=%NONCE%,p=!!!!", b"c=biws,r=%NONCE%,p=" + b"A" * 5000, b"c=eSws,r=%NONCE%,p=AAAA"],
)
def test_bad_final_scram_messages(pooled, final):
    """Proofs that are missing, too long, not base64, for another nonce, or without a nonce (CVE-2026-19888)."""
    pooler = pooled(auth_type="scram-sha-256")
    with pooler.raw(password=PASSWORD) as other, Raw(pooler.address, timeout_s=5) as session:
        session.send(startup({"user": "alice", "database": "app"}))
        session.receive()
        first = b"n,,n=,r=abcdefghijklmnopqrstuvwx"
        session.send(message("p", cstr("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first))
        nonce = session.receive().body[4:].split(b",")[0][2:]
        session.send(message("p", final.replace(b"%NONCE%", nonce)))
        assert session.until_closed().errors
        assert other.value("select 1") == "1"


@pytest.mark.needs("malformed logins answered")
@pytest.mark.parametrize("method", ["plain", "md5"])
@pytest.mark.parametrize("body", [b"", b"no terminator", b"\0", b"md5\0", b"md5" + b"z" * 32 + b"\0", b"x" * 30_000 + b"\0", b"a\0b\0"])
def test_malformed_password_messages(pooled, method, body):
    """Password messages of every wrong shape."""
    pooler = pooled(auth_type=method)
    with pooler.raw(password=PASSWORD) as other, Raw(pooler.address, timeout_s=5) as session:
        session.send(startup({"user": "alice", "database": "app"}))
        session.receive()
        session.send(message("p", body))
        assert session.until_closed().errors
        assert other.value("select 1") == "1"


@pytest.mark.parametrize("database", ["app", "nosuch"])
@pytest.mark.parametrize("method", ["md5", "scram-sha-256"])
def test_a_second_startup_packet_during_the_login(pooled, method, database):
    """A client that says another name in the middle of its login stays the first user, or is refused: never the other one (CVE-2026-107350)."""
    pooler = pooled(auth_type=method)
    with pooler.raw(password=PASSWORD) as other, Raw(pooler.address, timeout_s=5) as session:
        session.send(startup({"user": "alice", "database": database}))
        session.receive()
        if method == "scram-sha-256":
            first = b"n,,n=,r=abcdefghijklmnopqrstuvwx"
            session.send(message("p", cstr("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first))
            session.receive()
        session.send(startup({"user": "bob", "database": "app"}))
        answer = session.until_closed()
        assert answer.errors and not answer.of("Z") and not any(m.body == struct.pack("!i", 0) for m in answer.of("R"))
        assert other.value("select 1") == "1"


@pytest.mark.parametrize("method", ["plain", "md5", "scram-sha-256"])
def test_another_message_instead_of_the_password(pooled, method):
    """A query before authentication is not run and not answered with rows."""
    pooler = pooled(auth_type=method)
    with Raw(pooler.address, timeout_s=5) as session:
        session.send(startup({"user": "alice", "database": "app"}))
        session.receive()
        session.send(message("Q", b"select 'before login'\0"))
        answer = session.until_closed()
        assert "R" not in answer.tags and not answer.rows and not answer.of("Z")


def test_trust_needs_a_known_user(pooled):
    """trust: no password, but a name of the user list."""
    pooler = pooled(auth_type="trust")
    with pooler.raw(password=None) as session:
        assert session.value("select current_user") == "alice"
    with pytest.raises(Closed) as refused:
        pooler.raw(user="stranger")
    assert refused.value.error["S"] == "FATAL"


def test_any_uses_the_forced_user(pooled, pg):
    """any: whatever name the client gives, the database's forced user is used; without one the client is refused."""
    pooler = pooled(databases={"forced": pg.at("app", user="bob")}, auth_type="any", userlist=ADMIN | {"bob": "pw-of-bob"})
    with pooler.raw("forced", "whoever") as session:
        assert session.value("select current_user") == "bob"
    with pytest.raises(Closed) as refused:
        pooler.raw("app", "whoever")
    assert refused.value.error["S"] == "FATAL"


def test_passwords_with_every_character(pooled):
    """Quotes, blanks, letters beyond ASCII, 500 characters: in the user list and in each exchange."""
    for password in ('say "hi"', "it's", "pass word", "pässwörd☃", "%x $y \\z", "l" * 500):
        for method in ("plain", "md5", "scram-sha-256"):
            pooler = pooled(auth_type=method, userlist={"alice": password} | ADMIN)
            with pooler.raw(password=password) as session:
                assert session.value("select 1") == "1"
            for fault in pooler.finish():
                pytest.fail(fault)
            pooler.process = None


def test_the_user_list_is_read_again(pooled):
    """RELOAD: a new user gets in, a changed password counts, the old one does not; connected clients stay."""
    pooler = pooled(auth_type="scram-sha-256", userlist={"alice": "first"} | ADMIN)
    with pooler.raw(password="first") as early:
        pooler.write_userlist({"alice": "second", "bob": "new"} | ADMIN)
        with pytest.raises(Closed):
            pooler.raw(password="second")
        pooler.reload()
        with pooler.raw(password="second") as session:
            assert session.value("select 1") == "1"
        with pooler.raw(user="bob", password="new") as session:
            assert session.value("select current_user") == "bob"
        with pytest.raises(Closed):
            pooler.raw(password="first")
        assert early.value("select 1") == "1"


def test_a_removed_user_cannot_log_in(pooled):
    """A user that is gone from the list after RELOAD fails every password."""
    pooler = pooled(auth_type="scram-sha-256", userlist={"alice": "a", "bob": "b"} | ADMIN)
    with pooler.raw(user="bob", password="b") as session:
        assert session.value("select 1") == "1"
    pooler.write_userlist({"alice": "a"} | ADMIN)
    pooler.reload()
    for password in ("b", ""):
        with pytest.raises(Closed):
            pooler.raw(user="bob", password=password or "x")


def test_user_list_syntax(pooled):
    """Comments, blank lines, doubled quotes and trailing words are understood."""
    pooler = pooled(auth_type="md5", start=False)
    pooler.userlist_path.write_text('; a comment\n\n"alice" "pw-of-alice"\n"bob" "pw-of-bob" "ignored rest"\n"od""d" "p""w"\n"admin" "pw-of-admin"\n')
    pooler.start()
    for user in ("alice", "bob"):
        with pooler.raw(user=user) as session:
            assert session.value("select current_user") == user
    with pytest.raises(Closed) as refused:
        pooler.raw("nowhere", 'od"d', password='p"w')
    assert "no such database" in refused.value.error["M"]


def test_a_user_list_in_another_encoding(pooled):
    """A comment or a password in Latin-1 affects no other user: the password is those bytes."""
    pooler = pooled(auth_type="plain", start=False)
    pooler.userlist_path.write_bytes('; für alle\n"alice" "pw-of-alice"\n"bob" "pässword"\n"admin" "pw-of-admin"\n'.encode("latin-1"))
    pooler.start()
    for user, password in (("alice", PASSWORD), ("bob", "pässword".encode("latin-1"))):
        with pooler.raw(user=user, password=password) as session:
            assert session.value("select current_user") == user
    with pytest.raises(Closed):
        pooler.raw(user="bob", password="pässword")


def test_the_console_asks_for_the_password_too(pooled):
    """admin_users are authenticated like every user."""
    pooler = pooled(auth_type="scram-sha-256")
    assert pooler.admin("SHOW VERSION")
    with pytest.raises(Closed):
        pooler.raw("pgbouncer", "admin", password="wrong")
    with pytest.raises(Closed) as refused:
        pooler.raw("pgbouncer", "alice", password=PASSWORD)
    assert "not allowed" in refused.value.error["M"]


@pytest.mark.parametrize("method", ["trust", "plain", "md5", "scram-sha-256"])
def test_libpq_gets_in(pooled, method):
    """A real driver with each method, over TCP and over the unix socket, and refused with the wrong password."""
    pooler = pooled(auth_type=method)
    for host in ("127.0.0.1", str(pooler.folder)):
        with pooler.connect(host=host) as client:
            assert client.execute("select current_user").fetchone() == ("alice",)
    if method != "trust":
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            pooler.connect(password="wrong")


def test_secrets_are_not_logged(pooled):
    """Neither passwords nor stored secrets appear in the log, even at the highest verbosity, even after failures."""
    pooler = pooled(auth_type="plain", verbose=2, userlist={"alice": "very-secret-one", "bob": STORED["scram"]} | ADMIN)
    with pooler.raw(password="very-secret-one") as session:
        session.value("select 1")
    with pytest.raises(Closed):
        pooler.raw(password="very-secret-guess")
    pooler.reload()
    eventually(lambda: "closing because" in pooler.log(), "the log is written")
    for secret in ("very-secret-one", "very-secret-guess", STORED["scram"].split("$")[2], "pw-of-admin"):
        assert secret not in pooler.output()

"""TLS between clients and the pooler: the six modes, direct TLS, certificates of clients, reload."""

import hashlib
import ssl

import psycopg
import pytest

from harness.cluster import PASSWORDS
from harness.machine import eventually
from harness.wire import GSSENC_REQUEST, SSL_REQUEST, Raw, query, scram_secret, startup, tls_context

MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


@pytest.fixture
def tls_pooled(pooled, certificates):
    """A function that starts a pooler with a TLS mode towards clients."""

    def start(mode, **options):
        files = {
            "client_tls_key_file": certificates.key("pooler"),
            "client_tls_cert_file": certificates.crt("pooler"),
            "client_tls_ca_file": certificates.crt("ca"),
        }
        return pooled(client_tls_sslmode=mode, **(files if mode != "disable" else {}), **options)

    return start


def attempt(pooler, **options):
    """Tries to log in with psycopg; returns whether TLS was in use, or the error's text."""
    try:
        with pooler.connect(**options) as client:
            assert client.execute("select 1").fetchone() == (1,)
            return bool(client.pgconn.ssl_in_use)
    except psycopg.OperationalError as refused:
        return str(refused)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_without_tls(tls_pooled, mode):
    """Plain text is welcome up to `prefer` and refused from `require` on."""
    seen = attempt(tls_pooled(mode), sslmode="disable")
    if mode in ("disable", "allow", "prefer"):
        assert seen is False
    else:
        assert "SSL required" in seen


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_wants_tls(tls_pooled, mode, certificates):
    """TLS without a certificate of one's own: everywhere between `disable` and `require`."""
    pooler = tls_pooled(mode)
    seen = attempt(pooler, sslmode="verify-full", sslrootcert=certificates.crt("ca"), host="localhost", hostaddr="127.0.0.1")
    if mode == "disable":
        assert "does not support SSL" in seen
    elif mode in ("allow", "prefer", "require"):
        assert seen is True
    else:
        assert seen is not True


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("who", ["alice", "intruder"])
def test_a_client_with_a_certificate(tls_pooled, mode, who, certificates):
    """A certificate of the right CA gets in where one is asked for, a stranger's does not."""
    pooler = tls_pooled(mode)
    seen = attempt(pooler, sslmode="require", sslcert=certificates.crt(who), sslkey=certificates.key(who))
    if who == "alice":
        assert seen is True
    elif mode in ("verify-ca", "verify-full"):
        assert seen is not True


def test_prefer_uses_tls_when_offered(tls_pooled):
    """libpq's own default."""
    assert attempt(tls_pooled("allow"), sslmode="prefer") is True
    assert attempt(tls_pooled("disable"), sslmode="prefer") is False


def test_unix_sockets_never_use_tls(tls_pooled):
    """SSLRequest over the unix socket is answered N, and `require` does not apply there."""
    pooler = tls_pooled("require")
    with pooler.raw(unix=True, login=False) as session:
        session.send(SSL_REQUEST)
        assert session.byte() == b"N"
        session.login("alice", "app")
        assert session.value("select 1") == "1"


def test_gssencrequest_is_declined(tls_pooled):
    """GSSENCRequest is answered N; SSLRequest may follow, and then TLS."""
    pooler = tls_pooled("prefer")
    with pooler.raw(login=False) as session:
        session.send(GSSENC_REQUEST)
        assert session.byte() == b"N"
        session.start_tls(tls_context())
        session.login("alice", "app")
        assert session.value("select 1") == "1"


def test_ssl_request_refused_then_plain(tls_pooled):
    """With TLS off the answer is N and the client may go on in plain text."""
    pooler = tls_pooled("disable")
    with pooler.raw(login=False) as session:
        session.send(SSL_REQUEST)
        assert session.byte() == b"N"
        session.login("alice", "app")
        assert session.value("select 1") == "1"


@pytest.mark.parametrize("behind", [startup({"user": "alice", "database": "app"}), b"\x16\x03\x01", b"x"])
def test_bytes_behind_ssl_request(tls_pooled, behind):
    """Plain bytes sent together with SSLRequest must never be taken as part of the TLS session (CVE-2021-23222)."""
    pooler = tls_pooled("prefer")
    with pooler.raw(login=False, timeout_s=5) as session:
        session.send(SSL_REQUEST + behind)
        try:
            first = session.byte()
        except TimeoutError:
            pytest.fail("neither an answer nor an end")
        if first == b"S":
            with pytest.raises((ssl.SSLError, OSError, EOFError)):
                session.wrap(tls_context())
                session.login("alice", "app")
        else:
            assert first in (b"E", b"")
    if first == b"E":
        pooler.logged("received unencrypted data after SSL request")


def test_a_second_ssl_request(tls_pooled):
    """SSLRequest inside TLS ends the connection."""
    pooler = tls_pooled("prefer")
    with pooler.raw(login=False, timeout_s=5) as session:
        session.start_tls(tls_context())
        session.send(SSL_REQUEST)
        assert session.byte() in (b"", b"E")


def test_garbage_instead_of_a_handshake(tls_pooled):
    """After S comes nonsense: closed, and other clients are not disturbed."""
    pooler = tls_pooled("prefer", client_login_timeout=1)
    with pooler.raw() as other:
        for garbage in (b"\0" * 100, b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\xff" * 600, startup({"user": "alice"})):
            with pooler.raw(login=False, timeout_s=5) as session:
                session.send(SSL_REQUEST)
                assert session.byte() == b"S"
                session.send(garbage)
                try:
                    while session.socket.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
            assert other.value("select 1") == "1"


def test_a_handshake_that_never_ends(tls_pooled):
    """A client that stops in its handshake is closed by client_login_timeout."""
    pooler = tls_pooled("prefer", client_login_timeout=1)
    with pooler.raw(login=False, timeout_s=8) as session:
        session.send(SSL_REQUEST)
        assert session.byte() == b"S"
        session.send(b"\x16\x03\x01\x02\x00\x01")
        try:
            while session.socket.recv(4096):
                pass
        except ConnectionResetError:
            pass


@pytest.mark.needs("direct TLS")
def test_direct_tls(tls_pooled, certificates):
    """TLS from the first byte, with ALPN `postgresql` (sslnegotiation=direct of PostgreSQL 17's libpq)."""
    pooler = tls_pooled("require")
    with Raw(pooler.address) as session:
        session.wrap(tls_context(ca=certificates.crt("ca"), alpn="postgresql"))
        assert session.socket.selected_alpn_protocol() == "postgresql"
        session.login("alice", "app")
        assert session.value("select 1") == "1"


@pytest.mark.needs("direct TLS")
def test_direct_tls_by_libpq(tls_pooled, certificates):
    """The same by libpq itself, when the one of psycopg is new enough."""
    if psycopg.pq.version() < 170000:
        pytest.skip("psycopg's libpq is older than 17")
    pooler = tls_pooled("require")
    options = {"sslmode": "verify-full", "sslnegotiation": "direct", "sslrootcert": certificates.crt("ca")}
    assert attempt(pooler, host="localhost", hostaddr="127.0.0.1", **options) is True


@pytest.mark.needs("direct TLS")
def test_direct_tls_without_alpn(tls_pooled):
    """PostgreSQL refuses direct TLS without ALPN: so that no other protocol can be tricked into talking to it."""
    pooler = tls_pooled("prefer")
    with pytest.raises((ssl.SSLError, OSError, EOFError, Exception)), Raw(pooler.address, timeout_s=5) as session:
        session.wrap(tls_context())
        session.login("alice", "app")
        pytest.fail("got in without ALPN")


def test_direct_tls_is_refused_when_off(tls_pooled):
    """With TLS off a TLS hello is closed like any garbage."""
    pooler = tls_pooled("disable")
    with pytest.raises((ssl.SSLError, OSError)), Raw(pooler.address, timeout_s=5) as session:
        session.wrap(tls_context(alpn="postgresql"))
    assert pooler.alive()


def test_versions(tls_pooled):
    """TLS 1.2 and 1.3 are spoken; SHOW CLIENTS says which; older ones are refused."""
    pooler = tls_pooled("require")
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        context = tls_context()
        context.minimum_version = context.maximum_version = version
        with pooler.raw(login=False) as session:
            session.start_tls(context)
            session.login("alice", "app")
            assert session.socket.version() == name
            assert name in pooler_tls(pooler)
            assert session.value("select 1") == "1"


def pooler_tls(pooler):
    with pooler.raw("pgbouncer", "admin", login=False) as console:
        console.start_tls(tls_context())
        console.login("admin", "pgbouncer", "pw-of-admin")
        answer = console.query("SHOW CLIENTS")
        rows = [dict(zip(answer.columns, row)) for row in answer.rows]
        return next(row["tls"] for row in rows if row["user"] == "alice")


def test_protocols_setting(tls_pooled):
    """client_tls_protocols = tlsv1.3 refuses 1.2."""
    pooler = tls_pooled("require", client_tls_protocols="tlsv1.3")
    context = tls_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pooler.raw(login=False) as session, pytest.raises((ssl.SSLError, OSError)):
        session.start_tls(context)
    with pooler.raw(login=False) as session:
        session.start_tls(tls_context())


def test_big_data_over_tls(tls_pooled):
    """20 MB in and out over TLS, digests compared."""
    pooler = tls_pooled("require")
    with pooler.connect(sslmode="require") as client:
        data = "".join(f"{n}\t{hashlib.md5(str(n).encode()).hexdigest() * 6}\n" for n in range(100_000)).encode()
        with client.transaction():
            client.execute("create temp table t (n int, x text) on commit drop")
            with client.cursor().copy("copy t from stdin") as copy:
                for at in range(0, len(data), 50_000):
                    copy.write(data[at : at + 50_000])
            with client.cursor().copy("copy (select * from t order by n) to stdout") as copy:
                back = b"".join(copy)
        assert hashlib.md5(back).digest() == hashlib.md5(data).digest()


def test_pipelines_over_tls(tls_pooled):
    """A thousand queries in flight over TLS, answers in order."""
    pooler = tls_pooled("require")
    with pooler.raw(login=False) as session:
        session.start_tls(tls_context())
        session.login("alice", "app")
        session.send(b"".join(query(f"select {n}") for n in range(1000)))
        assert [session.until("Z").rows for _ in range(1000)] == [[[str(n)]] for n in range(1000)]


def test_cancel_over_tls(tls_pooled, pg):
    """A CancelRequest may come over TLS, as psycopg's cancel_safe sends it."""
    pooler = tls_pooled("require")
    with pooler.connect(sslmode="require") as client:
        canceller = pg.when_running("pg_sleep(30)", client.cancel_safe)
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute("select pg_sleep(30)")
        canceller.join()


def served_certificate(pooler):
    """The DER bytes of the certificate the pooler shows."""
    context = tls_context()
    with pooler.raw(login=False) as session:
        session.start_tls(context)
        return session.socket.getpeercert(binary_form=True)


def test_certificates_are_read_again(tls_pooled, certificates):
    """RELOAD after the certificate was changed: new clients see the new one, connected ones stay."""
    pooler = tls_pooled("prefer")
    first = served_certificate(pooler)
    with pooler.raw(login=False) as early:
        early.start_tls(tls_context())
        early.login("alice", "app")
        pooler.write_ini(client_tls_key_file=certificates.key("pooler2"), client_tls_cert_file=certificates.crt("pooler2"))
        pooler.reload()
        assert served_certificate(pooler) != first
        assert early.value("select 1") == "1"


def test_a_broken_certificate_at_reload(tls_pooled, certificates):
    """RELOAD with a certificate that cannot be used keeps the old one in service."""
    pooler = tls_pooled("prefer")
    first = served_certificate(pooler)
    pooler.write_ini(client_tls_cert_file=certificates.key("ca"))
    with pooler.console() as console:
        console.query("RELOAD")
    eventually(lambda: "TLS" in pooler.log() or "tls" in pooler.log(), "the failure is logged")
    assert served_certificate(pooler) == first


def test_certificates_by_set(tls_pooled, certificates):
    """SET of a TLS setting that does not fit the others answers success with a NOTICE; what is in service stays until all fit."""
    pooler = tls_pooled("prefer")
    first = served_certificate(pooler)
    with pooler.console() as console:
        answer = console.query(f"SET client_tls_key_file = '{certificates.key('pooler2')}'")
        assert answer.commands == [f"SET client_tls_key_file={certificates.key('pooler2')}"]
        assert answer.notices == ["TLS settings could not be applied, still using old configuration"]
        assert served_certificate(pooler) == first
        answer = console.query(f"SET client_tls_cert_file = '{certificates.crt('pooler2')}'")
        assert answer.commands and not answer.notices
        assert served_certificate(pooler) != first
        assert console.query("SET client_tls_sslmode = 'nonsense'").error["M"] == "SET failed"
        assert console.query("SET client_tls_sslmode = 'nonsense'").error["H"] == "Nothing has changed. pgweir's log says why."
        assert console.query("SET client_tls_cert_file = '/nonexistent'").notices
        assert served_certificate(pooler) != first


@pytest.mark.parametrize("missing", ["client_tls_key_file", "client_tls_cert_file"])
def test_missing_certificate_at_start(tls_pooled, missing):
    """TLS is asked for and its files are not there: the start fails and says which."""
    pooler = tls_pooled("require", **{"start": False})
    pooler.write_ini(**{missing: "/nonexistent/file"})
    pooler.start(wait=False)
    assert pooler.wait_exit() == 1
    assert missing in pooler.output() or "/nonexistent/file" in pooler.output()


def test_half_closed_tls(tls_pooled):
    """close_notify from the client ends the session cleanly; the server connection is reused."""
    pooler = tls_pooled("require", default_pool_size=1)
    pids = set()
    for _ in range(3):
        with pooler.raw(login=False) as session:
            session.start_tls(tls_context())
            session.login("alice", "app")
            pids.add(session.value("select pg_backend_pid()"))
            try:
                session.socket.settimeout(5)
                session.socket.unwrap()
            except (TimeoutError, OSError, ssl.SSLError):
                pass  # whether the other side answers close_notify is its own affair
    assert len(pids) == 1


@pytest.mark.needs("channel binding")
@pytest.mark.parametrize("form", ["plain", "scram"])
def test_channel_binding(tls_pooled, form):
    """SCRAM-SHA-256-PLUS: a client may insist on a proof that covers the certificate; without TLS it is not offered."""
    secret = PASSWORDS["alice"] if form == "plain" else scram_secret(PASSWORDS["alice"])
    pooler = tls_pooled("prefer", auth_type="scram-sha-256", userlist={"alice": secret, "admin": "pw-of-admin"})
    assert attempt(pooler, sslmode="require", channel_binding="require") is True
    assert attempt(pooler, sslmode="require", channel_binding="disable") is True
    assert "channel binding" in attempt(pooler, sslmode="disable", channel_binding="require")
    assert "SASL authentication failed" in attempt(pooler, sslmode="require", channel_binding="require", password="wrong")

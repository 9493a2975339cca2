"""The same battery on every major version of PostgreSQL, and protocol 3.2 of PostgreSQL 18."""

import struct

import psycopg
import pytest

from harness.cluster import PASSWORDS
from harness.machine import eventually
from harness.wire import PROTOCOL_3_2, SYNC, Raw, bind, execute, group, parse, query, startup


@pytest.fixture(params=["transaction", "session"])
def pooler(request, poolers, pg_other):
    """A pooler in front of the version in question."""
    return poolers({"app": pg_other.at("app"), "app2": pg_other.at("app2")}, pool_mode=request.param, default_pool_size=3)


def test_statements(pooler, pg_other):
    """Simple and extended, errors, transactions, the server's version at login."""
    with pooler.raw() as session:
        assert session.parameters["server_version"].split(".")[0] == pg_other.major
        assert session.value("show server_version").split(".")[0] == pg_other.major
        session.send(group("", "select $1::int + 1", [1]) + group("", "select 1/0") + group("", "select 'after'"))
        assert session.until("Z").rows == [["2"]]
        assert session.until("Z").error["C"] == "22012"
        assert session.until("Z").rows == [["after"]]
        assert [session.query(sql).status for sql in ("begin", "select 1/0", "rollback")] == list("TEI")


@pytest.mark.needs("prepared statements")
def test_prepared_statements(pooler):
    """psycopg prepares by itself; servers change under it."""
    clients = [pooler.connect(prepare_threshold=0) for _ in range(3)]
    for turn in range(10):
        for number, client in enumerate(clients):
            assert client.execute("select %s::int * %s::int", (turn, number)).fetchone() == (turn * number,)
    for client in clients:
        client.close()


def test_copy(pooler):
    """COPY in and out."""
    with pooler.connect() as client, client.transaction():
        client.execute("create temp table t (n int) on commit drop")
        with client.cursor().copy("copy t from stdin") as copy:
            for n in range(10_000):
                copy.write_row((n,))
        with client.cursor().copy("copy t to stdout") as copy:
            assert sum(1 for _ in copy.rows()) == 10_000


def test_cancel(pooler, pg_other):
    """A running statement is cancelled; PostgreSQL 18 checks its keys as strictly as without a pooler."""
    with pooler.connect() as client:
        pg_other.when_running("pg_sleep(30)", client.cancel)
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute("select pg_sleep(30)")
        assert client.execute("select 1").fetchone() == (1,)


def test_parameters(pooler):
    """Tracked parameters follow their client."""
    with pooler.raw(TimeZone="Asia/Tokyo", application_name="one") as one, pooler.raw(TimeZone="UTC", application_name="two") as two:
        for _ in range(3):
            assert (one.value("show timezone"), one.value("show application_name")) == ("Asia/Tokyo", "one")
            assert (two.value("show timezone"), two.value("show application_name")) == ("UTC", "two")


@pytest.mark.parametrize("user", ["u_plain", "u_md5", "u_scram"])
def test_server_authentication(poolers, pg_other, user):
    """cleartext, md5 and SCRAM on every version, over TLS."""
    pooler = poolers({"app": pg_other.at("app")}, server_tls_sslmode="require")
    with pooler.raw(user=user) as session:
        assert session.value("select current_user") == user
        assert session.value("select ssl from pg_stat_ssl where pid = pg_backend_pid()") == "t"


def test_scram_pass_through(poolers, pg_other):
    """The version's own stored secret."""
    secret = pg_other.sql("select rolpassword from pg_authid where rolname = 'u_scram'")[0][0]
    pooler = poolers({"app": pg_other.at("app")}, auth_type="scram-sha-256", userlist={"u_scram": secret, "admin": "pw-of-admin"})
    with pooler.raw(user="u_scram") as session:
        assert session.value("select current_user") == "u_scram"


@pytest.mark.needs("protocol negotiation")
@pytest.mark.parametrize("version", [0x0003_0001, 0x0003_0003, 0x0003_270F])
def test_newer_minor_versions_are_negotiated_down(pooled, version):
    """A minor version that does not exist (3.9999 is libpq's test for it): NegotiateProtocolVersion, then a normal session."""
    pooler = pooled()
    with pooler.raw(login=False) as session:
        session.login("alice", "app", version=version)
        assert session.negotiated is not None and session.negotiated & 0xFFFF <= 2
        assert session.value("select 1") == "1"


@pytest.mark.needs("protocol negotiation")
def test_unknown_protocol_options_are_named(pooled):
    """Parameters that begin with `_pq_.` are listed in NegotiateProtocolVersion and ignored."""
    pooler = pooled()
    with pooler.raw(login=False) as session:
        session.send(startup({"user": "alice", "database": "app", "_pq_.future": "1", "_pq_.other": "2"}))
        answer = session.authenticate("alice")
        body = answer.of("v")[0].body
        assert struct.unpack_from("!i", body, 4)[0] == 2
        assert body[8:] == b"_pq_.future\0_pq_.other\0"
        assert session.value("select 1") == "1"


@pytest.mark.needs("protocol 3.2")
def test_protocol_3_2(poolers, pg18):
    """A client that speaks 3.2 gets it, or is negotiated to 3.0, and can cancel either way."""
    pooler = poolers({"app": pg18.at("app")})
    with pooler.raw(login=False) as session:
        session.login("alice", "app", version=PROTOCOL_3_2)
        if session.negotiated is None:
            assert 4 <= len(session.key) <= 256
        else:
            assert len(session.key) == 4
        session.send(query("select pg_sleep(30)"))
        eventually(lambda: pg18.running("pg_sleep(30)"), "the statement runs")
        session.cancel()
        assert session.until("Z").error["C"] == "57014"


@pytest.mark.needs("protocol 3.2")
def test_a_3_0_client_has_a_short_key(poolers, pg18):
    """A 3.0 client must not be given a key longer than 4 bytes, whatever the server's own is."""
    pooler = poolers({"app": pg18.at("app")})
    with pooler.raw() as session:
        assert len(session.key) == 4 and session.negotiated is None


@pytest.mark.needs("protocol 3.2")
@pytest.mark.parametrize("major", ["14", "18"])
def test_libpq_asks_for_3_2(poolers, cluster_of, major):
    """libpq 18 with max_protocol_version=3.2, against old and new servers, cancel included."""
    if psycopg.pq.version() < 180000:
        pytest.skip("psycopg's libpq is older than 18")
    server = cluster_of(major)
    server.end_all_backends()
    pooler = poolers({"app": server.at("app")})
    with pooler.connect(max_protocol_version="3.2") as client:
        server.when_running("pg_sleep(30)", client.cancel_safe)
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute("select pg_sleep(30)")
        assert client.execute("select 1").fetchone() == (1,)


def test_two_versions_behind_one_pooler(poolers, pg, pg18):
    """Databases on servers of different versions: each client is told its own server's version."""
    pooler = poolers({"old": pg.at("app"), "new": pg18.at("app")})
    with pooler.raw("old") as old, pooler.raw("new") as new:
        assert old.parameters["server_version"].split(".")[0] == pg.major
        assert new.parameters["server_version"].split(".")[0] == "18"


def test_big_rows(poolers, pg_other):
    """Twenty megabytes through each version."""
    pooler = poolers({"app": pg_other.at("app")})
    with pooler.raw() as session:
        session.send(parse("", "select repeat('x', 1000000) from generate_series(1, 20)") + bind("", "") + execute() + SYNC)
        assert [len(m.body) for m in session.until("Z").of("D")] == [1_000_006] * 20


def test_raw_and_password(poolers, pg_other):
    """md5 and SCRAM logins of clients do not depend on the server's version."""
    for method in ("md5", "scram-sha-256"):
        pooler = poolers({"app": pg_other.at("app")}, auth_type=method)
        with Raw(pooler.address) as session:
            session.login("alice", "app", PASSWORDS["alice"])
            assert session.value("select 1") == "1"

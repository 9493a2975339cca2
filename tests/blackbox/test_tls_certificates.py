"""Kinds of certificates, presented and checked on both sides: X.509 version 1 as PostgreSQL's manual makes them, curves, damage."""

import psycopg
import pytest

from harness.wire import Closed

SHORT_TIMEOUTS = {"query_wait_timeout": 3, "client_login_timeout": 3, "server_login_retry": 1}
GOOD = ["plain", "v1_rsa", "v1_p521", "v1_between", "p521"]
BAD = {
    "v1_stranger": "UnknownIssuer",
    "v1_expired": "Expired|expired",
    "v1_broken": "BadSignature",
    "of_v1_ca": "UnsupportedCertVersion|UnknownIssuer|version 1",
    "v1_of_v1_ca": "UnsupportedCertVersion|UnknownIssuer|version 1",
}

pytestmark = pytest.mark.xdist_group("certificates")


@pytest.fixture
def kinds(certificates):
    """The certificates of all kinds."""
    certificates.kinds()
    if certificates.version("plain") != 1:
        pytest.skip("this OpenSSL makes no certificates of version 1")
    return certificates


def tls_to(pooler, user="alice"):
    """Whether the pooler's server connection uses TLS, or the error's text."""
    try:
        with pooler.raw(user=user) as session:
            return session.value("select ssl from pg_stat_ssl where pid = pg_backend_pid()") == "t"
    except Closed as refused:
        return refused.error["M"]


def served_by(pg, kinds, name):
    """PostgreSQL presents this certificate."""
    return pg.configured(ssl_cert_file=kinds.crt(name), ssl_key_file=kinds.key(name))


@pytest.mark.parametrize(
    ("name", "protocols"), [(name, protocols) for name in GOOD for protocols in ("tlsv1.2", "tlsv1.3") if "p521" not in name or protocols == "tlsv1.3"]
)
def test_a_server_with_a_good_one(pooled, pg, kinds, name, protocols):
    """What OpenSSL takes is taken, with the name checked, too. (In TLS 1.2 OpenSSL wants P-521 to be known for the key exchange, too.)"""
    with served_by(pg, kinds, name):
        line = f"host=localhost port={pg.port} dbname=app"
        pooler = pooled(databases={"app": line}, server_tls_sslmode="verify-full", server_tls_ca_file=kinds.crt("ca"), server_tls_protocols=protocols)
        assert tls_to(pooler) is True, pooler.log()


@pytest.mark.parametrize("name", [*BAD, "v1_elsewhere"])
def test_a_server_with_a_bad_one(pooled, pg, kinds, name):
    """A broken or unknown signature, an authority of version 1, the wrong time: refused by verify-ca; a wrong name by verify-full alone."""
    with served_by(pg, kinds, name):
        line = f"host=localhost port={pg.port} dbname=app"
        for mode in ("verify-ca", "verify-full"):
            pooler = pooled(databases={"app": line}, server_tls_sslmode=mode, server_tls_ca_file=kinds.crt("ca"), **SHORT_TIMEOUTS)
            seen = tls_to(pooler)
            if name == "v1_elsewhere" and mode == "verify-ca":
                assert seen is True, pooler.log()
            else:
                assert isinstance(seen, str)
                pooler.logged(BAD.get(name, "NotValidForName|not valid for name"))


@pytest.mark.parametrize("name", [*GOOD, *BAD, "rsa_pss"])
def test_a_server_that_is_not_checked(pooled, pg, kinds, name):
    """`require` asks for encryption alone."""
    with served_by(pg, kinds, name):
        assert tls_to(pooled(server_tls_sslmode="require")) is True


@pytest.mark.parametrize("name", ["v1_u_cert", "u_cert"])
def test_ours_towards_a_server(pooled, kinds, name):
    """PostgreSQL takes our certificate, checked by its `cert` method."""
    pooler = pooled(server_tls_sslmode="require", server_tls_key_file=kinds.key(name), server_tls_cert_file=kinds.crt(name))
    assert tls_to(pooler, "u_cert") is True, pooler.log()


@pytest.mark.parametrize("protocols", ["tlsv1.2", "tlsv1.3"])
@pytest.mark.parametrize("name", GOOD)
def test_ours_towards_clients(pooled, kinds, name, protocols):
    """libpq takes our certificate by verify-full."""
    pooler = pooled(
        client_tls_sslmode="require", client_tls_cert_file=kinds.crt(name), client_tls_key_file=kinds.key(name), client_tls_protocols=protocols
    )
    with pooler.connect(sslmode="verify-full", sslrootcert=kinds.crt("ca"), host="localhost", hostaddr="127.0.0.1") as client:
        assert client.pgconn.ssl_in_use
        assert client.execute("select 1").fetchone() == (1,)


def test_a_key_of_another_certificate(pooled, kinds):
    """A key that is not the certificate's is refused at the start, with version 1, too."""
    pooler = pooled(start=False, client_tls_sslmode="require", client_tls_cert_file=kinds.crt("plain"), client_tls_key_file=kinds.key("alice"))
    pooler.start(wait=False)
    assert pooler.wait_exit() == 1
    assert "client_tls_cert_file" in pooler.output()


@pytest.mark.parametrize("protocols", ["tlsv1.2", "tlsv1.3"])
def test_a_client_with_one_of_version_1(pooled, kinds, protocols):
    """auth_type=cert: its common name is the user; bad ones are refused."""
    pooler = pooled(
        auth_type="cert", client_tls_sslmode="verify-full", client_tls_ca_file=kinds.crt("ca"), client_tls_protocols=protocols,
        client_tls_cert_file=kinds.crt("pooler"), client_tls_key_file=kinds.key("pooler"),
    )  # fmt: skip

    def enters(name):
        try:
            with pooler.connect(sslmode="require", sslcert=kinds.crt(name), sslkey=kinds.key(name)) as client:
                return client.execute("select current_user").fetchone() == ("alice",)
        except psycopg.OperationalError:
            return False

    assert enters("v1_alice"), pooler.log()
    assert not enters("v1_u_cert"), "the name of another user"
    for name, reason in BAD.items():
        assert not enters(name), name
        pooler.logged(reason)

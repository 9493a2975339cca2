"""TLS between the pooler and PostgreSQL: the six modes against servers with TLS, without it, and with wrong certificates."""

import pytest

from harness.wire import Closed

MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
SHORT_TIMEOUTS = {"query_wait_timeout": 3, "client_login_timeout": 3, "server_login_retry": 1}


def tls_in_use(pooler, user="alice"):
    """Whether the pooler's server connection uses TLS, or the error's text."""
    try:
        with pooler.raw(user=user) as session:
            return session.value("select ssl from pg_stat_ssl where pid = pg_backend_pid()") == "t"
    except Closed as refused:
        return refused.error["M"]


@pytest.mark.parametrize("mode", MODES)
def test_a_server_with_tls(pooled, certificates, mode):
    """Every mode but `disable` uses TLS when the server has it."""
    pooler = pooled(server_tls_sslmode=mode, server_tls_ca_file=certificates.crt("ca"))
    assert tls_in_use(pooler) is (mode != "disable")
    shown = pooler.servers()[0]["tls"]
    assert shown == "" if mode == "disable" else shown.startswith("TLSv1.3/")


@pytest.mark.parametrize("mode", MODES)
def test_a_server_without_tls(pooled, pg, certificates, mode):
    """`allow` and `prefer` fall back to plain text, `require` and above do not."""
    with pg.configured(ssl="off"):
        pooler = pooled(server_tls_sslmode=mode, server_tls_ca_file=certificates.crt("ca"), **SHORT_TIMEOUTS)
        seen = tls_in_use(pooler)
        assert seen is False if mode in ("disable", "allow", "prefer") else isinstance(seen, str)


@pytest.mark.parametrize("mode", MODES[1:])
def test_an_unknown_authority(pooled, certificates, mode):
    """A server certificate of another CA is refused from `verify-ca` on."""
    pooler = pooled(server_tls_sslmode=mode, server_tls_ca_file=certificates.crt("stranger"), **SHORT_TIMEOUTS)
    seen = tls_in_use(pooler)
    assert isinstance(seen, str) if mode in ("verify-ca", "verify-full") else seen is True


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_name_that_does_not_match(pooled, pg, certificates, mode):
    """A certificate of the right CA for another host is refused by `verify-full` alone."""
    with pg.configured(ssl_cert_file=certificates.crt("elsewhere"), ssl_key_file=certificates.key("elsewhere")):
        pooler = pooled(server_tls_sslmode=mode, server_tls_ca_file=certificates.crt("ca"), **SHORT_TIMEOUTS)
        seen = tls_in_use(pooler)
        assert isinstance(seen, str) if mode == "verify-full" else seen is True


def test_the_host_name_is_what_the_line_says(pooled, pg, certificates):
    """verify-full compares with `host=`, here a name instead of an address."""
    line = f"host=localhost port={pg.port} dbname=app"
    pooler = pooled(databases={"app": line}, server_tls_sslmode="verify-full", server_tls_ca_file=certificates.crt("ca"))
    assert tls_in_use(pooler) is True


def test_a_server_that_demands_tls(pooled):
    """hostssl in pg_hba.conf: `prefer` gets in, `disable` does not."""
    assert tls_in_use(pooled(server_tls_sslmode="prefer"), "u_ssl") is True
    assert isinstance(tls_in_use(pooled(server_tls_sslmode="disable", **SHORT_TIMEOUTS), "u_ssl"), str)


def test_a_client_certificate_towards_the_server(pooled, certificates):
    """server_tls_key_file and server_tls_cert_file answer a server that asks for a certificate."""
    with_one = pooled(server_tls_sslmode="require", server_tls_key_file=certificates.key("u_cert"), server_tls_cert_file=certificates.crt("u_cert"))
    assert tls_in_use(with_one, "u_cert") is True
    assert isinstance(tls_in_use(pooled(server_tls_sslmode="require", **SHORT_TIMEOUTS), "u_cert"), str)


def test_verify_without_an_authority(pooled):
    """verify-full without a CA file cannot work: refused at start or at the first connection, never silently unverified."""
    pooler = pooled(server_tls_sslmode="verify-full", start=False, **SHORT_TIMEOUTS)
    pooler.start(wait=False)
    try:
        code = pooler.process.wait(timeout=2)
    except Exception:  # noqa: BLE001  # it started: then no connection may be made
        assert tls_in_use(pooler) is not True
    else:
        pooler.expect_exit = True
        assert code == 1


def test_unix_sockets_to_servers_use_no_tls(pooled, pg):
    """`require` does not concern a unix socket."""
    pooler = pooled(databases={"app": f"host={pg.folder} port={pg.port} dbname=app"}, server_tls_sslmode="require")
    assert tls_in_use(pooler) is False


def test_protocols_setting(pooled):
    """server_tls_protocols = tlsv1.2 is what is spoken."""
    pooler = pooled(server_tls_sslmode="require", server_tls_protocols="tlsv1.2")
    assert tls_in_use(pooler) is True
    assert pooler.servers()[0]["tls"].startswith("TLSv1.2/")


def test_scram_over_tls(pooled):
    """A server that offers channel binding is satisfied with SCRAM-SHA-256 without it."""
    assert tls_in_use(pooled(server_tls_sslmode="require"), "u_scram") is True


def test_a_changed_authority_applies_to_new_connections(pooled, certificates):
    """After RELOAD with another CA new server connections are refused; with the right one again they are made."""
    pooler = pooled(server_tls_sslmode="verify-full", server_tls_ca_file=certificates.crt("ca"), **SHORT_TIMEOUTS)
    assert tls_in_use(pooler) is True
    pooler.write_ini(server_tls_ca_file=certificates.crt("stranger"))
    pooler.reload()
    pooler.admin("RECONNECT")
    assert isinstance(tls_in_use(pooler), str)
    pooler.write_ini(server_tls_ca_file=certificates.crt("ca"))
    pooler.reload()
    import time

    time.sleep(1.2)
    assert tls_in_use(pooler) is True

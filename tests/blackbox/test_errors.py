"""What clients are told when they are refused or ended: PgBouncer's words, PostgreSQL's codes, FATAL.

PgBouncer says 08P01 for nearly everything. Drivers and frameworks decide by SQLSTATE whether to retry, to reconnect or to give up,
so the code has to be the one PostgreSQL would choose.
"""

import time

import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import Closed, Raw, query, startup

pytestmark = pytest.mark.needs("PostgreSQL's error codes")


def refusal(pooler, database="app", user="alice", password=None, **more):
    """The error a login ends with."""
    with pytest.raises(Closed) as refused, Raw(pooler.address) as session:
        session.login(user, database, password, **more)
    return refused.value.error


@pytest.mark.parametrize("method", ["plain", "md5", "scram-sha-256"])
def test_a_wrong_password(pooled, method):
    """28P01, for known and unknown users alike."""
    pooler = pooled(auth_type=method)
    for user in ("alice", "stranger"):
        error = refusal(pooler, user=user, password="wrong")
        assert (error["S"], error["C"]) == ("FATAL", "28P01")


def test_an_unknown_database(pooled):
    """3D000."""
    error = refusal(pooled(), "nowhere")
    assert (error["S"], error["C"], error["M"]) == ("FATAL", "3D000", "no such database: nowhere")


def test_too_many_clients(pooled, pg):
    """53300 and the limit's name, for each of the limits."""
    pooler = pooled(max_client_conn=2, databases={"own": pg.at("app", max_db_client_connections=1)}, users={"bob": "max_user_client_connections=1"})
    with pooler.raw("own"):
        error = refusal(pooler, "own")
        assert error["C"] == "53300" and "max_db_client_connections" in error["M"]
    with pooler.raw(user="bob"):
        error = refusal(pooler, user="bob")
        assert error["C"] == "53300" and "max_user_client_connections" in error["M"]
        with pooler.raw():
            error = refusal(pooler)
            assert error["C"] == "53300" and "max_client_conn" in error["M"] and error["H"]


def test_an_unsupported_startup_parameter(pooled):
    """The name of the parameter, and a hint that names the setting."""
    error = refusal(pooled(session_state="pgbouncer"), extra_float_digits="3")
    assert "extra_float_digits" in error["M"] and "ignore_startup_parameters" in error["H"]


@pytest.mark.needs("options in the startup packet")
@pytest.mark.parametrize("options", ["-d 5", "-c", "-c datestyle", "--", "nonsense"])
def test_options_that_are_no_settings(pooled, options):
    """PgBouncer's words, which tools look for."""
    assert refusal(pooled(), options=options)["M"].startswith("unsupported options startup parameter: only '-c config=val'")


def test_the_console_is_not_for_every_user(pooled):
    """28000."""
    error = refusal(pooled(), "pgbouncer")
    assert (error["C"], error["M"]) == ("28000", "not allowed")
    assert kind() == "pgbouncer" or error["H"] == "The console is for the users in admin_users and stats_users."


def test_tls_is_required(pooled, certificates):
    """28000."""
    files = {"client_tls_key_file": certificates.key("pooler"), "client_tls_cert_file": certificates.crt("pooler")}
    error = refusal(pooled(client_tls_sslmode="require", **files))
    assert error["C"] == "28000" and "SSL required" in error["M"]


def test_a_disabled_database(pooled):
    """55000, after the login."""
    pooler = pooled()
    pooler.admin("DISABLE app")
    assert refusal(pooler)["C"] == "55000"


def test_timeouts(pooled):
    """PostgreSQL's own code where it ends a session for that reason, too; else PgBouncer's."""
    pooler = pooled(default_pool_size=4, idle_transaction_timeout=1)
    with pooler.raw() as session:
        session.query("begin")
        assert session.until_closed().error["C"] == "25P03"
    pooler = pooled(client_idle_timeout=1)
    with pooler.raw() as session:
        assert session.until_closed().error["C"] == "57P05"
    pooler = pooled()
    pooler.limit(query_timeout=1)
    with pooler.raw() as session:
        session.send(query("select pg_sleep(30)"))
        assert session.until_closed().error["C"] == "08P01"
    pooler = pooled(client_login_timeout=1)
    with Raw(pooler.address) as silent:
        assert silent.until_closed().error["C"] == "08P01"
    pooler = pooled(transaction_timeout=1)
    with pooler.raw() as session, pytest.raises(Closed) as closed:
        session.query("begin")
        for _ in range(50):
            session.query("select pg_sleep(0.1)")
    assert closed.value.error["C"] == "25P04"


def test_an_administrator_ends_it(pooled):
    """57P01 for KILL, a removed database and a shutdown; 57P03 for clients that connect during a shutdown."""
    pooler = pooled()
    with pooler.raw() as session:
        pooler.admin("KILL app")
        assert session.until_closed().error["C"] == "57P01"
    pooler.admin("RESUME app")
    with pooler.raw() as session:
        del pooler.databases["app"]
        pooler.write_ini()
        pooler.reload()
        assert session.until_closed().error["C"] == "57P01"
    with pooler.raw("app2", unix=True) as inside, pooler.raw("app2") as waiting:
        inside.query("begin")
        pooler.admin("SET default_pool_size = 1")
        waiting.send(query("select 1"))
        eventually(lambda: pooler.pool("app2")["cl_waiting"] == 1, "one waits")
        pooler.admin("SHUTDOWN WAIT_FOR_SERVERS")
        assert waiting.until_closed().error["C"] == "57P01"
        try:
            with Raw(pooler.unix_address) as late:
                late.send(startup({"user": "alice", "database": "app2"}))
                assert late.until_closed().error["C"] == "57P03"
        except ConnectionRefusedError:
            pass  # not listening any more is an answer too
        inside.query("commit")
        assert pooler.wait_exit() == 0


def test_a_server_that_is_gone(pooled, pg):
    """A code of class 08 or the server's own 57P01 when the server dies under a statement."""
    pooler = pooled()
    with pooler.raw() as session:
        pid = session.value("select pg_backend_pid()")
        session.send(query("select pg_sleep(30)"))
        eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
        pg.sql(f"select pg_terminate_backend({pid})")
        codes = [error["C"] for error in session.until_closed().errors]
        assert codes and all(code in ("57P01", "08006") for code in codes)


def test_no_server_can_be_reached(pooled):
    """Class 08, and what the last attempt said, for the client that waited and for the next one."""
    line = "host=127.0.0.1 port=1 dbname=app"
    pooler = pooled(databases={"nowhere": line}, query_wait_timeout=2, client_login_timeout=2, server_login_retry=1)
    for _ in range(2):
        start = time.monotonic()
        error = refusal(pooler, "nowhere")
        assert error["S"] == "FATAL" and error["C"][:2] in ("08", "57"), error
        assert time.monotonic() - start < 8


@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest.mark.parametrize(
    "where, settings, reason",
    [
        ("host=127.0.0.1 port=1", {}, "connect failed: connect to 127.0.0.1:1 failed: "),
        ("host=no-such-host.invalid", {}, "server DNS lookup failed: "),
        ("host=127.0.0.1 port={port}", {"server_tls_sslmode": "verify-ca"}, "TLS handshake error: handshake failed: certificate verify failed"),
    ],
    ids=["refused", "no such host", "TLS"],
)
def test_why_no_server_can_be_reached(pooled, pg, certificates, mode, where, settings, reason):
    """A cold pool: the client that waits for its first server is told why there is none, at once, as the next one is."""
    line = where.format(port=pg.port)
    if settings:
        settings = settings | {"server_tls_ca_file": certificates.crt("stranger")}
    pooler = pooled(databases={"nowhere": line}, pool_mode=mode, query_wait_timeout=60, server_login_retry=60, **settings)
    for _ in range(2):
        error = refusal(pooler, "nowhere")
        assert error["C"] == "08001"
        assert error["M"].startswith(f"server login has been failing, cached error: {reason}"), error


def test_a_login_that_was_refused_is_told_at_once_until_the_retry(pooled, pg):
    """PostgreSQL refuses the first login: a client that comes before the next attempt is told why, and does not wait for it."""
    pooler = pooled(databases={"ghost": pg.at("not_there")}, server_login_retry=60, query_wait_timeout=20)
    assert refusal(pooler, "ghost")["C"] == "3D000"
    error = refusal(pooler, "ghost")
    assert error["C"] == "08001" and 'database "not_there" does not exist' in error["M"], error


def test_the_servers_own_refusal(pooled, pg):
    """The server's code and text as they are."""
    pooler = pooled(databases={"ghost": pg.at("not_there")}, query_wait_timeout=5, client_login_timeout=5)
    error = refusal(pooler, "ghost")
    assert (error["C"], error["M"]) == ("3D000", 'database "not_there" does not exist')


def test_transactions_in_statement_mode(pooled):
    """0A000."""
    pooler = pooled(pool_mode="statement")
    with pooler.raw() as session:
        session.send(query("begin"))
        assert session.until_closed().errors[-1]["C"] == "0A000"

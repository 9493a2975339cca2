"""The lines of the log that people and tools look for: texts, levels and the names in front of them, as PgBouncer writes them."""

import re
import signal
import socket
import subprocess

import psycopg
import pytest

from harness.machine import ACCOUNT, as_service, eventually
from harness.pooler import binary, kind
from harness.wire import Closed, Raw, query

STAMP = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \[\d+\] "


def turned_away(pooler, user="alice", database="app", password="wrong"):
    """Tries to log in, which must fail."""
    with pytest.raises(Closed), Raw(pooler.address) as session:
        session.login(user, database, password)


def line(pooler, text):
    """Waits for a line that is exactly this level and text, behind the stamp; `text` is a pattern."""
    return eventually(lambda: re.search(STAMP + text + "$", pooler.log(), re.M), f"a line /{text}/:\n{pooler.log()[-3000:]}")


def client(database="app", user="alice"):
    """How a client's lines begin."""
    return rf"C-0x[0-9a-f]+: {database}/{user}@127\.0\.0\.1:\d+"


def test_a_session(pooled):
    """Login attempt, connection to the server, end."""
    pooler = pooled(server_tls_sslmode="disable")
    with pooler.raw() as session:
        session.query("select 1")
        session.terminate()
    line(pooler, rf"LOG {client()} login attempt: db=app user=alice tls=no( replication=no)?")
    line(pooler, r"LOG S-0x[0-9a-f]+: app/alice@127\.0\.0\.1:\d+ new connection to server \(from 127\.0\.0\.1:\d+\)")
    line(pooler, rf"LOG {client()} closing because: client close request \(age=\d+s\)")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("md5", "password authentication failed"),
        ("plain", "password authentication failed"),
        ("scram-sha-256", "SASL authentication failed"),
    ],
)
def test_a_wrong_password(pooled, method, text):
    """The attempt, the reason, and the error the client was sent, each with the client's name."""
    pooler = pooled(auth_type=method)
    turned_away(pooler)
    line(pooler, rf"LOG {client()} login attempt: db=app user=alice tls=no( replication=no)?")
    line(pooler, rf"LOG {client()} closing because: {text} \(age=\d+s\)")
    line(pooler, rf"WARNING {client()} pooler error: {text}")
    if method == "scram-sha-256":
        line(pooler, rf"ERROR {client()} password authentication failed")


def test_an_unknown_user(pooled):
    """`no such user` is for the log alone; the client hears of a wrong password."""
    pooler = pooled(auth_type="md5")
    turned_away(pooler, user="stranger")
    line(pooler, r"LOG C-0x[0-9a-f]+: \S+@127\.0\.0\.1:\d+ no such user: stranger")
    line(pooler, r"LOG C-0x[0-9a-f]+: \S+@127\.0\.0\.1:\d+ login attempt: db=app user=stranger tls=no( replication=no)?")


def test_a_refused_user_is_named(pooled):
    """A client that has proved itself and is refused nevertheless: its name is in the lines."""
    pooler = pooled()
    turned_away(pooler, database="nowhere")
    line(pooler, r"WARNING C-0x[0-9a-f]+: \S+/alice@127\.0\.0\.1:\d+ pooler error: no such database: nowhere")
    turned_away(pooler, database="pgbouncer")
    line(pooler, rf"WARNING {client('pgbouncer')} pooler error: not allowed")


def test_a_health_check_leaves_no_line(pooled):
    """A connection that says nothing, as monitors open them, leaves no line."""
    pooler = pooled(tcp_defer_accept=0)
    socket.create_connection(pooler.address).close()
    pooler.admin("SHOW VERSION")
    line(pooler, rf"LOG {client('pgbouncer', 'admin')} login attempt: .*")
    assert "(nouser)" not in pooler.log()


@pytest.mark.needs("malformed logins answered")
def test_half_a_packet(pooled):
    """A client that breaks off in the middle of its first packet leaves a line."""
    pooler = pooled()
    with socket.create_connection(pooler.address) as half:
        half.send(b"\0\0\0")
    line(pooler, r"LOG C-0x[0-9a-f]+: \(nodb\)/\(nouser\)@127\.0\.0\.1:\d+ closing because: client unexpected eof \(age=\d+s\)")


def test_the_console(pooled):
    """Commands are logged as they are given, refused ones as errors."""
    pooler = pooled()
    for command, text in (
        ("PAUSE app", "PAUSE 'app' command issued"),
        ("RESUME app", "RESUME 'app' command issued"),
        ("RECONNECT", "RECONNECT command issued"),
        ("RELOAD", "RELOAD command issued"),
        ("DISABLE app", "DISABLE 'app' command issued"),
        ("ENABLE app", "ENABLE 'app' command issued"),
    ):
        pooler.admin(command)
        line(pooler, f"LOG {text}")
    with pooler.console() as console:
        console.query("foo")
    line(pooler, "ERROR invalid command 'foo', use SHOW HELP;")
    line(pooler, rf"WARNING {client('pgbouncer', 'admin')} pooler error: invalid command 'foo', use SHOW HELP;")


def test_usr2(pooled):
    """SIGUSR2 says what it ended, or that there was nothing to end."""
    pooler = pooled()
    pooler.signal(signal.SIGUSR2)
    line(pooler, "LOG got SIGUSR2, but not paused/suspended")
    pooler.signal(signal.SIGUSR1)
    line(pooler, "LOG got SIGUSR1, pausing all activity")
    pooler.signal(signal.SIGUSR2)
    line(pooler, "LOG got SIGUSR2, continuing from PAUSE")


@pytest.mark.parametrize(
    ("setting", "statement", "text"),
    [
        ("idle_transaction_timeout", "begin", "idle transaction timeout"),
        ("query_timeout", "select pg_sleep(30)", "query timeout"),
    ],
)
def test_timeouts_name_both_ends(pooled, setting, statement, text):
    """A timeout of the client is the reason in its server's line too."""
    pooler = pooled(**{setting: 1})
    with pooler.raw() as session:
        session.send(query(statement))
        session.until_closed()
    line(pooler, rf"LOG {client()} closing because: {text} \(age=\d+s\)")
    line(pooler, rf"LOG S-0x[0-9a-f]+: app/alice@127\.0\.0\.1:\d+ closing because: {text} \(age=\d+s\)")
    line(pooler, rf"WARNING {client()} pooler error: {text}")


def test_statement_pooling(pooled):
    """The client hears of the error alone, not that its transaction had begun; the reason is in the server's line."""
    pooler = pooled(pool_mode="statement")
    for opening in ("begin", "start transaction"):
        with pooler.raw() as session:
            session.send(query(opening))
            assert session.until_closed().tags == "E"
    line(pooler, r"LOG S-0x[0-9a-f]+: \S+ closing because: transaction blocks not allowed in statement pooling mode \(age=\d+s\)")


def test_a_server_that_is_not_there(pooled):
    """The server's line gives the reason, and so do the errors of the client that waited meanwhile and of the next one."""
    pooler = pooled(databases={"gone": "host=127.0.0.1 port=1"})
    for _ in range(2):
        with pytest.raises(Closed) as refused, Raw(pooler.address) as session:
            session.login("alice", "gone", None)
        assert refused.value.error["M"].startswith("server login has been failing, cached error: connect failed: ")
    line(pooler, r"LOG S-0x[0-9a-f]+: gone/alice@127\.0\.0\.1:1 closing because: connect failed \(age=\d+s\)")


def test_switched_off(pooled):
    """log_connections, log_disconnections and log_pooler_errors silence their lines, each its own."""
    for setting, silent in (
        ("log_connections", ("login attempt", "new connection to server", "login failed")),
        ("log_disconnections", ("closing because",)),
        ("log_pooler_errors", ("pooler error",)),
    ):
        pooler = pooled(auth_type="md5", **{setting: 0})
        turned_away(pooler)
        with pooler.raw() as session:
            session.query("select 1")
        pooler.admin("SHOW VERSION")
        line(pooler, r".*process up: .*")
        pooler.admin("PAUSE")
        line(pooler, "LOG PAUSE command issued")
        text = pooler.log()
        for word in ("login attempt", "closing because", "pooler error"):
            assert (word in text) == (word not in silent), f"{setting}: {word}"
        assert not any(word in text for word in silent)


@pytest.mark.parametrize("change", ["connect string", "TLS"])
def test_a_reload_closes_servers(pooled, certificates, change):
    """An idle server that the new configuration would open otherwise is closed by RELOAD."""
    pooler = pooled(server_tls_sslmode="require")
    with pooler.raw() as session:
        session.query("select 1")
        if change == "TLS":
            pooler.write_ini(server_tls_protocols="tlsv1.2")
        else:
            pooler.databases["app"] += " connect_query='select 1'"
            pooler.write_ini()
        pooler.reload()
        line(pooler, r"LOG S-0x[0-9a-f]+: app/alice@127\.0\.0\.1:\d+ closing because: (database configuration changed|obsolete connection) \(age=\d+s\)")


def test_a_refused_login_to_a_server(pooled, pg):
    """The server's own text stands on the server's line."""
    pooler = pooled(databases={"app": pg.at("app").replace("dbname=app", "dbname=nowhere")})
    turned_away(pooler, password=None)
    line(pooler, r'WARNING S-0x[0-9a-f]+: app/alice@127\.0\.0\.1:\d+ server login failed: FATAL database "nowhere" does not exist')
    line(pooler, r"LOG S-0x[0-9a-f]+: app/alice@127\.0\.0\.1:\d+ closing because: login failed \(age=\d+s\)")


@pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not say what to write")
@pytest.mark.parametrize(
    "user, asked, said",
    [("u_scram", "scram-sha-256", "md5 hash, which answers md5 only"), ("u_md5", "md5", "SCRAM secret, which only checks passwords")],
)
def test_a_secret_of_the_wrong_type(pooled, pg, user, asked, said):
    """The client hears PgBouncer's words; the log says what the server asks for, what is known, and what to write where."""
    [[secret]] = pg.sql("select rolpassword from pg_authid where rolname = 'u_scram'")
    entries = {"u_scram": "md5" + "0" * 32, "u_md5": secret, "admin": "x", "stats": "y"}
    pooler = pooled(auth_type="trust", userlist=entries)
    with pytest.raises(psycopg.OperationalError, match="wrong password type"):
        pooler.connect("app", user)
    advice = 'write the password itself in auth_file, or password= on the line of database "app"'
    line(pooler, rf'WARNING the server asks user "{user}" for {asked}, but its entry is an? {said}.*: {advice}')


@pytest.mark.skipif(kind() == "pgbouncer" or ACCOUNT is None, reason="PgBouncer does not say who it is; only root can refuse it a file")
def test_a_permission_that_is_missing(pooled):
    """The user who may not write a file is named, beside the file."""
    pooler = pooled(start=False)
    secret = pooler.folder / "secret"
    secret.mkdir(mode=0o700)
    pooler.write_ini(logfile=secret / "pooler.log")
    done = subprocess.run(as_service(binary(), pooler.ini), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search(r"could not open log file \S+/secret/pooler.log: Permission denied", done.stderr), done.stderr
    assert re.search(r'WARNING pgweir runs as user( "\w+")? \(uid \d+, gid \d+\), who lacks that permission', done.stderr), done.stderr


@pytest.mark.parametrize("setting", ["client_tls_ciphers", "client_tls13_ciphers", "client_tls_ecdhcurve", "server_tls13_ciphers"])
def test_the_tls_setting_that_is_wrong_is_named(pooled, certificates, setting):
    """A start that fails because of one names it."""
    if kind() != "pgweir":
        pytest.skip("an old PgBouncer does not know all of them")
    pooler = pooled(
        start=False, client_tls_sslmode="require", server_tls_sslmode="require", client_tls_key_file=certificates.key("pooler"),
        client_tls_cert_file=certificates.crt("pooler"), **{setting: "nonsense"},
    )  # fmt: skip
    pooler.start(wait=False)
    assert pooler.wait_exit() == 1
    line(pooler, rf"FATAL TLS setup failed: {setting}: .*")


def test_what_a_client_is_told_is_in_the_log_already(pooled):
    """A client that is told of an event, and looks into the log, finds its line there."""
    pooler = pooled(auth_type="plain")
    # Few lines: in a burst they are written together, a moment later.
    for number in range(4):
        with pooler.raw(user="alice", application_name=f"n{number}"):
            assert len(re.findall("login attempt: db=app user=alice", pooler.log())) == number + 1
        with pytest.raises(Closed), Raw(pooler.address) as session:
            session.login("bob", "app", "wrong")
        assert len(re.findall("app/bob@.* closing because: password authentication failed", pooler.log())) == number + 1

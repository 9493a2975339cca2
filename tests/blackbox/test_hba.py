"""`auth_type` `hba` and `cert`: rules by address, database, user and encryption; the operating system's word; certificates; maps."""

import getpass

import psycopg
import pytest

from harness.cluster import PASSWORDS
from harness.machine import give
from harness.wire import Closed, Raw

OURSELVES = getpass.getuser()
"""The operating system's name of the user that runs the tests."""


@pytest.fixture
def ruled(pooled, certificates):
    """A function that starts a pooler with these rules and maps."""

    def start(rules, maps="", tls=False, **options):
        pooler = pooled(start=False, auth_type="hba", **options)
        write(pooler, rules, maps)
        settings = {"auth_hba_file": str(pooler.folder / "hba.conf"), "auth_ident_file": str(pooler.folder / "ident.conf") if maps else None}
        if tls:
            settings |= {
                "client_tls_sslmode": "prefer", "client_tls_ca_file": certificates.crt("ca"),
                "client_tls_key_file": certificates.key("pooler"), "client_tls_cert_file": certificates.crt("pooler"),
            }  # fmt: skip
        pooler.write_ini(**settings)
        pooler.start()
        return pooler

    return start


def write(pooler, rules, maps=""):
    """Writes the files of rules and maps; an administrator of the pooler may always log in."""
    for name, text in (("hba.conf", "host pgbouncer admin all password\n" + rules), ("ident.conf", maps)):
        (pooler.folder / name).write_text(text + "\n")
        give(pooler.folder / name)


def refused(pooler, user="alice", database="app", password=None, unix=False):
    """The text that a login is refused with."""
    with pytest.raises(Closed) as closed, Raw(pooler.unix_address if unix else pooler.address) as session:
        session.login(user, database, password or PASSWORDS.get(user))
    return closed.value.error["M"]


def without_a_rule(text):
    """Whether these are the words for a connection that no rule is about; an old PgBouncer says the same as for `reject`."""
    return text in ("no authentication method is found", "login rejected")


def test_the_first_rule_that_fits_decides(ruled):
    """Databases, users, addresses; lists; keywords; comments and quotes."""
    pooler = ruled("""
        # which user may do what
        host  app2        all             127.0.0.1/32            reject
        host  "app",app3  alice,"bob"     127.0.0.0 255.0.0.0     scram-sha-256
        host  all         carol           10.0.0.0/8              trust
        local sameuser    all                                     trust
        local app         bob                                     md5
    """)
    for user in ("alice", "bob"):
        with pooler.raw("app3", user) as session:
            assert session.value("select current_user") == user
    assert refused(pooler, database="app2") == "login rejected"
    assert refused(pooler, password="wrong") == "SASL authentication failed"
    assert without_a_rule(refused(pooler, "carol"))
    with pooler.raw(user="bob", unix=True) as session:
        assert session.value("select current_user") == "bob"
    assert without_a_rule(refused(pooler, "alice", unix=True))


def test_a_line_that_is_not_understood_is_told_and_skipped(ruled):
    """The other lines hold."""
    pooler = ruled("host all alice 127.0.0.1/32 gssapi\nhost all alice 127.0.0.1/99 trust\nhost all alice 127.0.0.1/32 trust\n")
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
    for line in (2, 3):
        pooler.logged(f"could not parse hba config line {line}")


def test_names_from_a_file(ruled):
    """`@file`, looked for beside the file of the rules."""
    pooler = ruled("host all bob 127.0.0.1/32 trust\n")
    (pooler.folder / "people").write_text("alice, carol\n")
    give(pooler.folder / "people")
    assert without_a_rule(refused(pooler))
    write(pooler, "host all @people 127.0.0.1/32 trust\n")
    pooler.reload()
    for user in ("alice", "carol"):
        with pooler.raw(user=user) as session:
            assert session.value("select current_user") == user
    assert without_a_rule(refused(pooler, "bob"))


@pytest.mark.needs("failed RELOAD reported")
def test_reload(ruled):
    """RELOAD reads the rules again, for clients that connect from then on. A file that is gone changes nothing."""
    pooler = ruled("host all alice 127.0.0.1/32 trust\n")
    with pooler.raw() as early:
        write(pooler, "host all alice 127.0.0.1/32 reject\n")
        pooler.reload()
        assert refused(pooler) == "login rejected"
        assert early.value("select 1") == "1"


@pytest.mark.needs("a reload is taken as a whole")
def test_a_reload_without_the_file(ruled):
    """A file that cannot be read fails the reload, and the old rules hold."""
    pooler = ruled("host all alice 127.0.0.1/32 trust\n")
    (pooler.folder / "hba.conf").unlink()
    with pooler.console() as console:
        assert console.query("RELOAD").errors
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
    pooler.logged("could not open hba config file")


@pytest.mark.needs("rules by SET")
def test_rules_by_set(pooled):
    """On the console the method may be set before the file: until then no new client is let in."""
    pooler = pooled()
    write(pooler, "host all alice 127.0.0.1/32 trust\n")
    with pooler.console() as console:
        assert not console.query("SET auth_type='hba'").errors
        assert without_a_rule(refused(pooler))
        assert not console.query(f"SET auth_hba_file='{pooler.folder / 'hba.conf'}'").errors
        with pooler.raw() as session:
            assert session.value("select 1") == "1"
        assert without_a_rule(refused(pooler, "bob"))


@pytest.mark.needs("ident maps")
def test_peer(ruled):
    """The operating system tells the user at the unix socket's other end; a map may give it other names."""
    pooler = ruled("local all all peer map=staff\nhost all all 127.0.0.1/32 trust\n", maps=f"staff {OURSELVES} alice\nstaff nobody_else bob\n")
    with pooler.raw(unix=True) as session:
        assert session.value("select current_user") == "alice"
    assert refused(pooler, "bob", unix=True) == "unix socket login rejected"
    assert refused(pooler, "carol", unix=True) == "unix socket login rejected"


def test_peer_without_a_map(ruled):
    """The names must be the same; over TCP every login is refused."""
    pooler = ruled("local all all peer\nhost all all 127.0.0.1/32 peer\n", userlist={OURSELVES: "", "alice": "x", "admin": "pw-of-admin"})
    assert refused(pooler, "alice", unix=True) == "unix socket login rejected"
    with pytest.raises(Closed) as closed:
        pooler.raw("nowhere", OURSELVES, unix=True)
    assert "no such database" in closed.value.error["M"], "its name is proved, only the database does not exist"
    assert refused(pooler, OURSELVES) == "unix socket login rejected"


def test_peer_has_to_be_known(ruled):
    """A user that the operating system vouches for and no list knows is refused, at the console too."""
    pooler = ruled("local all all peer\n", userlist={"admin": "pw-of-admin"}, admin_users=f"admin,{OURSELVES}")
    for database in ("app", "pgbouncer"):
        assert refused(pooler, OURSELVES, database, unix=True) in ("no such user", "unix socket login rejected")


def secured(pooler, certificates, user, name=None, **options):
    """A psycopg connection over TLS, with the certificate `name`."""
    if name:
        options |= {"sslcert": certificates.crt(name), "sslkey": certificates.key(name)}
    return pooler.connect(user=user, sslmode="require", **options)


def test_encrypted_and_not(ruled, certificates):
    """hostssl and hostnossl."""
    pooler = ruled("hostssl all alice 127.0.0.1/32 trust\nhostnossl all bob 127.0.0.1/32 trust\n", tls=True)
    with secured(pooler, certificates, "alice") as session:
        assert session.execute("select current_user").fetchone() == ("alice",)
    with pytest.raises(psycopg.OperationalError):
        secured(pooler, certificates, "bob")
    assert without_a_rule(refused(pooler, "alice"))
    with pooler.raw(user="bob") as session:
        assert session.value("select current_user") == "bob"


@pytest.mark.needs("ident maps")
def test_cert_by_rule(ruled, certificates):
    """A certificate's name, by itself or by a map; no certificate, no entry."""
    rules = "hostssl app all 127.0.0.1/32 cert\nhostssl app2 all 127.0.0.1/32 cert map=m\n"
    pooler = ruled(rules, maps="m alice bob\n", tls=True)
    with secured(pooler, certificates, "alice", "alice") as session:
        assert session.execute("select current_user").fetchone() == ("alice",)
    for user, name in (("bob", "alice"), ("alice", None)):
        with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
            secured(pooler, certificates, user, name)
    with secured(pooler, certificates, "bob", "alice", database="app2") as session:
        assert session.execute("select current_user").fetchone() == ("bob",)
    with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
        secured(pooler, certificates, "alice", "alice", database="app2")
    with pytest.raises(psycopg.OperationalError):
        secured(pooler, certificates, "alice", "intruder")


def test_auth_type_cert(pooled, certificates):
    """auth_type=cert: every user by certificate."""
    pooler = pooled(
        auth_type="cert", client_tls_sslmode="verify-full", client_tls_ca_file=certificates.crt("ca"),
        client_tls_key_file=certificates.key("pooler"), client_tls_cert_file=certificates.crt("pooler"),
    )  # fmt: skip
    with secured(pooler, certificates, "alice", "alice") as session:
        assert session.execute("select current_user").fetchone() == ("alice",)
    with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
        secured(pooler, certificates, "bob", "alice")
    with pytest.raises(psycopg.OperationalError):
        secured(pooler, certificates, "alice")


def test_auth_type_cert_needs_verified_certificates(pooled, certificates):
    """Without client_tls_sslmode=verify-full a certificate would prove nothing: no start."""
    pooler = pooled(
        start=False, auth_type="cert", client_tls_sslmode="require", client_tls_ca_file=certificates.crt("ca"),
        client_tls_key_file=certificates.key("pooler"), client_tls_cert_file=certificates.crt("pooler"),
    )  # fmt: skip
    pooler.start(wait=False)
    assert pooler.wait_exit() == 1
    assert "auth_type=cert" in pooler.output()


@pytest.mark.needs("replication")
def test_replication(ruled):
    """Physical replication is a matter of lines with the database `replication`, logical replication of the database's own."""
    pooler = ruled("host all u_repl 127.0.0.1/32 trust\n")
    with pooler.raw(user="u_repl", replication="database") as session:
        assert session.query("IDENTIFY_SYSTEM").rows
    with pytest.raises(Closed) as closed:
        pooler.raw(user="u_repl", replication="true")
    assert without_a_rule(closed.value.error["M"])
    write(pooler, "host replication u_repl 127.0.0.1/32 trust\n")
    pooler.reload()
    with pooler.raw(user="u_repl", replication="true") as session:
        assert session.query("IDENTIFY_SYSTEM").rows
    assert without_a_rule(refused(pooler, "u_repl"))

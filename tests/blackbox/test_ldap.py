"""`auth_type = ldap`: a real OpenLDAP server knows the passwords."""

import os
import socket
import threading
from pathlib import Path

import pytest

from harness.directory import SLAPD, Directory
from harness.machine import free_port, give
from harness.wire import Closed, Raw

pytestmark = [
    pytest.mark.skipif(SLAPD is None or os.geteuid() != 0, reason="needs OpenLDAP's slapd (tests/setup.sh installs it as root)"),
    pytest.mark.needs("LDAP"),
    pytest.mark.xdist_group("ldap"),
]


@pytest.fixture(scope="module")
def directory(certificates):
    """The server, for all tests of this file."""
    server = Directory(certificates)
    yield server
    server.discard()


SEARCH = 'ldapbasedn="dc=example,dc=net" ldapbinddn="cn=reader,dc=example,dc=net" ldapbindpasswd=reads'


def refused(pooler, user, password):
    """The error that a login ends with."""
    with pytest.raises(Closed) as closed, Raw(pooler.address) as session:
        session.login(user, "app", password)
    return closed.value.error


@pytest.mark.parametrize(
    "way",
    [
        'ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"',
        SEARCH,
        SEARCH + " ldapsearchattribute=cn",
        SEARCH + ' ldapsearchfilter="(|(uid=$username)(mail=$username))"',
    ],
)
def test_the_directory_knows_the_password(pooled, directory, way):
    """By a name that is put together, and by a search; with and without a filter of one's own."""
    pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=f"ldapserver=127.0.0.1 ldapport={directory.port} {way}")
    with pooler.raw(password="of the directory") as session:
        assert session.value("select current_user") == "alice"
    for user, password in (("alice", "wrong"), ("alice", "pw-of-alice"), ("carol", "of the directory"), ("bob", "of the directory")):
        assert refused(pooler, user, password)["C"] in ("28P01", "08P01")
    assert refused(pooler, "alice", "")["M"] == "empty password returned by client"
    assert "of the directory" not in pooler.output() and "reads" not in pooler.output()


def test_names_that_mean_something_to_a_filter(pooled, directory):
    """`*` finds no user; a search that finds two lets neither in."""
    options = f'ldapserver=127.0.0.1 ldapport={directory.port} {SEARCH} ldapsearchfilter="(|(uid=$username)(mail=$username))"'
    pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
    for user in ("*", "ali*", "alice)(uid=*", "same@example.net"):
        assert refused(pooler, user, "of the directory")["C"] in ("28P01", "08P01")
    pooler.logged("more than one entry")


def test_starttls_towards_a_port_of_ldaps(pooled, directory):
    """A mistake in the settings: the login fails soon and the log says why; the next login is answered, too."""
    options = f'ldapserver=localhost ldapport={directory.tls_port} ldaptls=1 ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"'
    pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
    for _ in range(2):
        assert refused(pooler, "alice", "of the directory")["C"] in ("28P01", "08P01", "28000")
    pooler.logged("could not connect to LDAP server localhost: .*StartTLS.*set ldapscheme=ldaps instead of ldaptls=1")


@pytest.mark.parametrize("scheme, said", [("ldaps", "ldap.conf"), ("starttls", "LDAPTLS_CACERT"), ("starttls", "SSL_CERT_FILE")])
def test_encrypted(pooled, directory, certificates, scheme, said, monkeypatch):
    """TLS from the first byte or by StartTLS; the server's certificate has to be good, signed by an authority that OpenLDAP's settings trust."""
    port, more = (directory.tls_port, "ldapscheme=ldaps") if scheme == "ldaps" else (directory.port, "ldaptls=1")
    options = f'ldapserver=localhost ldapport={port} {more} ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"'
    for name in ("SSL_CERT_FILE", "LDAPTLS_CACERT", "LDAPCONF"):
        monkeypatch.delenv(name, raising=False)
    for authority, good in (("ca", True), ("stranger", False)):
        if said == "ldap.conf":
            conf = Path(certificates.folder) / f"ldap-{authority}.conf"
            conf.write_text(f"TLS_CACERT {certificates.crt(authority)}\n")
            monkeypatch.setenv("LDAPCONF", str(conf))
        else:
            monkeypatch.setenv(said, certificates.crt(authority))
        pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
        if good:
            with pooler.raw(password="of the directory") as session:
                assert session.value("select current_user") == "alice"
        else:
            refused(pooler, "alice", "of the directory")
            pooler.logged("could not connect to LDAP server")


def test_a_certificate_of_version_1(pooled, certificates, monkeypatch):
    """As `openssl x509 -req` makes it without extensions: pgweir accepts it from directories as it does from PostgreSQL."""
    directory = Directory(certificates, certificate="plain")
    monkeypatch.setenv("LDAPTLS_CACERT", certificates.crt("ca"))
    options = f'ldapserver=localhost ldapport={directory.tls_port} ldapscheme=ldaps ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"'
    try:
        pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
        with pooler.raw(password="of the directory") as session:
            assert session.value("select current_user") == "alice"
    finally:
        directory.discard()


@pytest.mark.parametrize("where", ["ldap.conf", "LDAPTLS_REQCERT"])
def test_certificates_are_checked_whatever_openldap_is_told(pooled, directory, certificates, where, monkeypatch):
    """TLS_REQCERT is ignored; the warning about the certificate says so."""
    conf = Path(certificates.folder) / "ldap-reqcert.conf"
    conf.write_text(f"TLS_CACERT {certificates.crt('stranger')}\n" + ("TLS_REQCERT never\n" if where == "ldap.conf" else ""))
    monkeypatch.setenv("LDAPCONF", str(conf))
    for name in ("SSL_CERT_FILE", "LDAPTLS_CACERT", "LDAPTLS_REQCERT"):
        monkeypatch.delenv(name, raising=False)
    if where != "ldap.conf":
        monkeypatch.setenv(where, "never")
    options = f'ldapserver=localhost ldapport={directory.tls_port} ldapscheme=ldaps ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"'
    pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
    refused(pooler, "alice", "of the directory")
    pooler.logged("could not connect to LDAP server localhost: .*certificate.*pgweir ignores TLS_REQCERT never")


def test_the_next_server_is_asked(pooled, directory):
    """A server that cannot be reached is passed over; if all are unreachable, logins are refused, and the log says why."""
    way = 'ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"'
    options = f'ldapserver="127.0.0.2 127.0.0.1" ldapport={directory.port} {way}'
    pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
    with pooler.raw(password="of the directory") as session:
        assert session.value("select current_user") == "alice"
    pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=f"ldapserver=127.0.0.1 ldapport={free_port()} {way}")
    refused(pooler, "alice", "of the directory")
    pooler.logged("could not connect to LDAP server 127.0.0.1")


def test_by_rule(pooled, directory):
    """A line of the rules, with its options behind the method."""
    pooler = pooled(start=False, auth_type="hba")
    rules = pooler.folder / "hba.conf"
    rules.write_text(f"host pgbouncer all all trust\nhost all all 127.0.0.1/32 ldap ldapserver=127.0.0.1 ldapport={directory.port} {SEARCH}\n")
    give(rules)
    pooler.write_ini(auth_hba_file=str(rules))
    pooler.start()
    with pooler.raw(password="of the directory") as session:
        assert session.value("select current_user") == "alice"
    assert refused(pooler, "alice", "wrong")["C"] == "28P01"


def test_options_that_do_not_fit(pooled):
    """Said at the start of a reload, which then changes nothing."""
    pooler = pooled()
    pooler.write_ini(auth_type="ldap", auth_ldap_options="ldapserver=h ldapprefix=x ldapbasedn=y")
    with pooler.console() as console:
        assert console.query("RELOAD").errors
    pooler.logged("invalid auth_ldap_options: ldapprefix")
    with pooler.raw() as session:
        assert session.value("select 1") == "1"


class NoDirectory:
    """Answers each request of a directory's client with these bytes, and then hangs up."""

    def __init__(self, answer):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(self._answer)

    def close(self):
        """Stops it."""
        self._listener.close()


NONSENSE = {
    "a result that is no sequence": bytes.fromhex("3006 020101 610100".replace(" ", "")),
    "a result without anything in it": bytes.fromhex("3005 020101 6100".replace(" ", "")),
    "a result of numbers": bytes.fromhex("300e 020101 6109 020100 020100 020100".replace(" ", "")),
    "an unknown operation": bytes.fromhex("3005 020101 7f00".replace(" ", "")),
    "an operation that was not asked for": bytes.fromhex("3005 020107 6100".replace(" ", "")),
    "no number of a message": bytes.fromhex("3004 04006100"),
    "nothing in a message": bytes.fromhex("3000"),
    "a message that never ends": bytes.fromhex("3084ffffffff") + b"\0" * 1000,
    "no message": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("way", ['ldapprefix="uid=" ldapsuffix=",dc=net"', SEARCH])
def test_what_is_no_directory(pooled, way):
    """Whatever a server that is none says: every login is refused, and the pooler lives and goes on asking."""
    servers = [NoDirectory(answer) for answer in NONSENSE.values()]
    others = "host all all 127.0.0.1/32 trust\n"
    pooler = pooled(start=False, auth_type="hba")
    rules = pooler.folder / "hba.conf"
    lines = [f"host app u{n} all ldap ldapserver=127.0.0.1 ldapport={server.port} {way}\n" for n, server in enumerate(servers)]
    rules.write_text("".join(lines) + others)
    give(rules)
    pooler.write_ini(auth_hba_file=str(rules))
    pooler.start()
    for _ in range(2):  # more questions than there are threads
        for number, what in enumerate(NONSENSE):
            assert refused(pooler, f"u{number}", "x")["C"] == "28P01", what
    with pooler.raw(user="bob") as session:
        assert session.value("select 1") == "1"
    pooler.logged("an answer to a login's question makes no sense")
    for server in servers:
        server.close()

"""`auth_type = ldap`: a real OpenLDAP server knows the passwords."""

import os

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
    """`*` finds nobody; a search that finds two lets neither in."""
    options = f'ldapserver=127.0.0.1 ldapport={directory.port} {SEARCH} ldapsearchfilter="(|(uid=$username)(mail=$username))"'
    pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
    for user in ("*", "ali*", "alice)(uid=*", "same@example.net"):
        assert refused(pooler, user, "of the directory")["C"] in ("28P01", "08P01")
    pooler.logged("more than one entry")


@pytest.mark.parametrize("scheme", ["ldaps", "starttls"])
def test_encrypted(pooled, directory, certificates, scheme, monkeypatch):
    """TLS from the first byte or by StartTLS; the server's certificate has to be good."""
    port, more = (directory.tls_port, "ldapscheme=ldaps") if scheme == "ldaps" else (directory.port, "ldaptls=1")
    options = f'ldapserver=localhost ldapport={port} {more} ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"'
    for authority, good in (("ca", True), ("stranger", False)):
        monkeypatch.setenv("SSL_CERT_FILE", certificates.crt(authority))
        pooler = pooled(auth_type="ldap", userlist={"admin": "x"}, auth_ldap_options=options)
        if good:
            with pooler.raw(password="of the directory") as session:
                assert session.value("select current_user") == "alice"
        else:
            refused(pooler, "alice", "of the directory")
            pooler.logged("could not connect to LDAP server")


def test_the_next_server_is_asked(pooled, directory):
    """A server that can not be reached is passed over; all of them unreachable let nobody in, and the log says why."""
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

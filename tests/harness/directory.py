"""A throw-away OpenLDAP server."""

import shutil
import subprocess
from pathlib import Path

from .machine import dies_with_us, eventually, free_port, scratch_folder

SLAPD = next((path for path in (shutil.which("slapd"), "/usr/sbin/slapd") if path and Path(path).exists()), None)
"""The server's program, or None when it is not installed."""

CONF = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCACertificateFile {ca}
TLSCertificateFile {crt}
TLSCertificateKeyFile {key}
access to attrs=userPassword by anonymous auth by * none
access to * by dn="cn=reader,dc=example,dc=net" read by anonymous auth by * none
database mdb
suffix "dc=example,dc=net"
rootdn "cn=root,dc=example,dc=net"
directory {folder}/db
"""

ENTRIES = """
dn: dc=example,dc=net
objectClass: dcObject
objectClass: organization
dc: example
o: example

dn: cn=reader,dc=example,dc=net
objectClass: person
cn: reader
sn: reader
userPassword: reads

dn: uid=alice,dc=example,dc=net
objectClass: inetOrgPerson
uid: alice
cn: Alice
sn: A
mail: same@example.net
userPassword: of the directory

dn: uid=bob,dc=example,dc=net
objectClass: inetOrgPerson
uid: bob
cn: Bob
sn: B
mail: same@example.net
userPassword: of bob
"""


class Directory:
    """A running server with two users, and one that may read. Ports for `ldap` and `ldaps` on 127.0.0.1."""

    def __init__(self, certificates, certificate="server"):
        self.folder = scratch_folder("ldap")
        self.port, self.tls_port = free_port(), free_port()
        (self.folder / "db").mkdir()
        conf = self.folder / "slapd.conf"
        conf.write_text(CONF.format(folder=self.folder, ca=certificates.crt("ca"), crt=certificates.crt(certificate), key=certificates.key(certificate)))
        entries = self.folder / "entries.ldif"
        entries.write_text(ENTRIES)
        subprocess.run([SLAPD, "-T", "add", "-f", conf, "-l", entries], check=True, capture_output=True)
        self._log = open(self.folder / "log", "wb")
        self._process = subprocess.Popen(
            [*dies_with_us("KILL"), SLAPD, "-d", "0", "-f", conf, "-h", f"ldap://127.0.0.1:{self.port} ldaps://127.0.0.1:{self.tls_port}"],
            stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(lambda: (self.folder / "slapd.pid").exists(), "the directory is up", timeout_s=20)

    def discard(self):
        """Stops it and removes what it wrote."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

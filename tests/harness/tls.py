"""Certificates for one test session, made by the openssl program: a CA, a stranger's CA, and leaves of both."""

import ssl
import subprocess
from pathlib import Path

from .machine import give

DAYS = "30"


def _openssl(folder, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(arguments)}:\n{done.stderr}")


class Certificates:
    """Files in one folder. Keys are readable by the service account only, as PostgreSQL demands."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir()
        self._authority("ca")
        self._authority("stranger")
        self.leaf("server", "ca", "localhost", "DNS:localhost,IP:127.0.0.1")
        self.leaf("elsewhere", "ca", "db.example.org", "DNS:db.example.org")
        self.leaf("pooler", "ca", "localhost", "DNS:localhost,IP:127.0.0.1")
        self.leaf("pooler2", "ca", "localhost", "DNS:localhost,IP:127.0.0.1")
        self.leaf("plain", "ca", "localhost", None)
        self.leaf("u_cert", "ca", "u_cert", "DNS:u_cert")
        self.leaf("alice", "ca", "alice", "DNS:alice")
        self.leaf("intruder", "stranger", "alice", "DNS:alice")
        give(self.folder)
        for key in self.folder.glob("*.key"):
            key.chmod(0o600)

    def _authority(self, name):
        _openssl(
            self.folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", DAYS, "-subj", f"/CN=test {name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def leaf(self, name, authority, common_name, alternative_names, key=("ec", "-pkeyopt", "ec_paramgen_curve:P-256"), days=DAYS):
        """A key and a certificate `name`, signed by `authority`. Without alternative names, as PostgreSQL's manual makes it: of X.509 version 1."""
        extensions = ()
        if alternative_names:
            (self.folder / f"{name}.ext").write_text(
                f"subjectAltName={alternative_names}\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            )
            extensions = ("-extfile", f"{name}.ext")
        _openssl(
            self.folder, "req", "-new", "-newkey", *key, "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={common_name}",
        )  # fmt: skip
        _openssl(
            self.folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-out", f"{name}.crt", "-days", str(days), *extensions,
        )  # fmt: skip

    def kinds(self):
        """Certificates of many kinds, good and bad, for tests that look closely."""
        if (self.folder / "kinds").exists():
            return
        rsa, p521 = ("rsa:2048",), ("ec", "-pkeyopt", "ec_paramgen_curve:P-521")
        self.leaf("v1_rsa", "ca", "localhost", None, rsa)
        self.leaf("v1_p521", "ca", "localhost", None, p521)
        self.leaf("v1_alice", "ca", "alice", None)
        self.leaf("v1_u_cert", "ca", "u_cert", None)
        self.leaf("v1_elsewhere", "ca", "db.example.org", None)
        self.leaf("v1_stranger", "stranger", "localhost", None)
        self.leaf("v1_expired", "ca", "localhost", None, days=-1)
        self.leaf("p521", "ca", "localhost", "DNS:localhost,IP:127.0.0.1", p521)
        self.leaf("rsa_pss", "ca", "localhost", "DNS:localhost,IP:127.0.0.1", ("rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"))
        self.leaf("v1_broken", "ca", "localhost", None)
        self._damage("v1_broken")
        (self.folder / "between.ext").write_text("basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n")
        self.leaf("between", "ca", "between", None)
        _openssl(
            self.folder, "x509", "-req", "-in", "between.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", "between.crt", "-days", DAYS, "-extfile", "between.ext",
        )  # fmt: skip
        for name, authority, names in (("v1_between", "between", None), ("of_v1_ca", "v1_rsa", "DNS:localhost,IP:127.0.0.1"), ("v1_of_v1_ca", "v1_rsa", None)):
            self.leaf(name, authority, "localhost", names)
            crt = self.folder / f"{name}.crt"
            crt.write_text(crt.read_text() + (self.folder / f"{authority}.crt").read_text())
        (self.folder / "kinds").touch()
        give(self.folder)
        for key in self.folder.glob("*.key"):
            key.chmod(0o600)

    def _damage(self, name):
        """Another signature than the authority's: its last byte is changed."""
        crt = self.folder / f"{name}.crt"
        der = bytearray(ssl.PEM_cert_to_DER_cert(crt.read_text()))
        der[-1] ^= 1
        crt.write_text(ssl.DER_cert_to_PEM_cert(bytes(der)))

    def version(self, name):
        """The version of X.509 that a certificate is of; later versions of OpenSSL make version 3 where earlier ones make version 1."""
        return ssl._ssl._test_decode_cert(self.crt(name))["version"]

    def crt(self, name):
        """The certificate file of `name`."""
        return str(self.folder / f"{name}.crt")

    def key(self, name):
        """The private key file of `name`."""
        return str(self.folder / f"{name}.key")

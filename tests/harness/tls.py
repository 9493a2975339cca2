"""Certificates for one test session, made by the openssl program: a CA, a stranger's CA, and leaves of both."""

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

    def leaf(self, name, authority, common_name, alternative_names):
        """A key and a certificate `name`, signed by `authority`. Without alternative names, as PostgreSQL's manual makes it: of X.509 version 1."""
        extensions = ()
        if alternative_names:
            (self.folder / f"{name}.ext").write_text(
                f"subjectAltName={alternative_names}\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            )
            extensions = ("-extfile", f"{name}.ext")
        _openssl(
            self.folder, "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={common_name}",
        )  # fmt: skip
        _openssl(
            self.folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-out", f"{name}.crt", "-days", DAYS, *extensions,
        )  # fmt: skip

    def crt(self, name):
        """The certificate file of `name`."""
        return str(self.folder / f"{name}.crt")

    def key(self, name):
        """The private key file of `name`."""
        return str(self.folder / f"{name}.key")

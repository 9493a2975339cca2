"""`auth_type = pam`: the operating system's modules decide, asked through the real libpam. Needs root, to write a service's file."""

import os
from pathlib import Path

import pytest

from harness.machine import give, scratch_folder
from harness.wire import Closed, Raw, cstr, message, startup

SERVICE = Path("/etc/pam.d/pgbouncer")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0 or SERVICE.exists(), reason="needs root, and a system without the service pgbouncer"),
    pytest.mark.skipif(not list(Path("/lib").glob("*/libpam.so.0")) + list(Path("/usr/lib").glob("*/libpam.so.0")), reason="needs libpam"),
    pytest.mark.xdist_group("pam"),
]

PROGRAM = """#!/bin/sh
# Knows alice by her password, and is in no hurry with sloth.
read -r password
[ "$PAM_USER" = sloth ] && sleep 60
[ "$PAM_USER" = alice ] && [ "$password" = "of the system" ] && [ "$PAM_RHOST" = 127.0.0.1 ]
"""


@pytest.fixture
def service():
    """The service `pgbouncer`, whose module asks a program of ours."""
    folder = scratch_folder("pam")
    program = folder / "ask"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    give(program)
    SERVICE.write_text(f"auth required pam_exec.so quiet expose_authtok {program}\naccount required pam_permit.so\n")
    yield
    SERVICE.unlink()
    program.unlink()
    folder.rmdir()


def refused(pooler, user, password):
    """The error that a login ends with."""
    with pytest.raises(Closed) as closed, Raw(pooler.address) as session:
        session.login(user, "app", password)
    return closed.value.error


def test_the_system_knows_the_password(pooled, service):
    """The right password opens, every other one does not; the user need not be in any file."""
    pooler = pooled(auth_type="pam", userlist={"admin": "pw-of-admin"})
    with pooler.raw(password="of the system") as session:
        assert session.value("select current_user") == "alice"
    for user, password in (("alice", "wrong"), ("alice", "pw-of-alice"), ("bob", "of the system"), ("no body", "x")):
        error = refused(pooler, user, password)
        assert error["C"] in ("28P01", "08P01") and error["M"] == "PAM authentication failed"
    assert "of the system" not in pooler.output()


@pytest.mark.needs("PAM in rules")
def test_by_rule(pooled, service):
    """A line of the rules may ask for it; a client that waits for a module delays no other client."""
    pooler = pooled(start=False, auth_type="hba")
    rules = pooler.folder / "hba.conf"
    rules.write_text("host pgbouncer all all trust\nhost app alice,sloth 127.0.0.1/32 pam\nhost app bob 127.0.0.1/32 trust\n")
    give(rules)
    pooler.write_ini(auth_hba_file=str(rules), client_login_timeout=3)
    pooler.start()
    slow = [Raw(pooler.address) for _ in range(3)]
    for session in slow:
        session.send(startup({"user": "sloth", "database": "app"}))
        session.receive()
        session.send(message("p", cstr("x")))
    with pooler.raw(user="bob") as session:
        assert session.value("select 1") == "1"
    with pooler.raw(password="of the system") as session:
        assert session.value("select current_user") == "alice"
    for session in slow:
        assert session.until_closed().error["M"] == "client_login_timeout"

"""docs/migrate/pgbouncer.md is followed to the letter: its commands run in their order, with three configuration files, from a running
PgBouncer to pgweir and back.

What a container lacks stands in for the real thing: `sudo` and `apt-get` are two lines each, `systemctl` starts the command line of
the units. Paths and ports of the page are moved into a folder of the test.
"""

import os
import re
import shutil
import subprocess
import textwrap

import pytest

from harness.machine import ACCOUNT, ACCOUNT_NAME, REPOSITORY, accepts, eventually, free_port, give, reachable, scratch_folder
from harness.pooler import binary, kind

PAGE = REPOSITORY / "docs" / "migrate" / "pgbouncer.md"
UNIT = REPOSITORY / "deploy" / "systemd" / "pgweir.service"
PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")

pytestmark = [
    pytest.mark.skipif(kind() == "pgbouncer", reason="the page is about pgweir"),
    pytest.mark.skipif(ACCOUNT is None, reason="the page's commands need root"),
    pytest.mark.skipif(PGBOUNCER is None, reason="Debian's pgbouncer is not installed"),
]

PASSWORD = "correct horse"

#: As Debian's package has it (comments left out), with a database.
DEBIAN = """
[databases]
shop = host=127.0.0.1 port={pg} dbname=shop
[users]
[pgbouncer]
logfile = /var/log/postgresql/pgbouncer.log
pidfile = /var/run/postgresql/pgbouncer.pid
listen_addr = localhost
listen_port = 6432
unix_socket_dir = /var/run/postgresql
auth_type = md5
auth_file = /etc/pgbouncer/userlist.txt
"""

#: As the entry point of a container image writes it from DB_HOST, DB_USER and DB_PASSWORD.
IMAGE = """
[databases]
* = host=127.0.0.1 port={pg} auth_user=shop

[pgbouncer]
listen_addr = 0.0.0.0
listen_port = 6432
unix_socket_dir =
user = {account}
auth_file = /etc/pgbouncer/userlist.txt
auth_type = scram-sha-256
ignore_startup_parameters = extra_float_digits
pool_mode = transaction
max_client_conn = 200
server_tls_sslmode = prefer
admin_users = shop
"""

#: Users in the database, TLS on both sides.
QUERY_TLS = """
[databases]
shop = host=127.0.0.1 port={pg} dbname=shop auth_user=asker

[pgbouncer]
logfile = /var/log/postgresql/pgbouncer.log
pidfile = /var/run/postgresql/pgbouncer.pid
listen_addr = 127.0.0.1
listen_port = 6432
unix_socket_dir = /var/run/postgresql
auth_type = scram-sha-256
auth_file = /etc/pgbouncer/userlist.txt
auth_query = SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1
client_tls_sslmode = require
client_tls_key_file = /etc/pgbouncer/tls/server.key
client_tls_cert_file = /etc/pgbouncer/tls/server.crt
server_tls_sslmode = require
pool_mode = transaction
default_pool_size = 5
"""

FILES = {"debian": DEBIAN, "image": IMAGE, "auth_query and TLS": QUERY_TLS}


def blocks():
    """The page's shell commands, block by block."""
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Machine:
    """A folder that stands for a machine on which PgBouncer runs."""

    def __init__(self, ini, userlist):
        self.root = scratch_folder("mig")
        self.port, self.trial_port = free_port(), free_port()
        self.moved = {
            **{path: f"{self.root}{path}" for path in ("/etc/pgbouncer", "/etc/pgweir", "/etc/systemd", "/var/log", "/tmp/pgweir-trial")},
            "/var/run": f"{self.root}/run",
            "/run/pgweir": f"{self.root}/run/pgweir",
            "/run/postgresql": f"{self.root}/run/postgresql",
            "6432": str(self.port),
            "6433": str(self.trial_port),
        }
        for folder in ("etc/pgbouncer/tls", "etc/systemd", "run/postgresql", "var/log/postgresql", "tmp", "bin", "units"):
            (self.root / folder).mkdir(parents=True)
        self.write("etc/pgbouncer/pgbouncer.ini", self.move(ini))
        self.write("etc/pgbouncer/userlist.txt", userlist)
        give(self.root)
        self.program("sudo", 'account=\nif [ "$1" = -u ]; then account=$2; shift 2; fi\n'
            f'if [ -n "$account" ]; then exec setpriv --reuid {ACCOUNT.pw_uid} --regid {ACCOUNT.pw_gid} --clear-groups -- "$@"; fi\nexec "$@"')  # fmt: skip
        # What the package brings.
        packaged = f"ln -sf '{reachable(binary(), self.root)}' '{self.root}/bin/pgweir'\n"
        for folder in ("etc/pgweir", "run/pgweir", "var/log/pgweir"):
            packaged += f"install -d -o {ACCOUNT_NAME} '{self.root}/{folder}'\n"
        self.program("apt-get", packaged)
        self.program("systemctl", SYSTEMCTL.format(root=self.root, account=ACCOUNT_NAME, port=self.port))
        self.write("units/pgbouncer", f"{PGBOUNCER} -q {self.root}/etc/pgbouncer/pgbouncer.ini")
        [command] = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
        self.write("units/pgweir", self.move(command).replace("/usr/bin/pgweir", f"{self.root}/bin/pgweir"))

    def move(self, text):
        """The text with the page's paths and ports moved into the folder. /var/run is one with /run."""
        text = re.sub("|".join(map(re.escape, sorted(self.moved, key=len, reverse=True))), lambda found: self.moved[found[0]], text)
        return text.replace("root:pgweir", f"root:{ACCOUNT.pw_gid}")

    def write(self, name, text):
        (self.root / name).write_text(text)

    def program(self, name, text):
        """A shell script in the folder of programs."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\nset -e\n{text}\n")
        path.chmod(0o755)

    def run(self, text):
        """Runs commands as the page's reader types them: in one shell, which ends at the first failure."""
        environment = os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "PGPASSWORD": PASSWORD, "PGSSLMODE": "prefer"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"export DBNAME=shop DBUSER=shop\n{self.move(text)}"],
            capture_output=True, text=True, cwd=self.root, env=environment, timeout=120,
        )  # fmt: skip
        logs = "".join(f"{path}:\n{path.read_text(errors='replace')[-1500:]}" for path in self.root.glob("**/*.log"))
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}\n{logs}"
        return done.stdout + done.stderr

    def server(self, port):
        """What serves a port: the version that the console's clients are told."""
        return self.run(f'psql -h 127.0.0.1 -p {port} -U shop -d shop -Atc "show server_version"')

    def serving(self):
        """The program that serves the port: pgbouncer or pgweir."""
        [name] = [name for name in ("pgbouncer", "pgweir") if (self.root / "units" / f"{name}.pid").exists()]
        return name

    def end(self):
        """Ends what is left, and removes the folder."""
        for path in [*self.root.glob("units/*.pid"), *self.root.glob("tmp/*.pid")]:
            subprocess.run(["kill", "-KILL", path.read_text().strip()], capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)


#: Starts and stops the units' programs, and waits until the port is open or closed, as systemd waits for READY=1 and for the end.
SYSTEMCTL = textwrap.dedent("""
    case $1 in
    start)
        setpriv --reuid {account} --regid {account} --clear-groups -- bash -c 'exec '"$(cat '{root}/units/'"$2")" > /dev/null 2>&1 < /dev/null &
        echo $! > "{root}/units/$2.pid"
        until (: > /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do kill -0 $!; sleep 0.05; done
        ;;
    stop)
        kill -INT "$(cat "{root}/units/$2.pid")"
        while kill -0 "$(cat "{root}/units/$2.pid")" 2> /dev/null; do sleep 0.05; done
        rm "{root}/units/$2.pid"
        ;;
    daemon-reload | enable | disable) ;;
    *) exit 1 ;;
    esac
""")


@pytest.fixture
def shop(pg):
    """A database and a user of this name, and one that may read the passwords."""
    pg.sql(f"create role shop login password '{PASSWORD}'")
    pg.sql(f"create role asker login superuser password '{PASSWORD}'")
    pg.sql("create database shop owner shop")
    yield pg
    pg.sql("drop database shop with (force)")
    pg.sql("drop role shop")
    pg.sql("drop role asker")


@pytest.fixture
def machine(request, shop, certificates):
    """The machine with one of the three files."""
    name = "asker" if "asker" in FILES[request.param] else "shop"
    ini = FILES[request.param].format(pg=shop.port, account=ACCOUNT_NAME)
    machine = Machine(ini, f'"{name}" "{PASSWORD}"\n')
    for found, kept in (("server.key", certificates.key("server")), ("server.crt", certificates.crt("server"))):
        shutil.copy(kept, machine.root / "etc/pgbouncer/tls" / found)
    give(machine.root / "etc")
    yield machine
    machine.end()


@pytest.mark.parametrize("machine", FILES, indirect=True)
def test_the_page_leads_from_pgbouncer_to_pgweir_and_back(machine):
    """Every command succeeds; at each point the right program serves the port."""
    machine.run("systemctl start pgbouncer")
    steps = blocks()
    trial = next(number for number, step in enumerate(steps) if "pgweir-trial.pid)" in step)
    for step in steps[: trial + 1]:
        machine.run(step)
    assert machine.serving() == "pgbouncer"
    eventually(lambda: not accepts(machine.trial_port), "the trial has ended")
    for step in steps[trial + 1 :]:
        machine.run(step)
        if "start pgweir" in step:
            assert machine.serving() == "pgweir"
            log = machine.root / "var/log/pgweir/pgweir.log"
            assert "login attempt: db=shop user=shop" in log.read_text()
    assert machine.serving() == "pgbouncer"


def test_the_page_has_all_steps():
    """The blocks that the test runs are those of the page: none is lost by a change of its form."""
    text = "\n".join(blocks())
    for command in ("apt-get install", "pgweir check", "pgweir -d", "psql", "pgbench", "systemctl stop pgbouncer", "systemctl start pgweir"):
        assert command in text
    assert len(blocks()) == PAGE.read_text().count("```sh")

"""The starts of PgBouncer's images, taken in pgweir's image as each operator or article writes them: pgbench, the health check, the end."""

import json
import os
import re
import signal
import subprocess

import psycopg
import pytest
from harness.cluster import PASSWORDS
from harness.machine import SETPRIV, dies_with_us, eventually, free_port
from harness.pooler import kind
from test_image import image, one  # noqa: F401  (a fixture)
from test_packages import debian, pgbench, run  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.skipif(kind() == "pgbouncer", reason="the image is pgweir's"), pytest.mark.timeout(600)]

#: What PgBouncer 1.25 writes ahead of each line; operators' log readers split it so: time, [pid], LEVEL, text.
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \[\d+\] [A-Z]+ .+")


class Pod:
    """A container of the image: its command, user, variables and mounted files, and the process once it was started."""

    def __init__(self, machine):
        self.machine = machine
        self.port = free_port()
        self.user = one("USER")
        self.process = None
        self.log = machine.path("/container.log")
        self.variables = {}

    def mount(self, name, text, mode=0o644):
        """A file that root owns and the container's user can read."""
        path = self.machine.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def words(self, *command):
        """The command line that runs a command as the container's user in its environment."""
        pairs = (f"{key}={value}" for key, value in self.variables.items())
        return [*dies_with_us("KILL"), *self.machine.command("env", "-i", "PATH=/usr/bin:/bin", *pairs, *command, user=self.user)]

    def start(self, *command, **variables):
        """Starts the container; without a command, by that of the image. Returns when its health check succeeds."""
        self.variables = dict(pair.split("=", 1) for pair in one("ENV").split()) | variables
        # Tests run side by side on one machine: the dashboard has a port of its own.
        self.variables.setdefault("PGWEIR_HTTP_LISTEN", f"127.0.0.1:{free_port()}")
        command = command or (*json.loads(one("ENTRYPOINT")), *json.loads(one("CMD")))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.words(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def healthy():
            assert self.process.poll() is None, self.said()
            return subprocess.run(self.words("pgweir-health", str(self.port)), capture_output=True).returncode == 0

        eventually(healthy, "it is healthy")
        return self

    def said(self):
        """The log up to now."""
        return self.log.read_text()

    def psql(self, database, user, text, password, host="127.0.0.1"):
        """What psql answers."""
        command = ["psql", "-X", "-At", "-h", host, "-p", str(self.port), "-U", user, "-d", database, "-c", text]
        return run(*command, env=os.environ | {"PGPASSWORD": password}).strip()

    def serves(self, secret=PASSWORDS["alice"]):
        """pgbench as alice, with no transaction that fails; no password is in the log."""
        pgbench(self.port, "-c", "4", "-t", "20")
        assert secret not in self.said()

    def pid(self):
        """The pooler's own process: the pod's command replaces its shells one after another."""
        return self.process.pid


@pytest.fixture
def pod(image, bench):  # noqa: F811
    """A container that was not started yet, in front of a PostgreSQL with pgbench's tables."""
    box = Pod(image)
    yield box
    if box.process and box.process.poll() is None:
        box.process.kill()
        box.process.wait()


def test_edoburu(pod, pg):
    """DB_*, AUTH_QUERY as DB_USER, passwords for the console, a mounted list of users, a pool's size."""
    pod.mount("/etc/pgbouncer/userlist.txt", '"ops" "hunter3"\n')
    pod.start(
        LISTEN_PORT=pod.port, LISTEN_ADDR="127.0.0.1", DB_HOST="127.0.0.1", DB_PORT=pg.port, DB_USER="postgres", DB_PASSWORD="", DB_NAME="bench",
        AUTH_TYPE="scram-sha-256", AUTH_QUERY="SELECT usename, passwd FROM pg_shadow WHERE usename=$1", ADMIN_USERS="ops", STATS_USERS="watch",
        STATS_PASSWORDS="hunter4", POOL_SIZE="3", TIMEZONE="UTC", POOL_MODE="transaction",
    )  # fmt: skip
    pod.serves()
    # Health checks of compose files and charts run in the container.
    run(*pod.words("pg_isready", "-h", "127.0.0.1", "-p", pod.port, "-d", "bench"))
    asked = pod.words("env", f"PGPASSWORD={PASSWORDS['alice']}", "psql", "-Atqh", "127.0.0.1", "-p", pod.port, "-U", "alice", "bench", "-c", "select 7")
    assert run(*asked) == "7\n"
    assert "|3|" in pod.psql("pgbouncer", "ops", "SHOW DATABASES", "hunter3")
    assert pod.psql("pgbouncer", "watch", "SHOW VERSION", "hunter4").startswith("PgBouncer ")
    assert pod.psql("bench", "alice", "show timezone", PASSWORDS["alice"]) == "UTC"


def test_bitnami_by_variables(pod, pg):
    """POSTGRESQL_*, PGBOUNCER_* and PGBOUNCER_DSN_0, as user 1001 of group 0."""
    pod.user = "1001:0"
    pod.start(
        POSTGRESQL_HOST="127.0.0.1", POSTGRESQL_PORT=pg.port, POSTGRESQL_USERNAME="alice", POSTGRESQL_PASSWORD=PASSWORDS["alice"],
        POSTGRESQL_DATABASE="app", PGBOUNCER_DATABASE="app", PGBOUNCER_PORT=pod.port, PGBOUNCER_BIND_ADDRESS="127.0.0.1",
        PGBOUNCER_POOL_MODE="transaction", PGBOUNCER_AUTH_TYPE="scram-sha-256",
        PGBOUNCER_DSN_0=f"bench=host=127.0.0.1 port={pg.port} dbname=bench",
    )  # fmt: skip
    pod.serves()
    assert pod.psql("app", "alice", "select current_database()", PASSWORDS["alice"]) == "app"


def test_bitnami_by_mounted_files(pod, pg):
    """The file and the list of users where the image has them, with variables beside them and a script that is not run."""
    pod.user = "1001:0"
    folder = "/bitnami/pgbouncer/conf"
    pod.mount(f"{folder}/userlist.txt", f'"alice" "{PASSWORDS["alice"]}"\n')
    pod.mount(
        f"{folder}/pgbouncer.ini",
        f"[databases]\nbench = host=127.0.0.1 port={pg.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {pod.port}\nauth_type = md5\n"
        f"auth_file = {folder}/userlist.txt\nunix_socket_dir =\npool_mode = transaction\n",
    )
    pod.mount("/docker-entrypoint-initdb.d/init.sh", "#!/bin/sh\nexit 1\n", 0o755)
    pod.start(POSTGRESQL_HOST="elsewhere")
    pod.serves()
    assert f"configuration file {folder}/pgbouncer.ini" in pod.said()
    assert "/docker-entrypoint-initdb.d has files, and pgweir runs no scripts" in pod.said()
    assert "these variables have no effect: POSTGRESQL_HOST" in pod.said()


def lookup(pg, schema, function, user):
    """The function that an operator makes in the database: it tells secrets to the pooler's user alone."""
    with pg.connect("bench", "postgres") as server:
        server.execute(f"create schema if not exists {schema}")
        server.execute(
            f"create or replace function {schema}.{function}(in i_username text, out uname text, out phash text) returns record language sql "
            "security definer set search_path = pg_catalog as $$ select usename::text, passwd from pg_shadow where usename = i_username $$"
        )
        server.execute(f"grant usage on schema {schema} to {user}")


def test_zalandos_operator(pod, pg):
    """No file, user 100:101, which the image does not know, and nothing that is written outside of the directory for temporary files."""
    lookup(pg, "pooler", "user_lookup", "bob")
    pod.user = "100:101"
    pod.start(
        CONNECTION_POOLER_PORT=pod.port, CONNECTION_POOLER_MODE="transaction", CONNECTION_POOLER_DEFAULT_SIZE="4", CONNECTION_POOLER_MIN_SIZE="1",
        CONNECTION_POOLER_RESERVE_SIZE="2", CONNECTION_POOLER_MAX_CLIENT_CONN="50", CONNECTION_POOLER_MAX_DB_CONN="5", PGHOST="127.0.0.1",
        PGPORT=pg.port, PGUSER="bob", PGPASSWORD=PASSWORDS["bob"], PGSCHEMA="pooler", PGWEIR_LISTEN_ADDR="127.0.0.1",
        PGWEIR_SERVER_TLS_SSLMODE="prefer",
    )  # fmt: skip
    pod.serves(PASSWORDS["bob"])
    assert {path.name for path in pod.machine.path("/tmp").iterdir()} == {"pgweir-100"}
    assert not list(pod.machine.path("/run/pgweir").iterdir())


def cloudnativepg(pod, pg):
    """The files of CloudNativePG, with the addresses of this machine, and the command with which it starts them."""
    lookup(pg, "public", "user_search", "bob")
    folder = "/controller/configs"
    pod.user = "998:996"
    scratch = pod.machine.path("/controller/run")
    scratch.mkdir(parents=True)
    # An emptyDir with fsGroup.
    scratch.chmod(0o2777)
    pod.mount(f"{folder}/pg_hba.conf", "local pgbouncer pgbouncer peer\nhost all all 0.0.0.0/0 md5\nhost all all ::/0 md5\n")
    pod.mount(f"{folder}/users.txt", f'"bob" "{PASSWORDS["bob"]}"\n')
    pod.mount(
        f"{folder}/pgbouncer.ini",
        f"[databases]\n* = host=127.0.0.1 port={pg.port}\n\n[pgbouncer]\npool_mode = transaction\nauth_user = bob\nauth_dbname = bench\n"
        "auth_query = SELECT uname, phash FROM public.user_search($1)\n"
        f"auth_hba_file = {folder}/pg_hba.conf\nauth_type = hba\nauth_file = {folder}/users.txt\nadmin_users = pgbouncer\n"
        "ignore_startup_parameters = extra_float_digits,options\nlog_stats = 0\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {pod.port}\nunix_socket_dir = /controller/run\n",
    )
    return ("/usr/bin/pgbouncer", f"{folder}/pgbouncer.ini")


def console(pod, text):
    """A command on the console by its socket, as the user of the pooler's own operating system: peer asks for no password."""
    words = [SETPRIV, "--reuid", "998", "--regid", "996", "--clear-groups", "--", "psql", "-X", "-At", "-h", pod.machine.path("/controller/run")]
    return run(*words, "-p", str(pod.port), "-U", "pgbouncer", "-d", "pgbouncer", "-c", text)


def test_cloudnativepg(pod, pg):
    """Its file under its user, completed by a mounted conf.d: peer on the console, PAUSE and RESUME, the lines of the log."""
    command = cloudnativepg(pod, pg)
    pod.mount("/etc/pgweir/conf.d/10-pool.ini", "[pgweir]\ndefault_pool_size = 7\n")
    pod.start(*command)
    pod.serves()
    assert "default_pool_size|7|" in console(pod, "SHOW CONFIG")
    assert all(LINE.fullmatch(line) for line in pod.said().splitlines()), pod.said()
    console(pod, "PAUSE")
    assert "paused|yes" in console(pod, "SHOW STATE")
    console(pod, "RESUME")
    assert "paused|no" in console(pod, "SHOW STATE")
    pod.serves()


def test_cloudnativepg_ends_with_sigint(pod, pg):
    """SIGINT, with which it ends a pooler: the open transaction is committed, no new client comes in, the exit code is 0."""
    pod.start(*cloudnativepg(pod, pg))
    options = {"host": "127.0.0.1", "port": pod.port, "dbname": "bench", "user": "alice", "password": PASSWORDS["alice"], "sslmode": "disable"}
    with psycopg.connect(**options) as client:
        client.execute("create temp table kept (n int) on commit drop")
        os.kill(pod.pid(), signal.SIGINT)
        eventually(lambda: "got SIGINT, shutting down" in pod.said(), "it has heard the signal")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(**options)
        client.execute("insert into kept values (1)")
        client.commit()
    assert pod.process.wait(60) == 0, pod.said()


def test_crunchys_operator_finds_the_process_by_its_name(pod, pg):
    """`pkill -HUP --exact pgbouncer`: the process has the name that it was started by, also after an online restart."""
    command = cloudnativepg(pod, pg)
    pod.start(*command)

    def name(pid):
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()

    assert name(pod.pid()) == "pgbouncer"
    old = pod.process
    pod.start(command[0], "-R", command[1])
    old.wait(60)
    assert name(pod.pid()) == "pgbouncer"
    # The container beside it sees the processes of the pod, all of which are of this user.
    found = run(*pod.words("pgrep", "--exact", "pgbouncer", "--uid", "998")).split()
    assert str(pod.pid()) in found
    os.kill(pod.pid(), signal.SIGHUP)
    eventually(lambda: "got SIGHUP" in pod.said(), "it reads its file again")
    pod.serves()


#: The services of widely read articles, image name apart, each with PostgreSQL under the name that is replaced here.
COMPOSE = {
    "url": {
        "DATABASE_URL": "postgres://alice:{secret}@{host}:{port}/bench", "POOL_MODE": "transaction", "MAX_CLIENT_CONN": "200",
        "DEFAULT_POOL_SIZE": "10",
    },
    "parts": {
        "DB_HOST": "{host}", "DB_PORT": "{port}", "DB_USER": "alice", "DB_PASSWORD": "{secret}", "DB_NAME": "bench", "AUTH_TYPE": "scram-sha-256",
    },
    "pools": {
        "DB_HOST": "{host}", "DB_PORT": "{port}", "DB_USER": "alice", "DB_PASSWORD": "{secret}", "POOL_MODE": "transaction", "ADMIN_USERS": "alice",
        "MAX_CLIENT_CONN": "1000", "DEFAULT_POOL_SIZE": "20", "MIN_POOL_SIZE": "2", "RESERVE_POOL_SIZE": "5", "SERVER_RESET_QUERY": "DISCARD ALL",
        "IGNORE_STARTUP_PARAMETERS": "extra_float_digits",
    },
    "bitnami": {
        "POSTGRESQL_HOST": "{host}", "POSTGRESQL_PORT": "{port}", "POSTGRESQL_USERNAME": "alice", "POSTGRESQL_PASSWORD": "{secret}",
        "POSTGRESQL_DATABASE": "bench", "PGBOUNCER_DATABASE": "bench", "PGBOUNCER_POOL_MODE": "transaction", "PGBOUNCER_MAX_CLIENT_CONN": "200",
    },
    "own": {"DATABASE_URL": "postgres://alice:{secret}@{host}:{port}/bench", "PGWEIR_POOL_MODE": "transaction", "PGWEIR_MULTIPLEX_DEPTH": "2"},
}  # fmt: skip


@pytest.mark.parametrize("article", COMPOSE)
def test_the_environment_of_a_compose_file(pod, pg, article):
    """The variables as they stand; only addresses and ports are those of the test."""
    values = {"host": "127.0.0.1", "port": pg.port, "secret": PASSWORDS["alice"]}
    variables = {name: text.format(**values) for name, text in COMPOSE[article].items()}
    pod.start(PGWEIR_LISTEN_PORT=pod.port, PGWEIR_LISTEN_ADDR="127.0.0.1", **variables)
    pod.serves()
    assert "WARNING" not in pod.said() or article == "own", pod.said()

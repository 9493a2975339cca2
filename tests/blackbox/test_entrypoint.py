"""`pgweir entrypoint`: the pooler starts by its environment alone, or by a mounted file; secrets stay out of logs."""

import os
import re
import shutil
import signal
import stat
import subprocess

import pytest
from harness.cluster import PASSWORDS
from harness.machine import REPOSITORY, as_service, eventually, free_port, give, reachable, scratch_folder
from harness.pages import blocks
from harness.pooler import binary

pytestmark = pytest.mark.needs("pgweir import")


class Container:
    """What an image's start does: a folder that the user may write, an environment, no configuration file."""

    def __init__(self):
        self.folder = scratch_folder("box")
        self.written = self.folder / "run"
        self.written.mkdir()
        give(self.written)
        self.log = self.folder / "log.txt"
        self.port = free_port()
        self.process = None

    def start(self, *arguments, **variables):
        """Starts the pooler with these variables and nothing else."""
        mounted = arguments or (str(self.folder / "pgweir.ini"),)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                as_service(str(reachable(binary(), self.folder)), "entrypoint", f"--output={self.written}", *mounted, signal_name="KILL"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                env={"PATH": os.environ["PATH"], "LISTEN_ADDR": "127.0.0.1", "LISTEN_PORT": str(self.port), **variables},
            )  # fmt: skip

    def said(self):
        """The log up to now."""
        return self.log.read_text()

    def psql(self, database, user, text, password=None):
        """What psql answers, or its error."""
        command = ["psql", "-X", "-At", "-h", "127.0.0.1", "-p", str(self.port), "-U", user, "-d", database, "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PGPASSWORD": password or PASSWORDS[user]})
        return done.stdout.strip() or done.stderr

    def serves(self):
        """Waits until the pooler serves clients."""

        def up():
            assert self.process.poll() is None, self.said()
            return "process up" in self.said()

        eventually(up, "the pooler is up")


@pytest.fixture
def container():
    """A container of its own for the test; its process ends with it."""
    box = Container()
    yield box
    if box.process and box.process.poll() is None:
        box.process.send_signal(signal.SIGKILL)
        box.process.wait()
    shutil.rmtree(box.folder)


def test_the_environment_alone_serves(container, pg):
    """DATABASE_URL and settings by name: psql works, files are mode 0600, the log has no password; a restart replaces the files."""
    secret = PASSWORDS["alice"]
    url = f"postgres://alice:{secret}@127.0.0.1:{pg.port}/app"
    for _ in range(2):
        container.log.write_text("")
        container.start(DATABASE_URL=url, PGWEIR_POOL_MODE="transaction", AUTH_TYPE="scram-sha-256", PGWEIR_VERBOSE="1", USER="root")
        container.serves()
        assert container.psql("app", "alice", "select current_user, current_database()") == "alice|app"
        for name in ("pgweir.ini", "userlist.txt"):
            assert stat.S_IMODE((container.written / name).stat().st_mode) == 0o600, name
        assert (container.written / f".s.PGSQL.{container.port}").exists(), "the unix socket is in the written directory"
        assert secret in (container.written / "userlist.txt").read_text()
        assert secret not in (container.written / "pgweir.ini").read_text()
        assert f"{container.written}/pgweir.ini was written from the environment" in container.said()
        container.process.send_signal(signal.SIGKILL)
        container.process.wait()
        assert secret not in container.said()


def test_the_first_commands_of_the_page(container, pg):
    """docs/start/docker.md: the variables of its first `docker run` start a pooler that its psql command reaches."""
    build, run, psql = blocks(REPOSITORY / "docs" / "start" / "docker.md")[0].splitlines()
    dockerfile, context = re.findall(r"-f (\S+) -t pgweir (\S+)$", build)[0]
    assert (REPOSITORY / context / dockerfile).exists() and run.endswith(" pgweir") and "-p 6432:6432" in run
    here = {"app:secret": f"alice:{PASSWORDS['alice']}", "db.example/shop": f"127.0.0.1:{pg.port}/app", "6432/shop": f"{container.port}/app"}
    variables = dict(re.findall(r"-e (\w+)=(\S+)", moved(run, here)))
    assert set(variables) == {"DATABASE_URL", "POOL_MODE"}
    container.start(**variables)
    container.serves()
    done = subprocess.run([*moved(psql, here).split(), "-XAtc", "select current_database()"], capture_output=True, text=True)
    assert done.stdout == "app\n", done.stderr


def moved(text, here):
    """The text with the page's names replaced by those of the test."""
    for name, its in here.items():
        text = text.replace(name, its)
    return text


def test_secrets_from_files(container, pg):
    """DB_* with DB_PASSWORD_FILE; clients of any other database of the server come in as well."""
    file = container.folder / "secret"
    file.write_text(PASSWORDS["alice"] + "\n")
    give(file)
    container.start(DB_HOST="127.0.0.1", DB_PORT=str(pg.port), DB_USER="alice", DB_PASSWORD_FILE=str(file))
    container.serves()
    assert container.psql("app", "alice", "select current_database()") == "app"
    assert container.psql("postgres", "alice", "select current_database()") == "postgres"
    assert PASSWORDS["alice"] not in container.said()


def test_the_environment_of_an_operator_that_writes_no_file(container, pg):
    """Zalando's operator: CONNECTION_POOLER_* and PG*; users are looked up by the function that the operator has made."""
    with pg.connect("app") as server:
        server.execute("create schema if not exists lookups")
        server.execute(
            "create or replace function lookups.user_lookup(in i_username text, out uname text, out phash text) returns record language sql "
            "security definer set search_path = pg_catalog as $$ select usename::text, passwd from pg_shadow where usename = i_username $$"
        )
        server.execute("grant usage on schema lookups to alice")
    try:
        container.start(
            CONNECTION_POOLER_PORT=str(container.port), CONNECTION_POOLER_MODE="transaction", CONNECTION_POOLER_DEFAULT_SIZE="5",
            CONNECTION_POOLER_MAX_CLIENT_CONN="50", PGHOST="127.0.0.1", PGPORT=str(pg.port), PGUSER="alice", PGPASSWORD=PASSWORDS["alice"],
            PGSCHEMA="lookups", PGWEIR_SERVER_TLS_SSLMODE="prefer",
        )  # fmt: skip
        container.serves()
        assert container.psql("app", "bob", "select current_user, current_database()") == "bob|app"
        assert "failed" in container.psql("app", "bob", "select 1", password="wrong")
        assert "a self-signed one was made" in container.said() and PASSWORDS["alice"] not in container.said()
    finally:
        with pg.connect("app") as server:
            server.execute("drop schema lookups cascade")


def test_edoburus_image_with_auth_query_and_a_console(container, pg):
    """AUTH_QUERY asks as DB_USER, which stands on the database's line; ADMIN_PASSWORDS opens the console."""
    container.start(
        DB_HOST="127.0.0.1", DB_PORT=str(pg.port), DB_USER="postgres", DB_PASSWORD="", DB_NAME="app", AUTH_TYPE="scram-sha-256",
        AUTH_QUERY="SELECT usename, passwd FROM pg_shadow WHERE usename = $1", ADMIN_USERS="ops", ADMIN_PASSWORDS="hunter3", POOL_SIZE="3", TIMEZONE="UTC",
        PGWEIR_INI="[databases]\napp += max_db_connections=9\n",
    )  # fmt: skip
    container.serves()
    assert "auth_user=postgres" in (container.written / "pgweir.ini").read_text()
    assert container.psql("app", "bob", "select current_user") == "bob"
    databases = container.psql("pgbouncer", "ops", "SHOW DATABASES", password="hunter3")
    assert "|3|" in databases and "|9|" in databases, databases
    assert "hunter3" not in container.said()


def test_variables_beside_a_mounted_file(container, pg):
    """PGWEIR_NAME completes the file; variables of images have no effect, and the log says so; misspelled ones are told with what is meant."""
    ini = container.folder / "mounted.ini"
    ini.write_text(
        f"[databases]\napp = host=127.0.0.1 port={pg.port}\n[pgbouncer]\nauth_type = any\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {container.port}\nunix_socket_dir =\nmin_pool_size = 30\n"
    )
    give(ini)
    container.start(str(ini), DATABASE_URL="this is not looked at", POOL_MODE="session", PGWEIR_STATS_PERIOD="5", DEFAULT_POOLSIZE="4")
    container.serves()
    said = container.said()
    assert f"{ini} is used, so these variables have no effect: DATABASE_URL\n" in said
    assert "POOL_MODE has no effect, as there is a configuration file; PGWEIR_POOL_MODE changes what the file says" in said
    assert "configuration: PGWEIR_STATS_PERIOD sets stats_period" in said
    assert 'unknown variable DEFAULT_POOLSIZE; did you mean "PGWEIR_DEFAULT_POOL_SIZE"?' in said
    assert "min_pool_size" in said, "what pgweir check warns of"


def test_a_mounted_file_wins(container, pg):
    """A configuration file that exists is used as it is, and nothing is written."""
    ini = container.folder / "mounted.ini"
    ini.write_text(
        f"[databases]\nmounted = host=127.0.0.1 port={pg.port} dbname=app\n[pgbouncer]\nauth_type = any\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {container.port}\nunix_socket_dir =\n"
    )
    give(ini)
    container.start(str(ini), DATABASE_URL="this is not looked at")
    container.serves()
    assert list(container.written.iterdir()) == []
    assert "no such database: app" in container.psql("app", "alice", "select 1")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "it has neither DATABASE_URL nor DB_HOST"),
        ({"DATABASE_URL": "mysql://a:hunter2@b/c"}, "DATABASE_URL: it must be postgres://"),
        ({"DATABASE_URL": "postgres://a:hunter2@b/c", "PGWEIR_POOL_MOD": "hunter2"}, 'unknown variable PGWEIR_POOL_MOD; did you mean "pool_mode"?'),
        ({"DATABASE_URL": "postgres://a:hunter2@b/c", "POOL_MODE": "fast"}, "pool_mode"),
    ],
)
def test_faults_end_the_start(container, variables, said):
    """Exit code 1, a line that names the variable, no secret, and no file."""
    container.start(**variables)
    assert container.process.wait(timeout=20) == 1
    assert said in container.said()
    assert "hunter2" not in container.said()
    assert list(container.written.iterdir()) == []

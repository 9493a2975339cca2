"""`pgweir import`: other poolers' configurations become files that start, in front of a real PostgreSQL; what is said of them, and exit codes."""

import os
import stat
import subprocess

import pytest

from harness.cluster import PASSWORDS
from harness.machine import as_service, eventually, free_port, give, reachable
from harness.pooler import Pooler, binary
from harness.wire import Raw

pytestmark = pytest.mark.needs("pgweir import")

PGPOOL = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
backend_hostname0 = '127.0.0.1'
backend_port0 = {server}
num_init_children = 4
enable_pool_hba = on
pool_passwd = 'pool_passwd'
"""

ODYSSEY = """
unix_socket_dir "{folder}"
listen {{
    host "127.0.0.1"
    port {port}
}}
storage "main" {{
    type "remote"
    host "127.0.0.1"
    port {server}
}}
database "shop" {{
    user "alice" {{
        authentication "scram-sha-256"
        password "{password}"
        storage "main"
        storage_db "app"
        pool "transaction"
        pool_size 2
    }}
    user "bob" {{
        authentication "block"
    }}
}}
"""

PGCAT = """
[general]
host = "127.0.0.1"
port = {port}

[pools.shop]
pool_mode = "transaction"
[pools.shop.users.0]
username = "alice"
password = "{password}"
pool_size = 2
[pools.shop.shards.0]
servers = [["127.0.0.1", {server}, "primary"]]
database = "app"
"""

REPLICAS = PGCAT.replace('"primary"]]', '"primary"], ["127.0.0.1", 1, "replica"]]').replace('"transaction"', '"transaction"\nquery_parser_enabled = true')

PGDOG = """
[general]
host = "127.0.0.1"
port = {port}
[[databases]]
name = "shop"
host = "127.0.0.1"
port = {server}
database_name = "app"
"""

PGDOG_USERS = """
[[users]]
name = "alice"
database = "shop"
password = "{password}"
"""

DOORMAN = """
general:
  host: "127.0.0.1"
  port: {port}
  unix_socket_dir: "{folder}"
pools:
  shop:
    server_host: "127.0.0.1"
    server_port: {server}
    server_database: "app"
    pool_mode: "transaction"
    users:
      - username: "alice"
        password: "{password}"
        pool_size: 2
"""

ENVIRONMENT = """
DATABASE_URL=postgres://alice:{password}@127.0.0.1:{server}/app
LISTEN_PORT={port}
POOL_MODE=transaction
"""

KINDS = {
    "pgpool": ({"pgpool.conf": PGPOOL, "pool_hba.conf": "host all all 127.0.0.1/32 md5\n", "pool_passwd": "alice:TEXT{password}\n"}, "app"),
    "odyssey": ({"odyssey.conf": ODYSSEY}, "shop"),
    "pgcat": ({"pgcat.toml": PGCAT}, "shop"),
    "replicas": ({"pgcat.toml": REPLICAS}, "shop"),
    "pgdog": ({"pgdog.toml": PGDOG, "users.toml": PGDOG_USERS}, "shop"),
    "pg_doorman": ({"pg_doorman.yaml": DOORMAN}, "shop"),
    "environment": ({"pooler.env": ENVIRONMENT}, "app"),
}


def run(*arguments):
    """Runs `pgweir import`; returns the finished process."""
    return subprocess.run([binary(), "import", *map(str, arguments)], capture_output=True, text=True, timeout=60)


class Imported(Pooler):
    """A pooler that runs with files that were imported."""

    def __init__(self, folder, port):
        super().__init__({}, start=False)
        self.ini = folder / "pgweir.ini"
        self.port = port
        for path in folder.iterdir():
            give(path)
        give(folder)

    def start(self):
        """Starts it, with its log on standard error, and waits until it listens."""
        stderr = open(self.stderr_path, "ab")
        command = [str(reachable(binary(), self.folder)), str(self.ini)]
        self.process = subprocess.Popen(
            as_service(*command, signal_name="KILL"), stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, cwd=self.folder,
            env=os.environ | {"RUST_BACKTRACE": "1"},
        )  # fmt: skip

        def listens():
            assert self.process.poll() is None, self.output()
            try:
                Raw(self.address).socket.close()
            except OSError:
                return False
            return True

        eventually(listens, "the pooler listens", timeout_s=15)


@pytest.fixture
def files(pg, pooled):
    """A function that writes the files of a kind; returns the main one and the port that it names."""

    def write(kind):
        folder = pooled(start=False).folder / "theirs"
        folder.mkdir()
        port = free_port()
        texts, _ = KINDS[kind]
        for name, text in texts.items():
            (folder / name).write_text(text.format(port=port, server=pg.port, folder=folder.parent, password=PASSWORDS["alice"]))
        return folder / next(iter(texts)), port

    return write


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_configuration_serves(files, kind):
    """Each kind: imported, accepted by check, started; its user logs in with the password and runs a query, and a wrong password does not."""
    main, port = files(kind)
    output = main.parent.parent / "ours"
    done = run("--output", output, main)
    # A cluster's checks log in as a user of the file: the administrator is told so.
    assert done.returncode == (1 if kind == "replicas" else 0), done.stderr
    assert "cluster=shop" in (output / "pgweir.ini").read_text() or kind != "replicas"
    assert PASSWORDS["alice"] not in done.stdout + done.stderr
    assert stat.S_IMODE((output / "userlist.txt").stat().st_mode) == 0o600
    check = subprocess.run([binary(), "check", output / "pgweir.ini"], capture_output=True, text=True, timeout=60)
    assert check.returncode == 0, check.stdout
    pooler = Imported(output, port)
    pooler.start()
    try:
        database = KINDS[kind][1]
        with pooler.connect(database, "alice") as client:
            assert client.execute("select current_user, current_database()").fetchone() == ("alice", "app")
        with pytest.raises(Exception, match="authentication failed|no such"):
            pooler.connect(database, "alice", password="wrong")
        if kind == "odyssey":
            with pytest.raises(Exception, match="."):
                pooler.connect(database, "bob")
    finally:
        pooler.process.terminate()
        pooler.process.wait(20)


def test_what_has_no_counterpart(files):
    """It is listed with its line, the file is written, and the exit code is 1."""
    main, _ = files("pgcat")
    main.write_text(main.read_text().replace('"transaction"', '"transaction"\nsharding_key_regex = "x"\nno_such_key = "pw"'))
    done = run(main)
    assert done.returncode == 1
    assert f"{main}:9: unknown key: pools.shop.no_such_key" in done.stderr and "sharding_key_regex" in done.stderr
    assert "[databases]\nshop = host=127.0.0.1" in done.stdout


def test_files_that_exist_are_kept(files):
    """Without --force nothing is replaced, and the exit code is 2."""
    main, _ = files("pgcat")
    output = main.parent.parent / "ours"
    output.mkdir()
    (output / "pgweir.ini").write_text("mine")
    done = run("--output", output, main)
    assert done.returncode == 2 and "--force" in done.stderr
    assert [path.name for path in output.iterdir()] == ["pgweir.ini"] and (output / "pgweir.ini").read_text() == "mine"
    done = run("--output", output, "--force", main)
    assert done.returncode == 0 and "[databases]" in (output / "pgweir.ini").read_text()


def test_what_cannot_be_read(files):
    """A value that its own pooler would not take, a file of no kind, a file that is not there: exit code 2, nothing on standard output."""
    main, _ = files("pgcat")
    main.write_text(main.read_text().replace("port = ", "port = 1"))
    for arguments, words in (([main], "general.port"), (["/dev/null"], "--from"), (["/nonexistent"], "/nonexistent"), ([], "need the configuration")):
        done = run(*arguments)
        assert done.returncode == 2 and words in done.stderr and not done.stdout, done.stderr


def test_a_result_that_check_refuses(files):
    """A certificate that is not there: nothing is written, unless --force says so."""
    main, _ = files("pgcat")
    main.write_text(main.read_text().replace("[general]", '[general]\ntls_certificate = "/no/such/cert"\ntls_private_key = "/no/such/key"'))
    output = main.parent.parent / "ours"
    done = run("--output", output, main)
    assert done.returncode == 2 and "/no/such/cert" in done.stderr and not output.exists()
    done = run("--output", output, "--force", main)
    assert done.returncode == 1 and (output / "pgweir.ini").exists()

"""`pgweir adopt` finds PgBouncer as packages, images and operators start it, and prints the line to change."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.machine import ACCOUNT_NAME, REPOSITORY, SETPRIV, as_service, eventually, free_port, give, reachable, scratch_folder
from harness.pages import PGBOUNCER, blocks
from harness.pooler import binary, kind

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="the command is pgweir's")

IMAGE = "registry.example/pgweir:7"
INI = "[databases]\nshop = host=db password=hunter2\n[pgbouncer]\nlisten_port = 6543\n"
UNIT = "[Service]\nType=notify\nUser=postgres\nExecStart=/usr/sbin/pgbouncer -q /etc/pgbouncer/pgbouncer.ini\n"


@pytest.fixture
def root():
    """A function that makes a file system with these files, and runs `pgweir adopt` on it."""
    folder = scratch_folder("adopt")

    def adopt(files, code=0):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [binary(), "adopt", f"--root={folder}", f"--image={IMAGE}"]
        # Variables of a caller that looks from outside say nothing about what is there.
        done = subprocess.run(command, capture_output=True, text=True, env={"CONNECTION_POOLER_PORT": "5433"})
        assert done.returncode == code, done.stdout + done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    adopt.folder = folder
    yield adopt
    shutil.rmtree(folder)


def rows(page):
    """What was found, by name; and the line to change."""
    found, _, change = page.partition("\n\n")
    pairs = (line.split(maxsplit=1) for line in found.splitlines())
    [line] = [line.strip() for line in change.splitlines() if line.startswith("    ")]
    return dict(pairs), line


def process(*words, pid=41, uid=70, **variables):
    """The files of /proc for a process pgbouncer with these variables."""
    return {
        f"proc/{pid}/environ": "".join(f"{name}={value}\0" for name, value in variables.items()),
        f"proc/{pid}/comm": "pgbouncer\n",
        f"proc/{pid}/cmdline": "".join(f"{word}\0" for word in words),
        f"proc/{pid}/status": f"Name:\tpgbouncer\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n",
        "etc/passwd": f"root:x:0:0::/root:/bin/sh\npool:x:{uid}:{uid}::/:/bin/sh\n",
    }


POD = {"var/run/secrets/kubernetes.io/serviceaccount/token": ""}
WRITTEN = "/etc/pgbouncer/pgbouncer.ini"

STARTS = {
    "cloudnativepg": (
        POD | {"controller/configs/pgbouncer.ini": INI} | process("/usr/bin/pgbouncer", "/controller/configs/pgbouncer.ini"),
        {"operator": "CloudNativePG", "config": "/controller/configs/pgbouncer.ini", "user": "pool (70)", "port": "6543"},
        f"image: {IMAGE}",
    ),
    "crunchy": (
        POD | {"etc/pgbouncer/~postgres-operator.ini": INI},
        {"operator": "Crunchy Postgres for Kubernetes", "port": "6543", "process": "none that this user can see"},
        f"image: {IMAGE}",
    ),
    "zalando": (
        POD | process("/bin/pgbouncer", WRITTEN, CONNECTION_POOLER_PORT="5433", PGPASSWORD="hunter2"),
        {"operator": "Zalando's", "port": "5433", "user": "pool (70)"},
        f"connection_pooler_image: {IMAGE}",
    ),
    "bitnami": (
        {"bitnami/pgbouncer/conf/pgbouncer.ini": INI, "run/.containerenv": ""},
        {"start": "Bitnami's image", "config": "/bitnami/pgbouncer/conf/pgbouncer.ini", "operator": "none", "port": "6543"},
        f"image: {IMAGE}",
    ),
    "edoburu": (
        {".dockerenv": ""} | process("/usr/bin/pgbouncer", WRITTEN, pid=1, DB_HOST="db", DB_PASSWORD="hunter2"),
        {"process": f"1: /usr/bin/pgbouncer {WRITTEN}", "start": "edoburu's image, or one with its variables", "port": "5432", "operator": "none"},
        f"image: {IMAGE}",
    ),
    "an image": (
        {".dockerenv": "", "etc/pgbouncer/pgbouncer.ini": INI},
        {"start": "an image", "port": "6543", "user": "not known"},
        f"image: {IMAGE}",
    ),
    "a package": (
        {"lib/systemd/system/pgbouncer.service": UNIT, "etc/pgbouncer/pgbouncer.ini": INI},
        {"start": "a service of systemd, pgbouncer.service", "config": WRITTEN, "user": "postgres", "port": "6543"},
        f"ExecStart=/usr/bin/pgweir -q {WRITTEN}",
    ),
    "Red Hat's package": (
        {"usr/lib/systemd/system/pgbouncer.service": UNIT.replace(WRITTEN, "${BOUNCERCONF}"), "etc/pgbouncer/pgbouncer.ini": INI},
        {"config": WRITTEN, "port": "6543"},
        "ExecStart=/usr/bin/pgweir -q ${BOUNCERCONF}",
    ),
    "by hand": (
        {"srv/pool.ini": INI} | process("/opt/pgbouncer", "-d", "/srv/pool.ini", pid=7),
        {"process": "7: /opt/pgbouncer -d /srv/pool.ini", "config": "/srv/pool.ini", "user": "pool (70)", "operator": "none"},
        "/usr/bin/pgweir -d /srv/pool.ini",
    ),
}
"""A start: its files, what is found, and the line."""


@pytest.mark.parametrize("start", STARTS)
def test_each_start_is_recognised(root, start):
    """The kind of start, the file, the user, the port, the operator, and the line that changes."""
    files, expected, line = STARTS[start]
    page = root(files)
    found, change = rows(page)
    assert expected.items() <= found.items(), page
    assert change == line
    assert ("add the variable LISTEN_PORT=5432" in page) == (start == "edoburu")


def test_what_the_page_shows_is_printed(root):
    """docs/start/images.md shows a run on an image like edoburu's: the same words in the same lines."""
    [shown] = [text for text in blocks(REPOSITORY / "docs" / "start" / "images.md", "text") if "pgweir adopt" in text]
    files = {".dockerenv": ""} | process("/usr/bin/pgbouncer", WRITTEN, pid=1, DB_HOST="db")
    files["etc/passwd"] = "postgres:x:70:70::/:/bin/sh\n"
    printed = root(files).replace(IMAGE, "registry.example/pgweir:0.1.0").replace(str(root.folder), "")
    assert printed.rstrip() == shown.partition("\n")[2].rstrip()


def test_nothing_is_found(root):
    """Without any trace the exit code says so; pgweir that runs under PgBouncer's name is no trace."""
    assert "no PgBouncer was found" in root({}, code=1)
    assert rows(root(process("/usr/bin/pgbouncer", "/x.ini", pid=9)))[0]["process"] == "9: /usr/bin/pgbouncer /x.ini"
    (root.folder / "proc/9/exe").symlink_to("/usr/bin/pgweir")
    assert "no PgBouncer was found" in root({}, code=1)


def test_wrong_arguments():
    """A file as an argument is refused with another exit code."""
    done = subprocess.run([binary(), "adopt", "/etc/pgbouncer/pgbouncer.ini"], capture_output=True, text=True)
    assert done.returncode == 2 and "See pgweir -h for usage" in done.stderr


@pytest.mark.skipif(PGBOUNCER is None or SETPRIV is None, reason="needs Debian's pgbouncer and setpriv")
def test_a_running_pgbouncer():
    """A real one, with the test's own view of the processes; its printed line starts pgweir with the same file."""
    folder = scratch_folder("adopt")
    port = free_port()
    ini = folder / "pool.ini"
    ini.write_text(f"[databases]\nshop = host=127.0.0.1 user=shop\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n")
    give(folder)
    process = subprocess.Popen(as_service(PGBOUNCER, "-q", str(ini), signal_name="KILL"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # A root whose /proc has this process and no other one.
        (folder / "proc").mkdir()
        (folder / "proc" / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        for name in ("etc/passwd", str(ini).lstrip("/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"/{name}", folder / name)
        words = [PGBOUNCER, "-q", str(ini)]
        eventually(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(PGBOUNCER.encode()), "it runs")
        done = subprocess.run([binary(), "adopt", f"--root={folder}"], capture_output=True, text=True, env={})
        assert done.returncode == 0, done.stderr
        found, line = rows(done.stdout)
        assert found["process"] == f"{process.pid}: {' '.join(words)}" and found["port"] == str(port)
        assert found["user"].startswith(f"{ACCOUNT_NAME} ("), found
        process.kill()
        process.wait()
        command = line.replace("/usr/bin/pgweir", str(reachable(binary(), folder))).split()
        process = subprocess.Popen(as_service(*command, signal_name="KILL"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        asked = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "pgbouncer", "-d", "pgbouncer", "-Atc", "show version"]
        eventually(lambda: subprocess.run(asked, capture_output=True, text=True).stdout.startswith("PgBouncer 1.25"), "pgweir serves the port")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)

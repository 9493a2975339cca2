"""The Debian package in a minimal Debian: installed, started as its unit says, upgraded under load, removed, purged."""

import configparser
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess

import psycopg
import pytest
from harness.cluster import PASSWORDS
from harness.machine import CACHE, REPOSITORY, dies_with_us, eventually, free_port, scratch_folder
from harness.pooler import binary, kind

# A minimal Debian is copied and packages are installed into it, which takes minutes on a busy machine.
pytestmark = [pytest.mark.skipif(kind() == "pgbouncer", reason="the packages are pgweir's"), pytest.mark.timeout(600)]

MINIMAL = CACHE / "packaging" / "root"
UNIT = REPOSITORY / "deploy" / "systemd" / "pgweir.service"
BUILD = REPOSITORY / "deploy" / "packages" / "build.py"


def run(*command, **options):
    """Runs a command; its output is part of the failure."""
    done = subprocess.run([*map(str, command)], text=True, capture_output=True, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def service():
    """The unit's [Service] section: each key with its values."""

    class Values(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, self.get(key, []) + value if isinstance(value, list) else value)

    parser = configparser.RawConfigParser(strict=False, dict_type=Values)
    parser.optionxform = str
    parser.read(UNIT)
    return {key: value.splitlines() for key, value in parser["Service"].items()}


class Machine:
    """A minimal Debian in a folder, and what systemd would do there."""

    def __init__(self, folder):
        self.root = folder / "root"
        run("cp", "-a", MINIMAL, self.root)

    def path(self, name):
        """The path of a file, seen from outside."""
        return self.root / name.lstrip("/")

    def command(self, *command, user="root", writable=None):
        """The command line that runs a command inside: with /proc, which goes when the command ends. `writable`: the only folders that can be
        written, as in a container whose root file system is read-only."""
        mounted = 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$@"'
        if writable is not None:
            kept = "".join(f'mount --bind "$0{name}" "$0{name}" && ' for name in writable)
            mounted = f'mount --bind "$0" "$0" && {kept}mount -o remount,bind,ro "$0" && {mounted}'
        return ["unshare", "--mount", "sh", "-c", mounted, str(self.root), f"--userspec={user}", str(self.root), *map(str, command)]

    def run(self, *command, user="root"):
        """Runs a command inside."""
        return run(*self.command(*command, user=user), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"})

    def files(self):
        """All files and folders, without what dpkg and the list of users keep for themselves."""
        own = re.compile(r"/(var/lib/dpkg|var/log|var/cache|var/lib/systemd|proc|dev|run|tmp)/|/etc/(passwd|group|g?shadow|sub[ug]id|.pwd.lock)-?$")
        found = (f"/{path.relative_to(self.root)}" for path in self.root.rglob("*"))
        return {name for name in found if not own.search(name)}

    def owner(self, name):
        """Owner, group and mode, as ls says them."""
        return self.run("stat", "-c", "%U:%G %a", name).strip()

    def reload(self, pid):
        """What `systemctl reload` runs."""
        (line,) = service()["ExecReload"]
        words = shlex.split(line.replace("$MAINPID", str(pid)).replace("$$", "$"))
        self.run(*words, user="pgweir:pgweir")

    def main_pid(self):
        """The process id in the pid file, which systemd reads; None if there is none."""
        (name,) = service()["PIDFile"]
        text = self.path(name).read_text().strip() if self.path(name).exists() else ""
        return int(text) if text else None

    def program_of(self, pid):
        """The program that a process runs; None if it does not run."""
        try:
            return os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return None


@pytest.fixture
def debian():
    """A machine of its own for the test."""
    if os.geteuid() != 0 or not MINIMAL.with_suffix(".ready").exists():
        pytest.skip("needs root and a minimal Debian (tests/packaging/install.sh)")
    folder = scratch_folder("deb")
    machine = Machine(folder)
    yield machine
    pid = machine.main_pid()
    if pid and machine.program_of(pid):
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: machine.program_of(pid) is None, "the service ends")
    shutil.rmtree(folder)


def build(folder, release):
    """The package of this version, with the program under test in it."""
    program = folder / "pgweir"
    if not program.exists():
        run("strip", "-o", program, binary())
    environment = os.environ | {"CARGO_TARGET_DIR": str(folder / "target")}
    run(BUILD, "--only", "deb", "--program", program, "--release-version", release, "--output", folder, env=environment)
    (package,) = folder.glob(f"pgweir_{release}_*.deb")
    return package


def install(machine, package):
    """dpkg --install, as an administrator without a terminal."""
    shutil.copy(package, machine.path("/tmp"))
    machine.run("dpkg", "--install", f"/tmp/{package.name}")


def configure(machine, pg, port):
    """What an administrator does first: a database, a user, and here a free port."""
    ini = machine.path("/etc/pgweir/pgweir.ini")
    text = ini.read_text()
    for old, new in [("[databases]\n", f"[databases]\nbench = {pg.at('bench')}\n"), (";listen_port = 6432\n", f"listen_port = {port}\n")]:
        assert old in text
        text = text.replace(old, new, 1)
    ini.write_text(text)
    with machine.path("/etc/pgweir/userlist.txt").open("a") as users:
        users.write(f'"alice" "{PASSWORDS["alice"]}"\n')
    assert "no errors and no warnings" in machine.run("pgweir", "check", "/etc/pgweir/pgweir.ini", user="pgweir:pgweir")


def start(machine):
    """What systemd does at a start: the directories, then the command as the user. Returns when the service has its pid file."""
    unit = service()
    user = unit["User"][0]
    for base, key in (("/run", "RuntimeDirectory"), ("/var/log", "LogsDirectory")):
        machine.run("install", "-d", "-o", user, "-g", unit["Group"][0], f"{base}/{unit[key][0]}")
    words = shlex.split(unit["ExecStart"][0])
    # systemd may raise the hard limit; a container may not.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = ["prlimit", f"--nofile={min(int(unit['LimitNOFILE'][0]), hard)}"]
    process = subprocess.Popen(
        [*dies_with_us("KILL"), *limit, *machine.command(*words, user=f"{user}:{unit['Group'][0]}")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

    def started():
        assert process.poll() is None, process.stdout.read()
        return machine.main_pid()

    return process, eventually(started, "the service has its pid file")


def pgbench(port, *arguments):
    """A short load through the service; all of it must succeed."""
    command = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(port), "-U", "alice", *arguments, "bench"]
    said = run(*command, env=os.environ | {"PGPASSWORD": PASSWORDS["alice"]})
    assert "number of failed transactions: 0 " in said, said


def test_the_life_of_a_package(debian, bench, tmp_path):
    """Install, start, load, upgrade by an online restart under a connected client, reload, stop, remove, purge."""
    port = free_port()
    before = debian.files()
    install(debian, build(tmp_path, "1.0.0"))
    assert debian.owner("/etc/pgweir") == "root:pgweir 750"
    assert debian.owner("/etc/pgweir/pgweir.ini") == debian.owner("/etc/pgweir/userlist.txt") == "root:pgweir 640"
    assert debian.run("getent", "passwd", "pgweir").endswith(":/nonexistent:/usr/sbin/nologin\n")
    assert debian.path("/etc/systemd/system/multi-user.target.wants/pgweir.service").is_symlink(), "enabled"
    assert not list(debian.path("/etc/systemd/system").glob("sockets.target.wants/*")), "socket activation is the administrator's choice"
    assert "\npgweir " in debian.run("pgweir", "--version")

    configure(debian, bench, port)
    process, pid = start(debian)
    address = {"host": "127.0.0.1", "port": port, "dbname": "bench", "user": "alice", "password": PASSWORDS["alice"]}
    with psycopg.connect(**address, autocommit=True) as client:
        pgbench(port, "-c", "4", "-t", "50")
        client.execute("set work_mem = '7MB'")

        # An upgrade: dpkg replaces the program, postinst reloads the service if systemd runs.
        install(debian, build(tmp_path, "1.0.1"))
        assert debian.program_of(pid).endswith(" (deleted)")
        debian.reload(pid)
        eventually(lambda: debian.main_pid() not in (pid, None), "another process is the main one")
        assert process.wait(timeout=20) == 0
        successor = debian.main_pid()
        assert debian.program_of(successor).endswith("/usr/bin/pgweir")
        assert client.execute("show work_mem").fetchone() == ("7MB",), "the client is still connected"
        pgbench(port, "-S", "-c", "4", "-t", "50")
        assert f"listen_port = {port}\n" in debian.path("/etc/pgweir/pgweir.ini").read_text(), "the configuration is kept"

        # Without a new program a reload reads the configuration.
        log = debian.path("/var/log/pgweir/pgweir.log")
        seen = len(log.read_text())
        debian.reload(successor)
        eventually(lambda: "SIGHUP" in log.read_text()[seen:], "the configuration is read again")
        assert debian.main_pid() == successor

    (stop,) = service()["KillSignal"]
    os.kill(successor, signal.Signals[stop])
    eventually(lambda: debian.program_of(successor) is None, "the service ends")
    assert debian.main_pid() is None

    debian.run("dpkg", "--remove", "pgweir")
    assert not debian.path("/run/pgweir").exists()
    left = debian.files() - before
    assert {"/etc/pgweir/pgweir.ini", "/etc/pgweir/userlist.txt", "/etc/logrotate.d/pgweir"} <= left
    assert not any(name.startswith("/usr") for name in left), left
    assert debian.path("/var/log/pgweir/pgweir.log").exists()
    debian.run("dpkg", "--purge", "pgweir")
    assert debian.files() == before
    assert not debian.path("/var/log/pgweir").exists()
    assert debian.run("getent", "passwd", "pgweir"), "the user stays: its files can be anywhere"


def test_the_exposure_of_the_unit():
    """systemd's own estimate of what the service could reach is at most 3.0."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    said = run("systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", UNIT)
    (exposure,) = re.findall(r"Overall exposure level for pgweir.service: ([0-9.]+)", said)
    assert 0 < float(exposure) <= 3.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pgweir", ""], {"check", "doctor", "demo", "bench", "pgweir.ini"}),
        (["pgweir", "--da"], {"--daemon"}),
        (["pgweir", "check", "--con"], {"--connect"}),
        (["pgweir", "doctor", "--"], {"--json", "--user"}),
        (["pgweir", "-d", "pg"], {"pgweir.ini"}),
        (["pgweir", "-u", "roo"], {"root"}),
    ],
)
def test_bash_completes(tmp_path, words, expected):
    """Subcommands first, options, users, and files of configuration."""
    for name in ("pgweir.ini", "notes.txt"):
        (tmp_path / name).touch()
    file = REPOSITORY / "deploy/packages/completions/pgweir.bash"
    script = f'source "{file}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pgweir; printf "%s\\n" "${{COMPREPLY[@]}}"'
    assert set(run("bash", "-c", script, "bash", *words, cwd=tmp_path).split()) >= expected
    assert "notes.txt" not in run("bash", "-c", script, "bash", *words, cwd=tmp_path)


def version_of(described):
    """What build.py makes of the output of `git describe`."""
    program = "import sys, build; version = build.version_of(sys.argv[1], '9.9.9'); print(version, build.package_version(version))"
    return run("python3", "-B", "-c", program, described, cwd=BUILD.parent).split()


@pytest.mark.parametrize(
    ("described", "version", "in_packages"),
    [
        ("", "9.9.9", "9.9.9"),
        ("no-version", "9.9.9", "9.9.9"),
        ("v0.2.0", "0.2.0", "0.2.0"),
        ("v0.2.0-dirty", "0.2.0+dirty", "0.2.0+dirty"),
        ("v0.2.0-5-g1a2b3c4", "0.2.0+5.g1a2b3c4", "0.2.0+5.g1a2b3c4"),
        ("v0.3.0-rc.1", "0.3.0-rc.1", "0.3.0~rc.1"),
        ("v0.3.0-rc.1-12-g1a2b3c4-dirty", "0.3.0-rc.1+12.g1a2b3c4.dirty", "0.3.0~rc.1+12.g1a2b3c4.dirty"),
    ],
)
def test_versions(described, version, in_packages):
    """The version that git tells, and how dpkg and rpm sort it."""
    assert version_of(described) == [version, in_packages]


def test_the_version_comes_from_git(tmp_path):
    """A tag of this checkout is the version; in an archive, also inside another project's checkout, it is Cargo's."""
    outer = tmp_path / "outer"
    inner = outer / "pgweir"
    inner.mkdir(parents=True)
    for name in ("Cargo.toml", "Cargo.lock", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / name, inner)
    for name in ("crates", "xtask", "deploy/packages"):
        shutil.copytree(REPOSITORY / name, inner / name, ignore=shutil.ignore_patterns("target", "dist", "__pycache__"))
    of_cargo = re.search(r'\[workspace.package\]\nversion = "(.*)"', (inner / "Cargo.toml").read_text())[1]
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "init.defaultBranch=main", "-C"]

    def said():
        return run(inner / "deploy/packages/build.py", "--print-version").strip()

    def tagged(folder, tag):
        run(*git, folder, "init", "-q")
        run(*git, folder, "add", "CHANGELOG.md" if folder == inner else "pgweir/CHANGELOG.md")
        run(*git, folder, "commit", "-q", "-m", "first")
        run(*git, folder, "tag", tag)

    assert said() == of_cargo
    tagged(outer, "v7.0.0")
    assert said() == of_cargo
    tagged(inner, "v8.0.0")
    assert said() == "8.0.0"
    (inner / "CHANGELOG.md").write_text("changed")
    assert said() == "8.0.0+dirty"


def test_the_lowest_rust_version_is_stated_once():
    """Pages say the one of Cargo.toml, both workspaces have it, and the test workflow reads it from there."""
    stated = re.search(r'^rust-version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)[1]
    for name in ("README.md", "docs/start/install.md"):
        assert set(re.findall(r"Rust (\d+\.\d+)", (REPOSITORY / name).read_text())) == {stated}, name
    assert f'rust-version = "{stated}"' in (REPOSITORY / "fuzz" / "Cargo.toml").read_text()
    assert "rust-version = " in (REPOSITORY / ".github/workflows/test.yml").read_text()

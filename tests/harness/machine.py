"""The machine the tests run on: whose account programs run under, ports that are free, and waiting without guessing."""

import functools
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
REPOSITORY = TESTS.parent
CACHE = REPOSITORY / ".cache"

FIRST_PORT, LAST_PORT = 12_000, 30_000
"""Below the range that the kernel gives to outgoing connections (from 32768), so no client can sit on our port."""


def service_account():
    """The account that servers and poolers run under: both refuse root. None: the one we run under already."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("running as root, and there is neither a 'postgres' nor a 'nobody' account to run servers under")


ACCOUNT = service_account()
ACCOUNT_NAME = ACCOUNT.pw_name if ACCOUNT else pwd.getpwuid(os.geteuid()).pw_name


SETPRIV = shutil.which("setpriv")


def dies_with_us(signal_name):
    """Words before a command line: the program gets this signal when this test process ends, however it ends."""
    return [SETPRIV, "--pdeathsig", signal_name, "--"] if SETPRIV else []


def as_service(*command, signal_name=None):
    """The command line that runs a program under the service account, and (with a signal) as `dies_with_us` says.

    Not subprocess's `user`: for it Python copies this whole process, which costs more than what most programs do here.
    """
    if ACCOUNT is None:
        return [*(dies_with_us(signal_name) if signal_name else []), *command]
    if SETPRIV is None:
        raise RuntimeError("running as root, and there is no setpriv (Debian: util-linux) to run servers under another account")
    account = ["--reuid", str(ACCOUNT.pw_uid), "--regid", str(ACCOUNT.pw_gid), "--clear-groups"]
    return [SETPRIV, *account, *(["--pdeathsig", signal_name] if signal_name else []), "--", *command]


def give(path):
    """Hands a file or a whole folder to the service account."""
    if ACCOUNT is None:
        return
    os.chown(path, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
    if os.path.isdir(path):
        for folder, folders, files in os.walk(path):
            for name in folders + files:
                os.chown(os.path.join(folder, name), ACCOUNT.pw_uid, ACCOUNT.pw_gid, follow_symlinks=False)


def run_as_service(*command, **options):
    """Runs a program to its end under the service account; its output is part of the error when it fails."""
    done = subprocess.run(as_service(*map(str, command)), text=True, capture_output=True, cwd="/", **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@functools.cache
def _is_reachable(path):
    return subprocess.run(as_service("test", "-r", str(path), "-a", "-x", str(path)), cwd="/").returncode == 0


def reachable(path, scratch):
    """A path the service account can use: the given one, or a copy in `scratch` when a parent folder is private."""
    path = Path(path).resolve()
    if ACCOUNT is None:
        return path
    if _is_reachable(path):
        return path
    copy = Path(scratch) / "copied" / path.name
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        copy.parent.chmod(0o755)
        (shutil.copytree(path, copy, symlinks=True) if path.is_dir() else shutil.copy2(path, copy))
    return copy


def scratch_folder(purpose):
    """A new folder with a short name (unix socket paths are limited to 107 bytes), owned by the service account."""
    folder = Path(tempfile.mkdtemp(prefix=f"pgw-{purpose}-", dir="/tmp"))
    folder.chmod(0o755)
    give(folder)
    return folder


_kept = []
# Each test process begins elsewhere: what another one has claimed is not tried first.
_ports = itertools.islice(itertools.cycle(range(FIRST_PORT, LAST_PORT)), os.getpid() * 37 % (LAST_PORT - FIRST_PORT), None)


def free_port():
    """A TCP port that is free now and that no other run of these tests will be given while this process lives.

    The claim is a bound abstract unix socket: the kernel drops it when this process ends, however it ends.
    """
    for port in itertools.islice(_ports, LAST_PORT - FIRST_PORT):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0pgweir-test-port-{port}")
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _kept.append(claim)
        return port
    raise RuntimeError(f"no free TCP port between {FIRST_PORT} and {LAST_PORT}")


def eventually(check, what, timeout_s=60.0, every_s=0.02):
    """Waits until `check()` gives something true and returns that; fails with `what` after the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = check()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s:g} s still not: {what} (last seen: {seen!r})")
        time.sleep(every_s)


def processes_of(postmaster):
    """A server's processes: the one that listens, and its children."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == postmaster:
            children.append(int(stat.parent.name))
    return [postmaster, *children]


def accepts(port):
    """Whether something listens on this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0

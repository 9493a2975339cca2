"""What can go wrong while pgweir bench works: Ctrl-C in each phase, full disks, missing programs. Each time there is a clear message and
an exit code, and nothing is left: no process, no folder."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from harness.machine import eventually
from harness.pooler import binary, kind

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="a subcommand of pgweir")

needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="needs the right to mount",
)


def family(pid):
    """Descendants of a process: (pid, when it was started) to command line."""
    children, about = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            about[int(folder.name)] = (fields[19], (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            children.setdefault(int(fields[1]), []).append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    found, todo = {}, children.get(pid, [])
    while todo:
        child = todo.pop()
        found[child, about[child][0]] = about[child][1]
        todo += children.get(child, [])
    return found


def is_there(pid, started):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[19] == started and fields[0] != "Z"


def mounted(target, options):
    """Words before a command that give it a separate file system at a place."""
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs {target} && exec "$@"', "sh"]


class Bench:
    """A running pgweir bench, with everything it starts."""

    def __init__(self, folder, words, mounts, wrapper, terminal=None, is_live=False):
        """With a terminal all goes there. A live one shows on another terminal, which is read, how far it is."""
        self.folder, self.temporary, self.output = folder, folder / "tmp", folder / "out"
        for name in ["tmp", *mounts]:
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o1777)
        # File systems that no other process sees.
        for name, options in mounts.items():
            wrapper = [*wrapper, *mounted(folder / name, options)]
        if is_live:
            shown, errors = os.openpty()
        else:
            errors = subprocess.PIPE if terminal is None else terminal
        self.process = subprocess.Popen(
            [*wrapper, binary(), "bench", *words, "--no-peer", "--output", self.output],
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=errors,
            text=True,
            env=os.environ | {"TMPDIR": str(self.temporary)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.lines, self.text, self.seen = [], "", {}
        self.readers = [threading.Thread(target=self.lines.extend, args=(self.process.stderr,)), threading.Thread(target=self.read)]
        if is_live:
            os.close(errors)
            self.readers[0] = threading.Thread(target=self.read_terminal, args=(shown,))
        if terminal is not None:
            self.readers = []
        for reader in self.readers:
            reader.start()

    def read(self):
        self.text = self.process.stdout.read()

    def read_terminal(self, shown):
        with os.fdopen(shown, "rb", buffering=0) as terminal:
            # EIO: no process has it open any more.
            with contextlib.suppress(OSError):
                while piece := terminal.read(4096):
                    self.lines.append(piece.decode())

    def wait_for(self, what, condition):
        """Until a condition holds of its family's command lines."""

        def holds():
            found = family(self.process.pid)
            self.seen |= found
            assert self.process.poll() is None, f"ended before {what}: {self.lines}"
            return condition(list(found.values()))

        eventually(holds, what, timeout_s=60, every_s=0.005)

    def interrupt(self):
        self.seen |= family(self.process.pid)
        self.process.send_signal(signal.SIGINT)

    def shrink(self, name, size=None):
        """Makes one of its file systems small, or hardly larger than what it holds. It is stopped meanwhile, so that it has not ended before."""
        self.process.send_signal(signal.SIGSTOP)
        inside = ["nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt"]

        def remount():
            wanted = size
            if wanted is None:
                used = subprocess.run([*inside, "df", "--output=used", self.folder / name], capture_output=True, text=True, check=True)
                wanted = f"{int(used.stdout.split()[-1]) + 512}k"
            return subprocess.run([*inside, "mount", "-o", f"remount,size={wanted}", self.folder / name], capture_output=True).returncode == 0

        # What it holds may grow in between.
        eventually(remount, "the file system is small")
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        """Its exit code and what it said, when it has left nothing behind."""
        self.process.wait(60)
        for reader in self.readers:
            reader.join()
        left = [self.seen[one] for one in self.seen if is_there(*one)]
        assert left == [] and list(self.temporary.iterdir()) == []
        said = "".join(self.lines)
        assert "panicked" not in said
        return self.process.returncode, said

    def report(self):
        assert (self.output / "report.html").read_text().rstrip().endswith("</html>")
        return json.loads((self.output / "report.json").read_text())


@pytest.fixture
def bench():
    """Starts one; the paths of sockets in its folder must not be long."""
    folder, started = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp")), []
    folder.chmod(0o755)

    def start(*words, mounts={}, wrapper=(), **how):
        started.append(Bench(folder, words, mounts, wrapper, **how))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
    shutil.rmtree(folder)


def has(*words):
    return lambda commands: any(all(word in command for word in words) for command in commands)


PHASES = {
    "initdb": has("initdb"),
    "start": lambda commands: has("postgres -D")(commands) and not has("initdb")(commands),
    "filling": has("pgbench", "--initialize"),
    "first round": has("pgbench", "application_name=direct"),
    "through the pooler": has("pgbench", "application_name=pgweir"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c(bench, phase):
    """In each phase: exit code 130. What was measured is reported; where nothing was, there is no report and no folder for it."""
    seconds = "60" if phase == "first round" else "6"
    one = bench("overhead", "--quick", "--seconds", seconds, "--rounds", "2", is_live=True)
    one.wait_for(phase, PHASES[phase])
    if phase == "first round":
        one.wait_for("a second's figures", lambda _: re.search(r"round 1, 8 clients, direct: \d+ s left, \d+ TPS", "".join(one.lines)))
    one.interrupt()
    code, said = one.end()
    assert code == 130 and "interrupted" in said
    if phase in ("first round", "through the pooler"):
        [step] = one.report()["experiments"][0]["steps"]
        assert step["targets"]["direct"]["medians"]["tps"] > 0
    else:
        assert not one.output.exists()


def test_ctrl_c_between_rounds_and_while_reporting(bench):
    """Between two runs; and a user that presses it again and again while the report is written still gets a whole one."""
    one = bench("overhead", "--quick", "--seconds", "2", "--rounds", "2")
    one.wait_for("the first run's end", lambda _: any(line.startswith("round 1, 8 clients, direct: ") for line in one.lines))
    while one.process.poll() is None:
        one.interrupt()
        time.sleep(0.002)
    code, said = one.end()
    assert code == 130 and "interrupted" in said
    [step] = one.report()["experiments"][0]["steps"]
    assert step["targets"]["direct"]["medians"]["tps"] > 0 and "tps" in one.text.lower()


@needs_mounts
def test_no_pgbench(bench):
    """What is missing, and how to get it."""
    wrapper = [*mounted("/usr/lib/postgresql", "size=1m"), "/usr/bin/env", "PATH=/nonexistent"]
    one = bench("storm", "--postgres", "postgres://u:p@127.0.0.1:1/d", wrapper=wrapper)
    code, said = one.end()
    assert code == 3 and "pgbench not found: install it" in said and not one.output.exists()


@needs_mounts
def test_no_room_for_the_report(bench):
    """Told before anything is started."""
    one = bench("overhead", "--quick", mounts={"out": "size=1m"})
    code, said = one.end()
    assert code == 5 and f"no room on the disk: {one.output}" in said and "--output" in said
    assert "round 1" not in said


@needs_mounts
def test_no_room_for_the_report_any_more(bench):
    """The disk filled up meanwhile: the table is on the terminal at least."""
    one = bench("overhead", "--quick", "--seconds", "2", "--rounds", "1", mounts={"out": "size=100m"})
    one.wait_for("a run", PHASES["first round"])
    one.shrink("out", "4k")
    code, said = one.end()
    assert code == 5 and f"no room on the disk: {one.output}" in said
    assert "8 clients" in one.text


@needs_mounts
def test_no_room_for_the_server(bench):
    """Told before anything is started."""
    one = bench("overhead", "--quick", mounts={"tmp": "size=100m"})
    code, said = one.end()
    assert code == 5 and "MB free" in said and str(one.temporary) in said and not one.output.exists()


@needs_mounts
@pytest.mark.parametrize("phase", ["filling", "first round"])
def test_the_servers_disk_fills_up(bench, phase):
    """PostgreSQL cannot write any more, or dies of it: exit code 5, and it is said why."""
    one = bench("saturation", "--quick", "--seconds", "60", "--rounds", "1", mounts={"tmp": "size=3g,mode=1777"})
    one.wait_for(phase, PHASES[phase])
    one.shrink("tmp")
    code, said = one.end()
    assert code == 5 and "no room on the disk" in said, said


@pytest.mark.parametrize("is_slow_to_end", [False, True])
def test_side_by_side_keeps_what_it_measured(tmp_path, is_slow_to_end):
    """`bench peers` ends with an error if PostgreSQL dies, after the report of what was measured until then. A server that is killed
    refuses connections before its end can be seen: here its socket goes first, and it is killed when a run has failed."""
    tmp_path.chmod(0o755)
    words = ("--only", "select1", "--rounds", "9", "--seconds", "1", "--scale", "1", "--output", tmp_path / "out")
    environment = os.environ | {"TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen([binary(), "bench", "peers", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as one:
        said = []
        for line in one.stderr:
            said.append(line)
            if "round 2, pgweir: TPS" in line:
                break
        server, data = next((pid, command.split()[2]) for (pid, _), command in family(one.pid).items() if "postgres -D" in command)
        if is_slow_to_end:
            for socket in (Path(data).parent / "pg").glob(".s.PGSQL.*"):
                socket.unlink()
            for line in one.stderr:
                said.append(line)
                if "failed: " in line:
                    break
        os.kill(server, signal.SIGKILL)
        rest, errors = one.communicate(timeout=120)
    assert one.returncode != 0 and "panicked" not in errors, (said, errors)
    assert "select1: " in rest and "written to" in rest, rest
    runs = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "select1" in json.dumps(runs)


@pytest.mark.parametrize("phase", ["initdb", "filling", "through the pooler"])
def test_killed(bench, phase):
    """Whatever ends it, its processes end too, and its folder goes."""
    one = bench("overhead", "--quick", "--seconds", "6", "--rounds", "1")
    one.wait_for(phase, PHASES[phase])
    one.seen |= family(one.process.pid)
    assert any("postgres -D" in command or "initdb" in command for command in one.seen.values())
    one.process.kill()
    one.process.wait()
    eventually(lambda: not any(is_there(*seen) for seen in one.seen), "all processes are gone", timeout_s=60)
    eventually(lambda: not list(one.temporary.iterdir()), "the folder is gone", timeout_s=60)


def test_the_terminal_is_closed(bench):
    """A closed terminal window leaves nothing behind and causes no panic."""
    ours, theirs = os.openpty()
    one = bench("overhead", "--quick", "--seconds", "60", "--rounds", "1", terminal=theirs)
    os.close(theirs)
    one.wait_for("first round", PHASES["first round"])
    one.seen |= family(one.process.pid)
    os.close(ours)
    one.process.send_signal(signal.SIGHUP)
    code, _ = one.end()
    assert code == 130


def test_the_help_is_not_read():
    """`pgweir bench --help | true`: an early end of the reader is no failure."""
    reader, writer = os.pipe()
    os.close(reader)
    for words in (["bench", "--help"], ["bench", "load", "--help"], ["demo", "--help"]):
        done = subprocess.run([binary(), *words], stdout=writer, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (0, ""), words
    os.close(writer)


def test_a_report_that_cannot_be_written(tmp_path):
    """Told before anything is measured, not after."""
    for words in (["overhead"], ["load"], ["peers"]):
        done = subprocess.run([binary(), "bench", *words, "--output", "/proc/self"], capture_output=True, text=True, timeout=20)
        assert done.returncode == 1 and "--output: writing to /proc/self: " in done.stderr, (words, done.stderr)

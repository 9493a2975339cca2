"""`pgweir pair keepalived`: what it prints is run by a real keepalived, on two machines that are network namespaces."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness.machine import as_service, eventually, scratch_folder
from harness.pooler import binary, kind

KEEPALIVED = shutil.which("keepalived") or shutil.which("keepalived", path="/usr/sbin")

pytestmark = [
    pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such command"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces"),
    pytest.mark.skipif(KEEPALIVED is None or shutil.which("curl") is None, reason="keepalived or curl is not installed (tests/setup.sh installs them)"),
]

ADDRESS, OWN = "10.77.0.9", ("10.77.0.1", "10.77.0.2")


def run(*command):
    """Runs a command and returns what it said; a failure fails the test."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def pair(*arguments, code=0):
    """Runs `pgweir pair keepalived`."""
    done = subprocess.run([binary(), "pair", "keepalived", *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


class Machine:
    """A network namespace with a pooler and a keepalived."""

    def __init__(self, name, link, own):
        self.name, self.link, self.own = name, link, own
        self.folder = scratch_folder("pair")
        self.processes, self.pooler = [], None

    def inside(self, *command):
        return ["ip", "netns", "exec", self.name, *command]

    def start(self, *command, log):
        """Starts a program in the namespace."""
        with open(self.folder / log, "ab") as output:
            process = subprocess.Popen(self.inside(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.processes.append(process)
        return process

    def start_pooler(self, pooler):
        self.pooler = pooler
        pooler.process = self.start(*as_service(*pooler.command("--quiet", str(pooler.ini)), signal_name="KILL"), log="pgweir.log")

    def start_keepalived(self, text):
        """As printed, but for the user of the check, who does not exist here."""
        path = self.folder / "keepalived.conf"
        path.write_text(text.replace("script_user keepalived_script", "script_user nobody"))
        # keepalived 2.2 kills itself when it is to test a file whose checks do not run as root.
        tested = self.folder / "tested.conf"
        tested.write_text(text.replace("script_user keepalived_script", "script_user root"))
        run(*self.inside(KEEPALIVED, "-t", "-f", str(tested)))
        pids = ["-p", str(self.folder / "pid"), "-r", str(self.folder / "vrrp.pid")]
        self.start(KEEPALIVED, "--vrrp", "--dont-fork", "--log-console", "--log-detail", "-f", str(path), *pids, log="keepalived.log")

    def log(self):
        return (self.folder / "keepalived.log").read_text(errors="replace")

    def has_address(self):
        return f" {ADDRESS}/24 " in run("ip", "-n", self.name, "-oneline", "address", "show", "dev", self.link)

    def selects(self):
        """Whether a client on this machine is served at the pair's address."""
        conninfo = f"host={ADDRESS} port={self.pooler.port} dbname=app user=alice password=pw-of-alice connect_timeout=2"
        done = subprocess.run(self.inside("psql", "-XAtc", "select 7", conninfo), capture_output=True, text=True)
        return done.stdout == "7\n"

    def end(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            process.wait(20)
        shutil.rmtree(self.folder)


@pytest.fixture
def machines():
    """Two namespaces with a link between them."""
    names = [f"pgw{os.getpid()}{letter}" for letter in "ab"]
    links = [f"pg{os.getpid()}{letter}" for letter in "ab"]
    made = [Machine(*words) for words in zip(names, links, OWN, strict=True)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for machine in made:
            run("ip", "-n", machine.name, "link", "set", "lo", "up")
            run("ip", "-n", machine.name, "address", "add", f"{machine.own}/24", "dev", machine.link)
            run("ip", "-n", machine.name, "link", "set", machine.link, "up")
        yield made
    finally:
        for machine in made:
            machine.end()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_the_address_follows_the_pooler(machines, poolers, pg):
    """It leaves a machine whose pooler is killed, stays when that pooler is back, and leaves one whose pooler is frozen."""
    first, second = machines
    # A unix socket of PostgreSQL is reached from every namespace; ports are each namespace's own, so both poolers may have the same.
    for machine in machines:
        where = f"host={pg.folder} port={pg.port} dbname=app"
        pooler = poolers({"app": where}, start=False, listen_addr="*", http_listen="127.0.0.1:9127")
        pooler.settings["listen_port"] = pooler.port = 6432
        pooler.write_ini()
        machine.start_pooler(pooler)
    words = [f"--address={ADDRESS}/24", f"--interface={first.link}", f"--peer-interface={second.link}", f"--peer={second.own}"]
    printed = subprocess.run(first.inside(binary(), "pair", "keepalived", *words), capture_output=True, text=True, check=True).stdout
    assert f"--here={first.own}" in printed, "it has found this machine's address"
    for machine, which in ((first, "here"), (second, "peer")):
        text = pair(*words, f"--here={first.own}", f"--only={which}")
        assert text in printed
        machine.start_keepalived(text)

    def only(machine):
        return [one.has_address() for one in machines] == [one is machine for one in machines]

    holder = eventually(lambda: next((one for one in machines if only(one)), None), "one machine has the address", timeout_s=20)
    other = second if holder is first else first
    eventually(lambda: first.selects() and second.selects(), "clients of both machines are served", timeout_s=20)

    # Everybody is held: nothing moves. The check runs once a second.
    for machine in machines:
        subprocess.run(machine.inside("psql", "-XAtc", "PAUSE", f"host={machine.own} port=6432 dbname=pgbouncer user=admin password=pw-of-admin"), check=True)
    time.sleep(2.5)
    assert only(holder)
    for machine in machines:
        subprocess.run(machine.inside("psql", "-XAtc", "RESUME", f"host={machine.own} port=6432 dbname=pgbouncer user=admin password=pw-of-admin"), check=True)

    holder.pooler.expect_exit = True
    holder.pooler.process.kill()
    holder.pooler.process.wait()
    began_s = time.monotonic()
    eventually(lambda: only(other), "the other machine has the address", timeout_s=30)
    print(f"the address of a killed pooler moved after {time.monotonic() - began_s:.1f} s")
    eventually(lambda: first.selects() and second.selects(), "clients are served again")

    returned = holder.log().count("VRRP_Script(pgweir_ready) succeeded")
    holder.start_pooler(holder.pooler)
    eventually(lambda: holder.log().count("VRRP_Script(pgweir_ready) succeeded") > returned, "its check succeeds again", timeout_s=20)
    time.sleep(2.5)
    assert only(other), "the address does not move back"

    other.pooler.process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    eventually(lambda: only(holder), "the address leaves a frozen pooler", timeout_s=30)
    print(f"the address of a frozen pooler moved after {time.monotonic() - began_s:.1f} s")
    other.pooler.process.send_signal(signal.SIGCONT)
    eventually(lambda: first.selects() and second.selects(), "clients are served again")


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    """With the exit code of scripts. The finding on nopreempt is the mistake that most examples make."""
    words = ["--address=10.0.0.9/24", "--interface=eth0", "--peer=10.0.0.2", "--here=10.0.0.1"]
    here, peer = tmp_path / "here", tmp_path / "peer"
    here.write_text(pair(*words, "--only=here"))
    peer.write_text(pair(*words, "--only=peer"))
    assert "nothing would go wrong" in pair(f"--check={here}", f"--check={peer}")
    here.write_text(here.read_text().replace("state BACKUP", "state BACKUP\n    nopreempt"))
    peer.write_text(peer.read_text().replace("priority 100", "priority 90"))
    said = pair(f"--check={here}", f"--check={peer}", code=1)
    assert re.search(r"^error .*nopreempt", said, re.M) and re.search(r"^warning .*100 and 90", said, re.M), said
    here.write_text("vrrp_instance {\n")
    assert f"{here}: line 1" in pair(f"--check={here}", code=2)
    assert "--peer is missing" in pair(*words[:2], code=2)


def test_nopreempt_keeps_the_address_at_a_dead_pooler(machines):
    """Why the printed file has no `nopreempt`: with it, keepalived ignores the weight of a check that fails."""
    words = [f"--address={ADDRESS}/24", f"--interface={machines[0].link}", f"--peer-interface={machines[1].link}", f"--peer={OWN[1]}"]
    for machine, which in zip(machines, ("here", "peer"), strict=True):
        flag = machine.folder / "ready"
        flag.touch()
        text = pair(*words, f"--here={OWN[0]}", f"--only={which}").replace("state BACKUP", "state BACKUP\n    nopreempt")
        machine.start_keepalived(re.sub(r'script ".*"', f'script "/usr/bin/test -e {flag}"', text))
    holder = eventually(lambda: next((one for one in machines if one.has_address()), None), "one has the address", timeout_s=20)
    other = next(one for one in machines if one is not holder)
    (holder.folder / "ready").unlink()
    eventually(lambda: "Changing effective priority from 100 to 80" in holder.log(), "its check fails", timeout_s=20)
    time.sleep(4)
    assert holder.has_address() and not other.has_address()

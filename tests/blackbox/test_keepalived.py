"""`pgweir pair keepalived`: what it prints is run by a real keepalived, on two machines that are network namespaces."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness.machine import eventually, scratch_folder
from harness.network import ADDRESS, Network
from harness.pair import KEEPALIVED, PORT, Machine, keepalived_files
from harness.pooler import binary, kind

pytestmark = [
    pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such command"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces"),
    pytest.mark.skipif(
        KEEPALIVED is None or shutil.which("curl") is None, reason="keepalived or curl is not installed (tests/setup.sh installs them)"
    ),
]


def pair(*arguments, code=0):
    """Runs `pgweir pair keepalived`."""
    done = subprocess.run([binary(), "pair", "keepalived", *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def network():
    """Two machines that reach each other."""
    one = Network(kind=Machine)
    try:
        one.build()
        yield one
    finally:
        for machine in one.hosts:
            machine.end()
        one.destroy()


def selects(machine):
    """Whether a client on this machine is served at the pair's address."""
    conninfo = f"host={ADDRESS} port={PORT} dbname=app user=alice password=pw-of-alice connect_timeout=2"
    done = subprocess.run(machine.inside("psql", "-XAtc", "select 7", conninfo), capture_output=True, text=True)
    return done.stdout == "7\n"


def test_the_address_follows_the_pooler(network, poolers, pg):
    """It leaves a machine whose pooler is killed, stays when that pooler is back, and leaves one whose pooler is frozen."""
    first, second = machines = network.hosts
    # A unix socket of PostgreSQL is reached from every namespace; ports are each namespace's own, so both poolers may have the same.
    for machine in machines:
        where = f"host={pg.folder} port={pg.port} dbname=app"
        machine.use(poolers({"app": where}, start=False, listen_addr="*", http_listen="127.0.0.1:9127"))
        machine.start(capabilities=None)
    printed, files = keepalived_files(machines)
    assert f"--here={first.own}" in printed, "it has found this machine's address"
    for machine, text in zip(machines, files, strict=True):
        assert text in printed
        machine.start_keepalived(text)

    holder = eventually(lambda: next((one for one in machines if network.only(one)), None), "one machine has the address", timeout_s=20)
    other = second if holder is first else first
    eventually(lambda: selects(first) and selects(second), "clients of both machines are served", timeout_s=20)

    # All clients are held: nothing moves. The check runs once a second.
    for machine in machines:
        assert not machine.ask("PAUSE").errors
    time.sleep(2.5)
    assert network.only(holder)
    for machine in machines:
        assert not machine.ask("RESUME").errors

    holder.kill()
    began_s = time.monotonic()
    eventually(lambda: network.only(other), "the other machine has the address", timeout_s=30)
    print(f"the address of a killed pooler moved after {time.monotonic() - began_s:.1f} s")
    eventually(lambda: selects(first) and selects(second), "clients are served again")

    holder.start(capabilities=None)
    eventually(holder.check_succeeds, "its check succeeds again", timeout_s=20)
    time.sleep(2.5)
    assert network.only(other), "the address does not move back"

    other.send(signal.SIGSTOP)
    began_s = time.monotonic()
    eventually(lambda: network.only(holder), "the address leaves a frozen pooler", timeout_s=30)
    print(f"the address of a frozen pooler moved after {time.monotonic() - began_s:.1f} s")
    other.send(signal.SIGCONT)
    eventually(lambda: selects(first) and selects(second), "clients are served again")


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


@pytest.fixture
def flags():
    """A path for each machine, which the user of the check can read."""
    folder = scratch_folder("flags")
    yield [folder / "here", folder / "peer"]
    shutil.rmtree(folder)


def test_nopreempt_keeps_the_address_at_a_dead_pooler(network, flags):
    """Why the printed file has no `nopreempt`: with it, keepalived ignores the weight of a check that fails."""
    machines = network.hosts
    _, files = keepalived_files(machines)
    for machine, text, flag in zip(machines, files, flags, strict=True):
        flag.touch()
        text = text.replace("state BACKUP", "state BACKUP\n    nopreempt")
        machine.start_keepalived(re.sub(r'script ".*"', f'script "/usr/bin/test -e {flag}"', text))
    eventually(lambda: all(machine.check_succeeds() for machine in machines), "both checks succeed", timeout_s=20)
    holder = eventually(lambda: next((one for one in machines if network.only(one)), None), "one has the address", timeout_s=20)
    flags[machines.index(holder)].unlink()
    eventually(lambda: "Changing effective priority from 100 to 80" in holder.keepalived_log(), "its check fails", timeout_s=20)
    time.sleep(4)
    assert network.only(holder)

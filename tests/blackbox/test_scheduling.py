"""How workers are scheduled: a busy one tries whether more is done when it lets others on the machine go first (SCHED_BATCH)."""

import os
import subprocess
import time

import pytest
from harness.machine import eventually

pytestmark = pytest.mark.needs("worker scheduling")

WITHIN_S = 30


def policies(pid):
    """How the process's threads are scheduled: the policies of its workers."""
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm", encoding="ascii") as name:
            if name.read().startswith("worker-"):
                found.add(os.sched_getscheduler(int(thread)))
    return found


def began_as(pooler, policy):
    """Waits until the workers run, which is after the pooler listens."""
    eventually(lambda: policies(pooler.pid), "the workers run")
    assert policies(pooler.pid) == {policy}


def load(pooler):
    """More than enough for one worker to be busy."""
    command = ["pgbench", "-n", "-S", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-c", "20", "-j", "2"]
    return subprocess.Popen([*command, "-T", str(WITHIN_S + 30), "bench"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seen(pooler, wanted, seconds):
    """Waits until a worker is scheduled so; tells whether that came."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if wanted in policies(pooler.pid):
            return True
        time.sleep(0.005)
    return False


def test_a_busy_worker_tries_to_wait_and_an_idle_one_does_not(poolers, bench):
    """`auto`: under load both ways are tried; with the load gone, and after a change to `prompt`, it is scheduled as ever."""
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=5)
    began_as(pooler, os.SCHED_OTHER)
    clients = load(pooler)
    try:
        assert seen(pooler, os.SCHED_BATCH, WITHIN_S)
        pooler.admin("SET worker_scheduling = 'prompt'")
        assert seen(pooler, os.SCHED_OTHER, WITHIN_S)
        assert not seen(pooler, os.SCHED_BATCH, 1)
    finally:
        clients.terminate()
        clients.wait()


def test_a_policy_that_was_chosen_is_left_alone(poolers, bench):
    """Whoever starts it with a policy of his own keeps that."""
    pooler = poolers({"bench": bench.at("bench")}, limits=["chrt", "--idle", "0"])
    began_as(pooler, os.SCHED_IDLE)
    clients = load(pooler)
    try:
        assert not seen(pooler, os.SCHED_BATCH, 1)
        assert policies(pooler.pid) == {os.SCHED_IDLE}
    finally:
        clients.terminate()
        clients.wait()

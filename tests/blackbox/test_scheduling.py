"""How workers are scheduled: a busy one with many clients lets other processes on the machine go first (SCHED_BATCH), and one with few
clients polls for more before it sleeps."""

import os
import time

import pytest
from harness.machine import eventually, free_port
from harness.workers import counted, load

pytestmark = pytest.mark.needs("worker scheduling")

WITHIN_S = 30
LOAD_S = WITHIN_S + 30


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


def seen(pooler, wanted, seconds):
    """Waits until a worker is scheduled so; tells whether that came."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if wanted in policies(pooler.pid):
            return True
        time.sleep(0.005)
    return False


MANY_CLIENTS = 64
"""Enough of them send something in each window of a worker on any machine."""


def test_a_busy_worker_with_many_clients_is_in_batch_mode(poolers, bench):
    """`auto`: under load of many clients it is; after a change to `prompt` it is scheduled by default."""
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=5)
    began_as(pooler, os.SCHED_OTHER)
    clients = load(pooler, LOAD_S, clients=MANY_CLIENTS)
    try:
        assert seen(pooler, os.SCHED_BATCH, WITHIN_S)
        pooler.admin("SET worker_scheduling = 'prompt'")
        assert seen(pooler, os.SCHED_OTHER, WITHIN_S)
        assert not seen(pooler, os.SCHED_BATCH, 1)
    finally:
        clients.terminate()
        clients.wait()


def test_a_worker_without_load_leaves_batch_mode(poolers, bench):
    """With the load gone, a worker is scheduled by default as soon as something wakes it."""
    pooler = poolers({"bench": bench.at("bench")}, default_pool_size=5)
    clients = load(pooler, LOAD_S, clients=MANY_CLIENTS)
    try:
        assert seen(pooler, os.SCHED_BATCH, WITHIN_S)
    finally:
        clients.terminate()
        clients.wait()
    eventually(lambda: policies(pooler.pid) == {os.SCHED_OTHER}, "the workers are scheduled by default")


def test_a_policy_that_was_chosen_is_left_alone(poolers, bench):
    """If pgweir is started with a scheduling policy, it keeps that policy."""
    pooler = poolers({"bench": bench.at("bench")}, limits=["chrt", "--batch", "0"])
    began_as(pooler, os.SCHED_BATCH)
    clients = load(pooler, LOAD_S, clients=MANY_CLIENTS)
    try:
        assert not seen(pooler, os.SCHED_OTHER, 5)
    finally:
        clients.terminate()
        clients.wait()


BUSY_POLL_LONG_US = 10_000
"""Longer than a client and a server take for their answers on any machine."""


@pytest.fixture
def one_client(poolers, bench, request):
    """A pooler with one client that sends one statement after the other, and how long its workers polled until now."""
    http = free_port()
    settings = {"http_listen": f"127.0.0.1:{http}", "http_anonymous": "all", "worker_busy_poll_us": BUSY_POLL_LONG_US}
    pooler = poolers({"bench": bench.at("bench")}, **settings, **getattr(request, "param", {}))
    client = load(pooler, LOAD_S, clients=1)

    def busy_poll_s():
        return counted(http, "busy_poll_seconds")

    try:
        yield pooler, busy_poll_s
    finally:
        client.terminate()
        client.wait()


def rests(busy_poll_s):
    """Waits until the workers do not poll any more, and tells whether they stay so for a second."""
    seen = [busy_poll_s()]

    def same():
        time.sleep(0.1)
        seen.append(busy_poll_s())
        return seen[-1] == seen[-2]

    eventually(same, "the workers sleep")
    time.sleep(1)
    return busy_poll_s() == seen[-1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor a worker always sleeps")
def test_a_worker_with_one_client_polls(one_client):
    """A client that waits for each answer: the worker polls before it sleeps; not with `worker_busy_poll_us=0`."""
    pooler, busy_poll_s = one_client
    eventually(lambda: busy_poll_s() > 0, "a worker polls", WITHIN_S)
    pooler.admin("SET worker_busy_poll_us = 0")
    assert rests(busy_poll_s)
    pooler.admin(f"SET worker_busy_poll_us = {BUSY_POLL_LONG_US}")
    before = busy_poll_s()
    eventually(lambda: busy_poll_s() > before, "it polls again", WITHIN_S)


@pytest.mark.parametrize("one_client", [{"limits": ["taskset", "1"]}, {"limits": ["chrt", "--batch", "0"]}], indirect=True)
def test_a_worker_that_is_in_the_way_of_other_threads_sleeps(one_client):
    """On one processor, and with a policy that the administrator chose, no worker polls."""
    _, busy_poll_s = one_client
    time.sleep(1)
    assert busy_poll_s() == 0

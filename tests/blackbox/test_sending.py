"""How messages leave: those of one turn with one system call where the kernel has io_uring (`worker_io_uring`), and one by one where it
has not."""

import re

import pytest
from harness.machine import eventually, free_port
from harness.seccomp import forbid_io_uring, has_io_uring
from harness.workers import counted, load

pytestmark = pytest.mark.needs("worker scheduling")

WITHIN_S = 30
NOT_HERE = r"io_uring cannot be used here \(Operation not permitted.*\): messages are sent one by one"


class Busy:
    """A pooler with clients that send one statement after the other."""

    def __init__(self, poolers, bench, **settings):
        self.http = free_port()
        settings |= {"http_listen": f"127.0.0.1:{self.http}", "http_anonymous": "all", "default_pool_size": 5}
        self.pooler = poolers({"bench": bench.at("bench")}, **settings)
        self.clients = load(self.pooler, WITHIN_S + 30)

    def count(self, what):
        """See [`counted`]."""
        return counted(self.http, what)

    def sends_one_by_one(self):
        """Whether more was done, and no messages left together meanwhile."""
        before = self.count("batched_sends")
        self.works()
        return self.count("batched_sends") == before

    def works(self):
        """Waits until more has been done."""
        before = self.count("turns")
        eventually(lambda: self.count("turns") > before + 1000, "clients are served", WITHIN_S)


@pytest.fixture
def busy(poolers, bench, request):
    """See [`Busy`]."""
    busy = Busy(poolers, bench, **getattr(request, "param", {}))
    try:
        yield busy
    finally:
        busy.clients.terminate()
        busy.clients.wait()


@pytest.mark.skipif(not has_io_uring(), reason="no io_uring here")
def test_messages_of_a_turn_leave_together(busy):
    """As long as `worker_io_uring` says so, which a reload may change."""
    eventually(lambda: busy.count("batched_sends") > 1000, "messages leave together", WITHIN_S)
    assert not re.search(NOT_HERE, busy.pooler.log())
    busy.pooler.admin("SET worker_io_uring = 0")
    # Each worker takes the change in at its next turn.
    eventually(busy.sends_one_by_one, "no message leaves with others", WITHIN_S)
    before = busy.count("batched_sends")
    busy.works()
    assert busy.count("batched_sends") == before
    busy.pooler.admin("SET worker_io_uring = 1")
    eventually(lambda: busy.count("batched_sends") > before, "messages leave together again", WITHIN_S)


@pytest.mark.parametrize("busy", [{"sandbox": forbid_io_uring}], indirect=True)
def test_without_io_uring_messages_leave_one_by_one(busy):
    """As in a container whose profile forbids it: said once for each worker, and everything works."""
    busy.works()
    assert busy.count("batched_sends") == 0
    workers = re.search(r"workers: (\d+)", busy.pooler.log())[1]
    assert len(re.findall(NOT_HERE, busy.pooler.log())) == int(workers)

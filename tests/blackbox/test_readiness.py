"""/readyz: which poolers new clients are sent to. A pooler that holds its clients is ready; one that is about to end is not."""

import signal
import urllib.error
import urllib.request

import pytest

from harness.machine import eventually, free_port
from harness.pooler import kind

from test_clusters import clustered, nodes, shown  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no HTTP server")


class Asked:
    """/readyz of a pooler, asked as a load balancer asks it."""

    def __init__(self, port):
        self.port = port

    def __call__(self, query="", method="GET"):
        """Status and text of the answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/readyz{query}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def ready(pooled):
    """A function that starts a pooler with an HTTP server, and gives both."""

    def start(**settings):
        port = free_port()
        pooler = pooled(http_listen=str(port), http_anonymous="none", workers=2, **settings)
        return pooler, Asked(port)

    return start


def test_a_pooler_that_holds_its_clients_is_ready(ready):
    """PAUSE holds clients, so they may still be sent here. After SUSPEND nothing is accepted."""
    pooler, asked = ready()
    assert asked() == (200, "ok\n") and asked(method="HEAD") == (200, "")
    pooler.admin("PAUSE")
    assert asked() == (200, "ok\n")
    pooler.admin("RESUME")
    with pooler.console() as console:
        assert not console.query("SUSPEND").errors
        assert asked() == (503, "suspended\n")
        assert not console.query("RESUME").errors
    assert asked() == (200, "ok\n")


def test_a_pooler_that_ends_is_not_ready(ready):
    pooler, asked = ready()
    with pooler.connect() as connection:
        connection.execute("SELECT 1")
        pooler.admin("SHUTDOWN WAIT_FOR_CLIENTS")
        assert asked() == (503, "shutting down\n")
        pooler.expect_exit = True
    pooler.wait_exit()


def test_a_frozen_worker_is_no_ready_pooler(ready):
    """While the process is stopped it does not answer at all; afterwards it is ready again."""
    pooler, asked = ready()
    pooler.signal(signal.SIGSTOP)
    try:
        request = f"http://127.0.0.1:{asked.port}/readyz"
        with pytest.raises(OSError):
            urllib.request.urlopen(request, timeout=0.5)
    finally:
        pooler.signal(signal.SIGCONT)
    assert asked() == (200, "ok\n")


def test_what_is_not_understood_is_refused(ready):
    """A misspelled parameter must not look like a pooler that is ready."""
    _, asked = ready()
    for query in ("?cluster=main", "?role=primary", "?cluster=main&role=leader", "?clutser=main&role=primary", "?verbose", "?cluster=%ff&role=primary"):
        assert asked(query)[0] == 400, query
    assert asked("?cluster=main&role=primary")[0] == 404
    assert asked("?")[0] == 200


def test_a_role_of_a_cluster(nodes, clustered):  # noqa: F811
    """Without a primary the pooler is ready, unless the primary is asked for; and the same with standbys."""
    two = nodes(2)
    port = free_port()
    pooler = clustered(two, http_listen=str(port))
    asked = Asked(port)
    primary, standby = "?cluster=main&role=primary", "?cluster=main&role=standby"
    eventually(lambda: asked(primary) == (200, "ok\n"), "the primary is known")
    eventually(lambda: asked(standby) == (200, "ok\n"), "the standby takes reads")
    assert asked("?cluster=other&role=primary")[0] == 404
    pooler.admin("DRAIN NODE main.m2")
    assert asked(standby) == (503, "no standby\n")
    pooler.admin("ATTACH NODE main.m2")
    eventually(lambda: asked(standby) == (200, "ok\n"), "the standby takes reads again")
    two.primary.stop(signal.SIGQUIT)
    eventually(lambda: shown(pooler)["state"] == "held", "there is no primary")
    assert asked(primary) == (503, "no primary\n")
    assert asked() == (200, "ok\n"), "clients are held here"
    two.all[1].promote()
    eventually(lambda: asked(primary) == (200, "ok\n"), "the next primary is known")
    assert asked(standby) == (503, "no standby\n")

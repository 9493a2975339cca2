"""The dashboard's page of clusters, and the API behind it, with a real primary and its standby."""

import os
import signal
import subprocess

import pytest
from harness.machine import TESTS, eventually, free_port
from harness.pooler import kind
from test_clusters import Later, clustered, node_states, nodes, port_of, shown  # noqa: F401
from test_dashboard import PICTURES, chromium
from test_http import Http

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer knows no clusters")


@pytest.fixture
def watched(nodes, clustered):  # noqa: F811
    """A function that makes a cluster of these nodes, and a pooler with an HTTP server that knows them."""

    def make(count=2, **settings):
        some, port = nodes(count), free_port()
        pooler = clustered(some, http_listen=str(port), **settings)
        wanted = {"m1": "primary", **{f"m{number}": "standby" for number in range(2, count + 1)}}
        eventually(lambda: node_states(pooler) == wanted, "all nodes are known")
        return some, Http(pooler, port)

    return make


def story(name, http):
    done = subprocess.run(
        ["node", "story.mjs", name], cwd=TESTS / "browser", capture_output=True, text=True, timeout=140,
        env=os.environ | {"URL": http.base, "PICTURES": str(PICTURES), "CHROMIUM": chromium()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def lose_primary(some, pooler):
    """Ends the first node, promotes the second, and waits until clients are sent there."""
    some.primary.stop(signal.SIGQUIT)
    eventually(lambda: shown(pooler)["state"] == "held", "the pooler knows that there is no primary")
    some.all[1].promote()
    eventually(lambda: shown(pooler)["primary"] == "m2", "the standby is the primary")
    eventually(lambda: node_states(pooler)["m1"] == "down", "the old primary is down")


def test_page(watched):
    """Two stories: an admin drains and attaches the primary; after a promotion a page that is opened then shows what happened."""
    some, http = watched(2)
    with http.pooler.raw() as session:
        session.query("select 1")
    eventually(lambda: http.get("/api/v1/overview")["databases"], "the database is seen")
    story("cluster", http)
    lose_primary(some, http.pooler)
    story("promoted", http)


def test_api(watched):
    """What the page is told: nodes, clients that wait, changes in their order; addresses only for readers that see names."""
    some, http = watched(2)
    [cluster] = http.get("/api/v1/clusters")["clusters"]
    assert (cluster["name"], cluster["state"], cluster["primary"], cluster["epoch"]) == ("main", "available", "m1", 1)
    assert cluster["databases"] == ["app"]
    assert [(node["name"], node["state"], node["host"], node["port"]) for node in cluster["nodes"]] == [
        ("m1", "primary", "127.0.0.1", some.all[0].port),
        ("m2", "standby", "127.0.0.1", some.all[1].port),
    ]
    [stranger] = http.get("/api/v1/clusters", user=None)["clusters"]
    assert [(node["name"], node["host"], node["last_error"]) for node in stranger["nodes"]] == [("m1", None, None), ("m2", None, None)]
    with http.pooler.raw() as session:
        session.query("select 1")
        some.primary.stop(signal.SIGQUIT)
        eventually(lambda: shown(http.pooler)["state"] == "held", "the pooler knows that there is no primary")
        later = Later(lambda: port_of(session))
        eventually(lambda: http.get("/api/v1/clusters")["clusters"][0]["held_clients"] == 1, "one client waits")
        eventually(lambda: http.get("/api/v1/overview")["clusters"][0]["held_clients"] == 1, "the overview says so")
        some.all[1].promote()
        assert later.value() == some.all[1].port
    told = [(one["kind"], one.get("node"), one.get("to", one.get("epoch"))) for one in reversed(http.get("/api/v1/clusters")["changes"])]
    # That clients waited at the start is seen only if it lasted until the first look.
    held, first = ("held", None, None), told.index(("primary", "m1", 1))
    assert told[:first].count(held) <= 1 and told[first:].count(held) == 1, told
    told = told[first:]
    order = [told.index(one) for one in [("held", None, None), ("state", "m2", "primary"), ("primary", "m2", 2)]]
    assert order == sorted(order), told


def test_actions(watched):
    """ATTACH, DRAIN, DETACH and RECHECK, for administrators alone."""
    _, http = watched(2)
    assert http.act("drain", user="stats", cluster="main", node="m2")[0] == 403
    assert http.act("drain", cluster="main", node="m2") == (200, {"done": True, "message": "DRAIN NODE main.m2"})
    assert http.pooler.show("NODES", node="m2", switch="draining")
    assert http.act("detach", cluster="main", node="m2")[0] == 200
    assert http.act("attach", cluster="main", node="m2")[0] == 200
    assert http.pooler.show("NODES", node="m2", switch="attached")
    status, answer = http.act("detach", cluster="main", node="m1")
    assert status == 409 and "is the primary" in answer["error"]["message"]
    assert http.act("attach", cluster="main", node="m9")[0] == 404
    assert http.act("recheck", cluster="nope")[0] == 404
    assert http.act("recheck", cluster="main")[0] == 200
    assert http.act("recheck")[0] == 400
    switches = [one["to"] for one in http.get("/api/v1/clusters")["changes"] if one["kind"] == "switch"]
    assert switches[0] == "attached"


def test_without_clusters(pooled):
    """The page is told that there is none."""
    port = free_port()
    http = Http(pooled(http_listen=str(port)), port)
    answer = http.get("/api/v1/clusters")
    assert (answer["clusters"], answer["changes"], http.get("/api/v1/overview")["clusters"]) == ([], [], [])


def test_limits_hold_for_each_node(watched):
    """A pool that reads from a standby may have `pool_size` connections to each of the two: that is its limit on the dashboard."""
    _, http = watched(2, default_pool_size=3)
    with http.pooler.raw() as session:
        session.query("select 1")
        [entry] = eventually(lambda: http.get("/api/v1/overview")["databases"], "the database is seen")
        assert entry["servers"]["limit"] == 3, "no read goes to the standby"
    with http.pooler.raw(options="-c pgweir.route=standby") as session:
        session.query("select 1")
        eventually(lambda: http.get("/api/v1/overview")["databases"][0]["servers"]["limit"] == 6, "three at each node")

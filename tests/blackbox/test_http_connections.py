"""/api/v1/clients and /api/v1/servers: who is connected, what each does, and why; the same as SHOW CLIENTS and SHOW SERVERS."""

import base64
import json
from urllib.parse import urlencode

import pytest
from harness.machine import eventually, free_port
from harness.monitoring import fetch
from harness.wire import query as query_message

pytestmark = pytest.mark.needs("metrics over HTTP")


@pytest.fixture
def listed(pooled):
    """A pooler with two server connections, and a function that asks its API as a user of stats_users, or as nobody."""
    port = free_port()
    pooler = pooled(default_pool_size=2, http_listen=f"127.0.0.1:{port}")

    def ask(what, reader="stats", **query):
        sign = base64.b64encode(f"{reader}:pw-of-{reader}".encode()).decode()
        headers = {"Authorization": f"Basic {sign}"} if reader else {}
        status, text = fetch(f"http://127.0.0.1:{port}/api/v1/{what}?{urlencode(query)}", **headers)
        return json.loads(text) if status == 200 else status

    return pooler, ask


def test_each_connection_says_what_it_does(listed):
    """Two clients in a transaction hold both servers, a third waits and says why, a fourth is idle; ids lead from one to the other."""
    pooler, ask = listed
    with pooler.connect() as idle, pooler.connect() as one, pooler.connect() as two, pooler.raw(user="bob"), pooler.raw() as third:
        idle.execute("select 1")
        one.execute("begin")
        two.execute("begin")
        third.send(query_message("select 3"))
        reason = "waits for a server connection: all 2 are in use"

        def says_why():
            waiting = ask("clients", state="waiting", database="app")["clients"]
            return [(row["user"], row["reason"]) for row in waiting] == [("alice", reason)]

        eventually(says_why, "the one that waits says why, as soon as the pool has been looked at")  # that is once a second
        answer = ask("clients", database="app")
        assert answer["total"] == 5
        assert [row["state"] for row in answer["clients"]] == ["waiting", "active", "active", "idle", "idle"]
        assert ask("clients", database="app", user="bob")["total"] == 1
        assert len(ask("clients", database="app", limit=2)["clients"]) == 2
        shown = {int(row["id"]): row for row in pooler.show("CLIENTS", database="app")}
        for row in answer["clients"]:
            assert row["since_s"] > 1.7e9 and row["address"].startswith("127.0.0.1:")
            assert row["address"].endswith(f":{shown[row['id']]['port']}")
        servers = ask("servers", database="app", user="alice")  # bob has a pool of his own
        assert servers["total"] == 2
        holders = {row["server_id"]: row["id"] for row in answer["clients"] if row["state"] == "active"}
        assert {row["id"]: row["client_id"] for row in servers["servers"]} == holders
        assert {row["reason"] for row in servers["servers"]} == {"kept by a client; no statement runs"}
        one.execute("commit")
        two.execute("commit")
        third.until("Z")
        eventually(lambda: {row["reason"] for row in ask("servers")["servers"]} == {"free"}, "both servers are free")


def test_strangers_see_states_and_no_names(listed):
    """Without a sign-in there are no users, addresses and applications, and users can not be tried out."""
    pooler, ask = listed
    with pooler.connect() as client:
        client.execute("begin")
        for what in ("clients", "servers"):
            rows = ask(what, reader=None, database="app")[what]
            assert len(rows) == 1
            assert all(rows[0][name] is None for name in ("user", "address", "application_name", "tls"))
            assert rows[0]["state"] == "active" and rows[0]["reason"]
        assert ask("clients", reader=None, user="alice") == 403
        client.execute("commit")


def test_wrong_questions_are_refused(listed):
    """States and limits that do not exist are told so."""
    _, ask = listed
    for query in ({"state": "happy"}, {"limit": 0}, {"limit": 1001}, {"limit": "x"}):
        assert ask("clients", **query) == 400
        assert ask("servers", **query) == 400

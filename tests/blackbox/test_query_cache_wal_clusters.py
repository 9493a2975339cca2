"""`follow=wal` for a database with a cluster: the primary's changes are followed, and the next primary's after it."""

import signal

import pytest

from harness.machine import eventually
from test_clusters import node_states, nodes, shown  # noqa: F401: fixtures
from test_doctor import findings
from test_query_cache_wal import READ, RULES, hits, publish_counters, row, until_followed, until_hit


@pytest.fixture
def followed(nodes, poolers):  # noqa: F811
    """Two nodes with a published table, and a function that starts a pooler for them."""
    two = nodes(2)
    publish_counters(two.primary)

    def start(line="cluster=main", **settings):
        settings = {
            "pool_mode": "transaction",
            "query_cache": "on",
            "query_cache_user": "u_repl",
            "query_cache_ddl_ms": 3000,
            "ini_tail": RULES + two.ini(),
            **settings,
        }
        pooler = poolers({"app": line}, **settings)
        until_followed(pooler)
        return pooler

    return two, start


def until_at_standby(two):
    """Waits until the standby has all that the primary has."""
    position = two.primary.sql("select pg_current_wal_flush_lsn()::text")[0][0]
    behind = f"select pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
    eventually(lambda: two.all[1].sql(behind) == [(True,)], "the standby has it")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", ["promoted", "restarted"])
def test_the_next_primary_is_followed(followed, way, workers):
    """Nothing that was kept outlasts a primary; the next one's answers are kept, and its changes past the pooler end them. Every third hit is compared
    with the server's answer, and none is wrong."""
    two, start = followed
    pooler = start(workers=workers, query_cache_verify=3)
    clients = [pooler.connect() for _ in range(4)]
    for turn, client in enumerate(clients):
        two.primary.sql(f"update counted set value = {turn} where id = 1")
        eventually(lambda client=client, turn=turn: client.execute(READ, [1]).fetchone() == (turn,), "the change is seen")
        assert until_hit(pooler, client, READ, [1]) == (turn,)
    until_at_standby(two)
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    if way == "promoted":
        two.primary.stop(signal.SIGQUIT)
        new = two.all[1]
        new.promote()
    else:
        two.primary.stop()
        two.primary.start()
        new = two.primary
    # Past the pooler, before the pooler follows.
    new.sql("update counted set value = 100 where id = 1")
    for client in clients:
        eventually(lambda client=client: client.execute(READ, [1]).fetchone() == (100,), "no answer of before is given")
    until_followed(pooler)
    for turn, client in enumerate(clients, 200):
        assert until_hit(pooler, client, READ, [1])[0] >= 100
        new.sql(f"update counted set value = {turn} where id = 1")
        eventually(lambda client=client, turn=turn: client.execute(READ, [1]).fetchone() == (turn,), "the change is seen")
    if way == "promoted":
        assert new.sql("select count(*) from pg_replication_slots where slot_name like 'pgweir_cache%'") == [(1,)]

    def is_compared():
        clients[0].execute(READ, [1])
        return int(row(pooler)["verified"]) > 0

    eventually(is_compared, "an answer is compared")
    assert row(pooler)["wrong"] == "0"
    for client in clients:
        client.close()


def test_own_changes_over_a_switch(followed):
    """A client that writes at the new primary never reads what was kept of the old one, whichever worker it is on."""
    two, start = followed
    pooler = start(workers=3)
    old, new = two.all
    clients = [pooler.connect() for _ in range(6)]
    for client in clients:
        until_hit(pooler, client, READ, [1])
    until_at_standby(two)
    # The old primary lives on, and would confirm that nothing has changed there.
    new.promote()
    eventually(lambda: shown(pooler)["primary"] == "m2", "the new primary is known")
    for turn, client in enumerate(clients, 1):
        client.execute("update counted set value = %s where id = 1", [turn])
        assert client.execute(READ, [1]).fetchone() == (turn,)
    for client in clients:
        assert client.execute(READ, [1]).fetchone() == (len(clients),)
        client.close()


def test_reads_at_standbys(followed):
    """route=auto: the answers of standbys are not kept. Those of the primary are, while it has the reads."""
    two, start = followed
    pooler = start("cluster=main route=auto causal_reads=off")
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    with pooler.connect() as client:
        for _ in range(6):
            client.execute(READ, [1])
        assert hits(pooler) == 0
        pooler.admin("DETACH NODE main.m2")
        assert until_hit(pooler, client, READ, [1]) == (0,)
        pooler.admin("ATTACH NODE main.m2")
        two.primary.sql("update counted set value = 5 where id = 1")
        eventually(lambda: client.execute(READ, [1]).fetchone() == (5,), "the change ends the answer that was kept")


def test_doctor_asks_each_node(followed):
    """A standby is no fault: it is followed when it has become the primary."""
    _, start = followed
    pooler = start()
    _, found = findings(pooler.ini, service=pooler.folder)
    faults = {code: told for code, told in found.items() if code.startswith("cache_") and any(severity != "note" for severity, _ in told)}
    assert not faults and len(found["cache_publication_identity"]) == 1, found


def test_a_database_that_reads_at_standbys_only(nodes, poolers):  # noqa: F811
    """The cache stays off, and SHOW CACHE says why."""
    two = nodes(2)
    settings = {"pool_mode": "transaction", "query_cache": "on", "query_cache_user": "u_repl", "ini_tail": RULES + two.ini()}
    pooler = poolers({"app": "cluster=main route=standby"}, **settings)
    with pooler.connect() as client:
        client.execute("select 1")
    assert row(pooler)["follow_state"] == "off" and "route=standby" in row(pooler)["follow_reason"]

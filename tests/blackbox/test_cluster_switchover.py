"""SWITCHOVER without Patroni: pgweir drains and holds, and another hand promotes."""

import pytest

from harness.machine import eventually
from test_clusters import Later, clustered, node_states, nodes, port_of, shown  # noqa: F401: fixtures

READY = {"m1": "primary", "m2": "standby"}


def switchover(pooler, words):
    """Runs SWITCHOVER in the background; `value()` waits for its answer."""
    return Later(lambda: pooler.admin(f"SWITCHOVER {words}"))


def error_of(later):
    """The error that the command ended with."""
    with pytest.raises(Exception) as error:
        later.value()
    return str(error.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_wait_until_another_hand_has_promoted(nodes, clustered, workers):  # noqa: F811
    """Open transactions end, new ones wait; once the target is promoted they go on there. All workers' transactions count."""
    two = nodes(2)
    pooler = clustered(two, workers=workers)
    old, new = two.all
    with pooler.raw() as busy, pooler.raw() as next_:
        assert port_of(next_) == old.port
        eventually(lambda: node_states(pooler) == READY, "both nodes are known")
        busy.query("begin")
        busy.query("insert into changes values ('b', 1)")
        command = switchover(pooler, "main TO m2")
        eventually(lambda: "1 open transactions may end" in (shown(pooler)["switchover"] or ""), "it waits for one")
        waits = Later(lambda: next_.query("insert into changes values ('n', 1)"))
        eventually(lambda: shown(pooler)["held_clients"] == "1", "a new transaction waits")
        assert not busy.query("insert into changes values ('b', 2)").errors
        assert not busy.query("commit").errors
        eventually(lambda: "promote m2 now" in (shown(pooler)["switchover"] or ""), "it says what is to be done")
        assert "stop m1 and promote m2 now" in pooler.log()
        old.stop()
        new.promote()
        command.value()
        assert not waits.value().errors
        assert port_of(busy) == new.port
    assert new.sql("select who, n from changes order by 1, 2") == [("b", 1), ("b", 2), ("n", 1)]
    assert not shown(pooler)["switchover"] and "switchover to m2 is done" in pooler.log()


def test_transactions_that_stay_open(nodes, clustered):  # noqa: F811
    """After switchover_drain_ms it is given up and all goes on; FORCE ends them. Canceling ends it, too."""
    two = nodes(2)
    pooler = clustered(two, {"switchover_drain_ms": 300})
    eventually(lambda: node_states(pooler) == READY, "both nodes are known")
    with pooler.raw() as busy, pooler.raw() as other:
        busy.query("begin")
        busy.query("insert into changes values ('b', 1)")
        said = error_of(switchover(pooler, "main TO m2"))
        assert "step 2 failed" in said and "SWITCHOVER main TO m2 FORCE" in said
        assert shown(pooler)["switchover"] is None and shown(pooler)["switchover_error"] in said
        assert port_of(other) == two.primary.port
        assert not busy.query("insert into changes values ('b', 2)").errors
        command = switchover(pooler, "main TO m2 FORCE")
        eventually(lambda: "promote m2 now" in (shown(pooler)["switchover"] or ""), "nothing is open any more")
        assert shown(pooler)["switchover_error"] is None
        told = busy.query("commit")
        assert [error["C"] for error in told.errors] == ["40001"], told.errors
        pooler.admin("SWITCHOVER main CANCEL")
        assert "canceled" in error_of(command)
        assert port_of(other) == two.primary.port


def test_what_is_refused(nodes, clustered):  # noqa: F811
    """A node that is not there, the primary itself, one that is detached or far behind."""
    two = nodes(2)
    pooler = clustered(two, {"switchover_max_lag_bytes": 1000})
    eventually(lambda: node_states(pooler) == READY, "both nodes are known")
    for words, said in [
        ("main TO m3", "has no node m3"),
        ("mian TO m2", "no such cluster"),
        ("main TO m1", "is the primary of cluster main already"),
        ("main CANCEL", "no switchover of cluster main is under way"),
    ]:
        assert said in error_of(switchover(pooler, words))
    pooler.admin("DETACH NODE main.m2")
    assert "ATTACH NODE main.m2" in error_of(switchover(pooler, "main TO m2"))
    pooler.admin("ATTACH NODE main.m2")
    two.all[1].sql("select pg_wal_replay_pause()")
    two.primary.sql("insert into changes select 'x', g from generate_series(1, 1000) g")
    eventually(lambda: int(pooler.show("NODES", node="m2")[0]["lag_bytes"]) > 1000, "it is behind")
    assert "switchover_max_lag_bytes is 1000" in error_of(switchover(pooler, "main TO m2"))
    two.all[1].sql("select pg_wal_replay_resume()")


def test_a_promotion_that_does_not_come(nodes, clustered):  # noqa: F811
    """After primary_wait clients go on with the old primary, and none of them has failed."""
    two = nodes(2)
    pooler = clustered(two, {"primary_wait": 1})
    eventually(lambda: node_states(pooler) == READY, "both nodes are known")
    with pooler.raw() as session:
        session.query("select 1")
        command = switchover(pooler, "main TO m2")
        eventually(lambda: shown(pooler)["state"] == "held", "clients wait")
        assert port_of(session) == two.primary.port
        assert "step 3 failed" in error_of(command)

"""SWITCHOVER without Patroni: pgweir drains and holds, and another hand or a command of yours promotes."""

import shutil
import signal
from pathlib import Path

import pytest

from harness.machine import eventually, give, scratch_folder
from test_clusters import Later, clustered, node_states, nodes, port_of, shown  # noqa: F401: fixtures
from test_ctl import ctl

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
        assert waits.value().errors == []
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


#: A `promote_command`: it notes its arguments and variables, stops the old primary if that runs, and promotes the standby.
PROMOTES = """#!/bin/sh
set -eu
cd {folder}
echo $$ > pid
echo "$*|$PGWEIR_CLUSTER $PGWEIR_NODE $PGWEIR_HOST $PGWEIR_PORT|$PGWEIR_OLD_NODE $PGWEIR_OLD_HOST $PGWEIR_OLD_PORT" >> runs
if test -e refuse; then echo 'looking for m1' >&2; echo 'm1 cannot be fenced' >&2; exit 3; fi
if test -e hold; then echo holding >> held; while test -e hold; do sleep 0.02; done; fi
if test -e {data}/postmaster.pid; then
    pid=$(head -n 1 {data}/postmaster.pid)
    if grep -qx postgres "/proc/$pid/comm" && kill -INT "$pid"; then while test -e {data}/postmaster.pid; do sleep 0.02; done; fi
fi
psql "host=$PGWEIR_HOST port=$PGWEIR_PORT user=postgres dbname=postgres" -Atc 'select pg_promote()' | grep -qx t
"""


class Promoter:
    """A script for `promote_command` in a new folder, and the arguments that it got."""

    def __init__(self, pair):
        self.pair = pair
        self.folder = scratch_folder("promote")
        self.program = self.folder / "promote"
        self.program.write_text(PROMOTES.format(folder=self.folder, data=pair.primary.data))
        self.program.chmod(0o755)
        give(self.folder)

    def told(self, name):
        """Makes a file that changes what the script does; gives its path."""
        path = self.folder / name
        path.touch()
        return path

    def runs(self):
        """The arguments of each run."""
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def promoter(nodes):  # noqa: F811
    """A primary, a standby, and a script that makes the standby the primary."""
    made = Promoter(nodes(2))
    yield made
    shutil.rmtree(made.folder)


def promoting(clustered, promoter, **options):  # noqa: F811
    """A pooler with that script as its `promote_command`; both nodes are known to it."""
    pooler = clustered(promoter.pair, {"promote_command": f"'{promoter.program} now'", **options})
    eventually(lambda: node_states(pooler) == READY, "both nodes are known")
    return pooler


def test_a_command_of_yours_promotes(promoter, clustered):  # noqa: F811
    """`pgweir ctl promote` runs it once, with both nodes; a client that was held goes on with the new primary."""
    pooler = promoting(clustered, promoter)
    old, new = promoter.pair.all
    hold = promoter.told("hold")
    with pooler.raw() as session:
        assert port_of(session) == old.port
        command = Later(lambda: ctl(pooler, "promote", "m2"))
        eventually(lambda: (promoter.folder / "held").exists(), "the program runs")
        assert shown(pooler)["switchover"] == "to m2: step 3, promote_command runs"
        waits = Later(lambda: session.query("insert into changes values ('n', 1)"))
        eventually(lambda: shown(pooler)["held_clients"] == "1", "a new transaction waits")
        hold.unlink()
        assert "SWITCHOVER" in command.value()[0]
        assert waits.value().errors == []
        assert port_of(session) == new.port
    (run,) = promoter.runs()
    assert run == f"now 127.0.0.1:{new.port} 127.0.0.1:{old.port}|main m2 127.0.0.1 {new.port}|m1 127.0.0.1 {old.port}"
    eventually(lambda: "promote_command has succeeded for node m2" in pooler.log(), "the program has ended")


def test_a_command_that_fails(promoter, clustered):  # noqa: F811
    """Its exit status and its last line are the error, its error output is in the log, and clients go on with the old primary."""
    pooler = promoting(clustered, promoter)
    promoter.told("refuse")
    said = ctl(pooler, "promote", "m2", code=1)[1]
    assert "promote_command did not switch over to m2: it ended with exit status 3: m1 cannot be fenced" in said
    assert "looking for m1" not in said and "looking for m1 m1 cannot be fenced" in pooler.log()
    with pooler.raw() as session:
        assert port_of(session) == promoter.pair.primary.port
    assert shown(pooler)["switchover_error"] in said


def test_a_command_is_never_run_twice_at_a_time(promoter, clustered):  # noqa: F811
    """A switchover that was canceled leaves its program running: until that has ended there is no other run."""
    pooler = promoting(clustered, promoter)
    hold = promoter.told("hold")
    command = switchover(pooler, "main TO m2")
    eventually(lambda: (promoter.folder / "held").exists(), "the program runs")
    pooler.admin("SWITCHOVER main CANCEL")
    assert "canceled" in error_of(command)
    assert "promote_command of an earlier switchover still runs" in error_of(switchover(pooler, "main TO m2"))
    assert len(promoter.runs()) == 1
    hold.unlink()
    eventually(lambda: node_states(pooler)["m2"] == "primary", "what has begun goes on")


def test_a_command_that_does_not_end(promoter, clustered):  # noqa: F811
    """After promote_command_timeout it is killed, and clients go on with the old primary."""
    pooler = promoting(clustered, promoter, promote_command_timeout=1)
    promoter.told("hold")
    assert "promote_command did not end in time" in error_of(switchover(pooler, "main TO m2"))
    pid = (promoter.folder / "pid").read_text().strip()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the program is gone")
    with pooler.raw() as session:
        assert port_of(session) == promoter.pair.primary.port
    assert node_states(pooler) == READY


def test_a_lost_primary_by_force(promoter, clustered):  # noqa: F811
    """While there is no primary, the command is run by force alone; clients that waited go on with the new one."""
    pooler = promoting(clustered, promoter)
    new = promoter.pair.all[1]
    with pooler.raw() as session:
        assert port_of(session) == promoter.pair.primary.port
        promoter.pair.primary.stop(signal.SIGQUIT)
        eventually(lambda: node_states(pooler)["m1"] == "down", "the primary is lost", timeout_s=20)
        waits = Later(lambda: session.query("insert into changes values ('n', 1)"))
        eventually(lambda: shown(pooler)["held_clients"] == "1", "a client waits")
        assert "SWITCHOVER main TO m2 FORCE promotes m2" in ctl(pooler, "promote", "m2", code=1)[1]
        assert not promoter.runs()
        ctl(pooler, "promote", "m2", "--force")
        assert waits.value().errors == []
        assert port_of(session) == new.port
    assert len(promoter.runs()) == 1

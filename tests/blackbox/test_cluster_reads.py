"""Reads from standbys, with real streaming replication: where transactions run, and what becomes of them when a standby goes."""

import contextlib
import signal

import psycopg
import pytest

from harness.machine import eventually

from test_clusters import Nodes, clustered, node_states, nodes, port_of  # noqa: F401: fixtures

TWO = {"m1": "primary", "m2": "standby"}


@pytest.fixture
def reading(poolers):
    """A function that starts a pooler with a database for each route. However slow the machine is, reads wait for a standby that has
    replayed what their client has seen, and do not go to the primary instead; and no test counts reads while a standby that was found
    later than the others still warms up."""

    def start(nodes, options=None, takes_reads=True, app="", **settings):
        options = {"causal_wait_ms": 20000, "warm_up_ms": 100, **(options or {})}
        databases = {
            "app": f"cluster=main {app}",
            "app_ro": "cluster=main dbname=app route=standby",
            "app_prefer": "cluster=main dbname=app route=prefer-standby",
        }
        pooler = poolers(databases, ini_tail=nodes.ini(**options), **settings)
        states = {f"m{n}": "standby" if n > 1 else "primary" for n in range(1, len(nodes.all) + 1)}
        eventually(lambda: node_states(pooler) == states, "all nodes are known")
        if takes_reads:
            eventually(lambda: has_whole_shares(pooler), "each standby takes its whole share of the reads", timeout_s=30)
        return pooler

    return start


def has_whole_shares(pooler):
    """Each standby is warm and near enough to take as many reads as its weight of 1 says."""
    return all(row["share"] == "1000" for row in pooler.show("NODES", state="standby"))


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_route_standby_reads_from_standbys_alone(nodes, reading, mode):  # noqa: F811
    """Every transaction runs on a standby, and a change gets PostgreSQL's error."""
    two = nodes(2)
    pooler = reading(two, pool_mode=mode)
    with pooler.raw(database="app_ro") as session:
        assert port_of(session) == two.all[1].port
        assert session.value("select pg_is_in_recovery()") == "t"
        assert session.query("insert into changes values ('x', 1)").errors[0]["C"] == "25006"
        assert port_of(session) == two.all[1].port
    with pooler.raw() as session:
        assert port_of(session) == two.all[0].port
        assert not session.query("insert into changes values ('x', 1)").errors


def test_two_standbys_share_the_reads(nodes, reading):  # noqa: F811
    """Clients with open transactions are spread over both standbys."""
    three = nodes(3)
    pooler = reading(three)

    def spread():
        """On a busy machine a standby may be asked too late, and takes no reads for a moment: that is waited for."""
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(pooler.raw(database="app_ro")) for _ in range(6)]
            ports = []
            for session in sessions:
                session.query("begin")
                ports.append(port_of(session))
            counts = [ports.count(node.port) for node in three.all[1:]]
            assert sum(counts) == 6, counts
            return min(counts) >= 2

    eventually(spread, "both standbys have two of six clients at least", timeout_s=30)


def test_a_session_chooses_its_route(nodes, reading):  # noqa: F811
    """SET pgweir.route holds from the next transaction on, and so does the startup option."""
    two = nodes(2)
    pooler = reading(two)
    primary, standby = (node.port for node in two.all)
    with pooler.raw() as session:
        assert port_of(session) == primary
        session.query("set pgweir.route = 'read-only'")
        assert port_of(session) == standby
        assert session.value("show pgweir.route") == "read-only"
        session.query("set pgweir.route = 'primary'")
        assert port_of(session) == primary
        session.query("reset pgweir.route")
        assert port_of(session) == primary


def test_libpq_finds_a_standby(nodes, reading):  # noqa: F811
    """target_session_attrs of libpq, and a startup option."""
    two = nodes(2)
    pooler = reading(two)
    with psycopg.connect(pooler.dsn(dbname="app_ro"), target_session_attrs="standby", autocommit=True) as session:
        assert session.execute("select pg_is_in_recovery()").fetchone() == (True,)
    with psycopg.connect(pooler.dsn(), options="-c pgweir.route=standby", autocommit=True) as session:
        assert session.execute("select pg_is_in_recovery()").fetchone() == (True,)


def test_a_standby_that_stops_and_comes_back(nodes, reading):  # noqa: F811
    """prefer-standby goes to the primary meanwhile; route=standby waits for it."""
    two = nodes(2)
    pooler = reading(two)
    primary, standby = two.all
    with pooler.raw(database="app_prefer") as session:
        assert port_of(session) == standby.port
    standby.stop(signal.SIGINT)
    eventually(lambda: node_states(pooler)["m2"] != "standby", "its end is seen")
    with pooler.raw(database="app_prefer") as session:
        assert port_of(session) == primary.port
    standby.start()
    with pooler.raw(database="app_ro") as session:
        assert port_of(session) == standby.port


def test_reads_go_on_without_a_primary_and_follow_a_promotion(nodes, reading):  # noqa: F811
    """The standby that stays serves reads throughout. With `causal_reads=off`: here it does not follow the new primary, so nothing says
    that it has what the other one has shown."""
    three = nodes(3)
    pooler = reading(three, options={"causal_reads": "off"})
    old, new, other = three.all
    with pooler.raw(database="app_ro") as session:
        old.stop(signal.SIGQUIT)
        eventually(lambda: node_states(pooler)["m1"] == "down", "the primary is down")
        assert port_of(session) in (new.port, other.port)
        new.promote()
        eventually(lambda: node_states(pooler)["m2"] == "primary", "the promotion is seen")
        for _ in range(5):
            assert port_of(session) == other.port


def test_a_standby_that_lags_gets_no_reads(nodes, reading):  # noqa: F811
    """A standby whose replay is paused is behind; when replay goes on, it reads again."""
    two = nodes(2)
    pooler = reading(two, options={"lag_limit_ms": 600})
    primary, standby = two.all
    standby.sql("select pg_wal_replay_pause()")
    primary.sql("insert into changes values ('x', 1)")

    def share():
        return pooler.show("NODES", node="m2")[0]["share"]

    eventually(lambda: share() == "0", "it is behind")
    assert int(pooler.show("NODES", node="m2")[0]["lag_ms"]) >= 600
    with pooler.raw(database="app_prefer") as session:
        assert port_of(session) == primary.port
    standby.sql("select pg_wal_replay_resume()")
    eventually(lambda: share() == "1000", "it has caught up")
    with pooler.raw(database="app_ro") as session:
        assert port_of(session) == standby.port


def test_a_standby_that_was_ahead_of_the_promoted_one_is_refused(nodes, reading):  # noqa: F811
    """It shows rows that the cluster's history does not have, so no client reads there, and SHOW NODES says what to do."""
    three = nodes(3)
    pooler = reading(three)
    old, new, ahead = three.all
    new.sql("alter system set primary_conninfo = ''")
    new.sql("select pg_reload_conf()")
    eventually(lambda: not new.sql("select 1 from pg_stat_wal_receiver"), "it receives nothing any more")
    old.sql("insert into changes select 'lost', n from generate_series(1, 10000) n")
    eventually(lambda: ahead.sql("select count(*) from changes") == [(10000,)], "the other standby has all")
    old.stop(signal.SIGQUIT)
    eventually(lambda: node_states(pooler)["m1"] == "down", "the primary is down")
    new.promote()
    eventually(lambda: node_states(pooler) == {"m1": "down", "m2": "primary", "m3": "refused"}, "it cannot follow")
    assert "pg_rewind" in pooler.show("NODES", node="m3")[0]["last_error"]
    with pooler.raw(database="app_prefer") as session:
        assert session.value("select count(*) from changes") == "0"

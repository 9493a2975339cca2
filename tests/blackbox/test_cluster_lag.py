"""The lag of standbys as a statement tells it, with real streaming replication."""

import shutil

import pytest

from harness.machine import eventually, give, scratch_folder

from test_cluster_reads import reading  # noqa: F401: fixture
from test_clusters import node_states, nodes, port_of  # noqa: F401: fixtures

QUERY = "'select greatest(0, extract(epoch from clock_timestamp() - written)) from heartbeat'"


def heartbeat(primary, age):
    """The table says that it was written so many seconds ago."""
    primary.sql("create table if not exists heartbeat (written timestamptz not null)")
    primary.sql("grant select on heartbeat to checker")
    primary.sql("delete from heartbeat")
    primary.sql(f"insert into heartbeat values (now() - interval '{age} s')")


def row(pooler, node="m2"):
    """Its row of SHOW NODES."""
    return pooler.show("NODES", node=node)[0]


def test_a_heartbeat_table_tells_the_lag(nodes, reading):  # noqa: F811
    """The statement's number counts in place of the positions, and its errors keep reads away without taking the node down."""
    two = nodes(2)
    primary, standby = two.all
    heartbeat(primary, -3600)
    pooler = reading(two, options={"lag_query": QUERY, "check_dbname": "app", "lag_limit_ms": 60000})
    eventually(lambda: row(pooler)["share"] == "1000", "its heartbeat is new")
    assert (row(pooler)["lag_ms"], row(pooler, "m1")["lag_ms"]) == ("0", None)
    heartbeat(primary, 100)
    eventually(lambda: row(pooler)["share"] == "0", "its heartbeat is old")
    # Between a check and the answer to its question the lag may be unknown.
    eventually(lambda: int(row(pooler)["lag_ms"] or 0) >= 100_000, "its lag is shown")
    assert row(pooler)["last_error"] is None
    with pooler.raw(database="app_prefer") as session:
        assert port_of(session) == primary.port
    heartbeat(primary, 0)
    eventually(lambda: row(pooler)["share"] == "1000", "its heartbeat is new again")
    with pooler.raw(database="app_ro") as session:
        assert port_of(session) == standby.port

    primary.sql("drop table heartbeat")
    eventually(lambda: row(pooler)["share"] == "0", "it tells nothing")
    assert 'relation "heartbeat" does not exist' in row(pooler)["last_error"]
    assert node_states(pooler) == {"m1": "primary", "m2": "standby"}
    heartbeat(primary, 0)
    eventually(lambda: row(pooler)["share"] == "1000", "it tells its lag again")
    assert row(pooler)["last_error"] is None


def test_a_slow_statement_takes_no_node_down(nodes, reading):  # noqa: F811
    """The role is asked at each check, however long the lag takes."""
    two = nodes(2)
    primary, standby = two.all
    pooler = reading(two, options={"lag_query": "'select 0 from pg_sleep(60)'"}, takes_reads=False)
    eventually(lambda: "in time" in (row(pooler)["last_error"] or ""), "it has taken too long")
    assert (row(pooler)["state"], row(pooler)["share"]) == ("standby", "0")
    with pooler.raw(database="app_prefer") as session:
        assert port_of(session) == primary.port
    primary.stop()
    standby.promote()
    eventually(lambda: node_states(pooler)["m2"] == "primary", "the promotion is seen")
    with pooler.raw() as session:
        assert port_of(session) == standby.port


PROGRAM = """#!/bin/sh
# It says what it was given, and how much of pgweir's it could touch.
test "$1 $2" = "-v $PGWEIR_HOST:$PGWEIR_PORT" || exit 9
ls -l /proc/self/fd > "$0.new" && mv "$0.new" "$0.fds"
echo "$PGWEIR_CLUSTER $PGWEIR_NODE is asked" >&2
cat "$0.lag"
"""


@pytest.fixture
def folder():
    """A folder of the account that the pooler runs as."""
    path = scratch_folder("lag")
    yield path
    shutil.rmtree(path)


def test_a_program_tells_the_lag(nodes, reading, folder):  # noqa: F811
    """It is run for each standby, gets none of pgweir's descriptors, and a failure keeps reads away without taking the node down."""
    two = nodes(2)
    program = folder / "lag"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    lag = folder / "lag.lag"
    lag.write_text("250\n")
    give(folder)
    pooler = reading(two, options={"lag_command": f"'{program} -v'", "lag_limit_ms": 60000})
    eventually(lambda: row(pooler)["lag_ms"] == "250", "the program has told")
    assert row(pooler)["share"] == "1000"
    descriptors = [line.split(" -> ")[1] for line in (folder / "lag.fds").read_text().splitlines() if " -> " in line]
    assert not [one for one in descriptors if one.startswith("socket:") or one.startswith("anon_inode")], descriptors
    assert pooler.logged("lag_command says of node m2: main m2 is asked")
    lag.write_text("soon\n")
    eventually(lambda: row(pooler)["share"] == "0", "it prints no number")
    assert "no number of milliseconds" in row(pooler)["last_error"]
    assert node_states(pooler) == {"m1": "primary", "m2": "standby"}
    lag.write_text("0\n")
    eventually(lambda: row(pooler)["share"] == "1000", "it tells the lag again")

"""The lag of standbys as a statement tells it, with real streaming replication."""

from harness.machine import eventually

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
    assert int(row(pooler)["lag_ms"]) >= 100_000 and row(pooler)["last_error"] is None
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
    pooler = reading(two, options={"lag_query": "'select 0 from pg_sleep(60)'"})
    eventually(lambda: "in time" in (row(pooler)["last_error"] or ""), "it has taken too long")
    assert (row(pooler)["state"], row(pooler)["share"]) == ("standby", "0")
    with pooler.raw(database="app_prefer") as session:
        assert port_of(session) == primary.port
    primary.stop()
    standby.promote()
    eventually(lambda: node_states(pooler)["m2"] == "primary", "the promotion is seen")
    with pooler.raw() as session:
        assert port_of(session) == standby.port

"""deploy/sql/pgweir.sql: the console as views and functions of PostgreSQL, on each version."""

import os
import subprocess

import psycopg
import pytest

from harness.cluster import DISTRIBUTION
from harness.machine import REPOSITORY, eventually
from harness.pooler import kind
from test_clusters import clustered, node_states, nodes  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such script")

SCRIPT = REPOSITORY / "deploy/sql/pgweir.sql"
VIEWS = ["clusters", "nodes", "pools", "clients", "servers", "databases", "users", "statements", "percentiles", "totals", "config"]


@pytest.fixture
def installed(cluster_of):
    """A function that installs the script in a new database of this server, and gives a superuser's connection to it."""
    made = []

    def install(major, pooler):
        server = cluster_of(major)
        server.sql("create database with_pgweir")
        conninfo = f"host={server.folder} port={server.port} user=postgres dbname=with_pgweir"
        made.append((server, conninfo))
        for _ in range(2):
            # Twice: the second run replaces the first.
            command = ["psql", "-XqAt", "-v", f"port={pooler.port}", "-f", str(SCRIPT), conninfo]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PGWEIR_PASSWORD": "pw-of-admin"}, stdin=subprocess.DEVNULL)
            assert done.returncode == 0 and not done.stderr, done.stderr
        session = psycopg.connect(conninfo, autocommit=True)
        made[-1] += (session,)
        return session

    yield install
    for server, _, *sessions in made:
        for session in sessions:
            session.close()
        server.sql("drop database with_pgweir with (force)")
        server.sql("drop role if exists watcher, operator")


@pytest.mark.parametrize("major", sorted({"14", DISTRIBUTION, "16", "17", "18"}))
def test_the_script(nodes, clustered, installed, major):  # noqa: F811
    """Every view has rows as SHOW has them, the functions do what they say, and both need a grant."""
    pooler = clustered(nodes(2))
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    with pooler.raw() as session:
        session.query("select 1")
        admin = installed(major, pooler)
        for view in VIEWS:
            cursor = admin.execute(f"select * from pgweir.{view}")
            assert cursor.fetchall(), view
            assert [column.name for column in cursor.description] == list(pooler.show(view)[0]), view
        ask = "select node, role, switch, port > 0 from pgweir.nodes order by node"
        assert admin.execute(ask).fetchall() == [("m1", "primary", "attached", True), ("m2", "standby", "attached", True)]
        assert admin.execute("select pgweir.drain_node('main.m2')").fetchone() == ("DRAIN NODE",)
        assert admin.execute(ask).fetchall()[1][2] == "draining"
        admin.execute("select pgweir.attach_node('main.m2')")
        assert admin.execute(ask).fetchall()[1][2] == "attached"
        admin.execute("select pgweir.pause('app')")
        assert admin.execute("select paused from pgweir.databases where name = 'app'").fetchone() == (1,)
        admin.execute("select pgweir.resume('app')")
        with pytest.raises(psycopg.Error, match='"x""; SHUTDOWN"'):
            # The name stays one name.
            admin.execute("""select pgweir.detach_node('x"; SHUTDOWN')""")
        [client] = admin.execute("select id from pgweir.clients where database = 'app'").fetchone()
        admin.execute("select pgweir.kill_client(%s)", [client])
    eventually(lambda: not pooler.show("CLIENTS", database="app"), "the client is gone")
    admin.execute("create role watcher in role pg_monitor")
    admin.execute("create role operator")
    admin.execute("grant execute on function pgweir.drain_node(text) to operator")
    admin.execute("set role watcher")
    assert len(admin.execute("select * from pgweir.pools").fetchall()) > 0
    for refused in ("select pgweir.drain_node('main.m2')", "select pgweir.run('SHUTDOWN')", "select umoptions from pg_user_mapping"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute(refused)
    admin.execute("reset role")
    admin.execute("set role operator")
    assert admin.execute("select pgweir.drain_node('main.m2')").fetchone() == ("DRAIN NODE",)
    for refused in ("select pgweir.attach_node('main.m2')", "select pgweir.run('SHUTDOWN')", "select * from pgweir.pools"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute(refused)
    admin.execute("reset role")

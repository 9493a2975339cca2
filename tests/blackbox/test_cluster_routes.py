"""Which node a client's transactions run on, and what is counted of it, with real streaming replication."""

import urllib.request

import psycopg

from harness.machine import eventually, free_port

from test_cluster_reads import reading  # noqa: F401: a fixture
from test_takeover import over, successor
from test_clusters import clustered, node_states, nodes, port_of, shown  # noqa: F401: fixtures


def at_node(pooler, node, *columns):
    """Numbers of a node's row in SHOW NODES."""
    row = pooler.show("NODES", node=node)[0]
    return [int(row[column]) for column in columns]


def test_reads_of_each_node_are_counted(nodes, reading):  # noqa: F811
    """SHOW NODES and /metrics have what a standby was sent; reads that fall back to the primary are counted with the reason."""
    two, port = nodes(2), free_port()
    pooler = reading(two, options={"lag_limit_ms": 600}, http_listen=f"127.0.0.1:{port}", http_anonymous="all")

    def metrics():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    with pooler.raw(database="app_prefer") as session:
        assert at_node(pooler, "m2", "reads") == [0]
        session.query("begin")
        session.query("select 1")
        assert at_node(pooler, "m2", "sv_active", "reads") == [1, 1]
        session.query("commit")
        session.query("select 1")
        eventually(lambda: at_node(pooler, "m2", "sv_active", "sv_idle", "cl_waiting", "reads") == [0, 1, 0, 2], "both are over")
        assert 'pgweir_node_reads_total{cluster="main",node="m2"} 2\n' in metrics()
        assert 'pgweir_node_idle_connections{cluster="main",node="m2"} 1\n' in metrics()
        pooler.admin("DETACH NODE main.m2")
        assert port_of(session) == two.primary.port
        assert at_node(pooler, "m1", "reads") == [1]
        assert 'pgweir_reads_fell_back_total{cluster="main",reason="no_standby"} 1\n' in metrics()
        pooler.admin("ATTACH NODE main.m2")
        two.all[1].sql("select pg_wal_replay_pause()")
        two.primary.sql("insert into changes values ('x', 1)")
        eventually(lambda: at_node(pooler, "m2", "share") == [0], "it is behind")
        assert port_of(session) == two.primary.port
        assert (shown(pooler)["fell_back_no_standby"], shown(pooler)["fell_back_lag"]) == ("1", "1")
        assert 'pgweir_reads_fell_back_total{cluster="main",reason="lag"} 1\n' in metrics()


def test_a_line_of_routes_sends_an_application_elsewhere(nodes, poolers):  # noqa: F811
    """A client's application_name, at its login or later, decides; SHOW CLIENTS_EXTENDED says so; a reload takes the line away."""
    three = nodes(3)
    lines = "[routes]\nbi = application_name=meta* node=m3\n"
    ini = three.ini(causal_wait_ms=20000).replace(f"m3 = host=127.0.0.1 port={three.all[2].port}", f"m3 = host=127.0.0.1 port={three.all[2].port} weight=0")
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini + lines)
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby", "m3": "standby"}, "all nodes are known")
    with psycopg.connect(pooler.dsn(), application_name="metabase", autocommit=True) as bi:
        port = "select inet_server_port()"
        assert bi.execute(port).fetchone() == (three.all[2].port,)
        row = pooler.show("CLIENTS_EXTENDED", application_name="metabase")[0]
        assert (row["route"], row["route_by"]) == ("node m3", "routes bi")
        bi.execute("set application_name = 'psql'")
        assert bi.execute(port).fetchone() == (three.primary.port,)
        bi.execute("set application_name = 'metabase'")
        assert bi.execute(port).fetchone() == (three.all[2].port,)
        pooler.admin("DETACH NODE main.m3")
        assert bi.execute(port).fetchone() == (three.all[1].port,), "an unusable node means prefer-standby"
        pooler.ini_tail = ini
        pooler.write_ini()
        pooler.reload()
        assert bi.execute(port).fetchone() == (three.primary.port,)
    with psycopg.connect(pooler.dsn(), autocommit=True) as other:
        assert other.execute(port).fetchone() == (three.primary.port,)


def test_the_second_port_is_for_standbys(nodes, poolers):  # noqa: F811
    """TCP and the unix socket, several workers; clients keep their route over an online restart, and the new process has the ports."""
    two, second = nodes(2), free_port()
    pooler = poolers({"app": "cluster=main"}, ini_tail=two.ini(), standby_listen_port=second, workers=2, start=False)
    pooler.write_ini(pidfile=str(pooler.folder / "pid"))
    pooler.start()
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    port, standby = "select inet_server_port()", (two.all[1].port,)

    def connect(host, port):
        return psycopg.connect(pooler.dsn(host=host, port=port), autocommit=True)

    with pooler.raw() as usual, connect("127.0.0.1", second) as by_tcp, connect(pooler.folder, second) as by_unix:

        def look():
            assert port_of(usual) == two.primary.port
            assert by_tcp.execute(port).fetchone() == by_unix.execute(port).fetchone() == standby
            with connect("127.0.0.1", second) as another, connect(pooler.folder, second) as yet_another:
                assert another.execute(port).fetchone() == yet_another.execute(port).fetchone() == standby

        look()
        over(successor(pooler))
        look()
        by_tcp.execute("set pgweir.route = 'primary'")
        assert by_tcp.execute(port).fetchone() == (two.primary.port,), "a session goes first"

"""What the pooler itself says to servers: connect_query, check and reset queries, and which server it chooses."""

import time

import psycopg
import pytest

from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually, give
from harness.wire import Closed, query


def test_connect_query(pooled, pg):
    """connect_query runs once on each new server before any client's statement."""
    pg.sql("create table if not exists connects (n serial, pid int); truncate connects; grant all on connects, connects_n_seq to public")
    pooler = pooled(databases={"own": pg.at("app", connect_query="insert into connects (pid) values (pg_backend_pid())")}, default_pool_size=2)
    with pooler.raw("own") as one, pooler.raw("own") as two:
        one.query("begin")
        assert two.value("select count(*) from connects where pid = pg_backend_pid()") == "1"
        assert one.value("select count(*) from connects where pid = pg_backend_pid()") == "1"
        one.query("commit")
        for _ in range(3):
            one.query("select 1")
    assert pg.sql("select count(*) from connects") == [(2,)]


def test_a_failing_connect_query_is_no_obstacle(pooled, pg):
    """An error in connect_query is logged, and the server is used."""
    pooler = pooled(databases={"own": pg.at("app", connect_query="select nonsense")})
    with pooler.raw("own") as session:
        assert session.value("select 1") == "1"


@pytest.mark.needs("failed hidden statements close the server")
@pytest.mark.parametrize("spoils", ["begin", "select pg_terminate_backend(pg_backend_pid())"])
def test_a_connect_query_that_spoils_its_server(pooled, pg, spoils):
    """A server that is of no use after it: the next is tried after server_login_retry, and a client that comes meanwhile is told why."""
    pooler = pooled(databases={"own": pg.at("app", connect_query=spoils)}, server_login_retry=1, query_wait_timeout=3)
    with pytest.raises(Closed) as closed, pooler.raw("own") as session:
        session.query("select 1")
    assert "query_wait_timeout" in closed.value.error["M"] or "connect_query failed" in closed.value.error["M"]
    assert 1 <= pooler.log().count("new connection to server") <= 6


def test_several_statements_in_connect_query(pooled, pg):
    """connect_query may hold several statements and quotes; no client sees its results."""
    pooler = pooled(databases={"own": pg.at("app", connect_query="set geqo = 'off'; select 'not for clients'; set work_mem = '7MB'")})
    with pooler.raw("own") as session:
        assert session.query("show geqo").rows == [["off"]]
        assert session.value("show work_mem") == "7MB"


def test_reset_query_in_session_mode(pooled):
    """A reset query of one's own, in session mode, on every release."""
    pooler = pooled(pool_mode="session", default_pool_size=1, server_reset_query="set work_mem = '9MB'")
    with pooler.raw() as one:
        assert one.value("show work_mem") != "9MB"
    with pooler.raw() as two:
        assert two.value("show work_mem") == "9MB"


def test_reset_query_not_in_transaction_mode(pooled):
    """In transaction mode the reset query does not run, unless server_reset_query_always says so."""
    pooler = pooled(default_pool_size=1, server_reset_query="set work_mem = '9MB'")
    with pooler.raw() as session:
        session.query("select 1")
        assert session.value("show work_mem") != "9MB"
    pooler = pooled(default_pool_size=1, server_reset_query="set work_mem = '9MB'", server_reset_query_always=1)
    with pooler.raw() as session:
        session.query("select 1")
        assert session.value("show work_mem") == "9MB"


@pytest.mark.needs("failed hidden statements close the server")
def test_a_failing_reset_query_closes_the_server(pooled, pg):
    """A server that cannot be cleaned is not given to the next client."""
    pooler = pooled(pool_mode="session", default_pool_size=1, server_reset_query="select nonsense")
    with pooler.raw() as one:
        first = one.value("select pg_backend_pid()")
    with pooler.raw() as two:
        assert two.value("select pg_backend_pid()") != first


def test_no_reset_query(pooled):
    """An empty server_reset_query: the next client of a session pool inherits the session, as documented."""
    pooler = pooled(pool_mode="session", default_pool_size=1, server_reset_query="")
    with pooler.raw() as one:
        one.query("set work_mem = '11MB'")
    with pooler.raw() as two:
        assert two.value("show work_mem") == "11MB"


def test_server_check_finds_dead_servers(pooled, pg):
    """server_check_delay = 0: a server is probed before each use, with a query of one's own."""
    pg.sql("create table if not exists probes (n serial); truncate probes; grant all on probes, probes_n_seq to public")
    pooler = pooled(default_pool_size=1, server_check_delay=0, server_check_query="insert into probes default values")
    with pooler.raw() as session:
        for _ in range(5):
            assert session.value("select 1") == "1"
    assert pg.sql("select count(*) from probes")[0][0] >= 4


def test_the_default_check_leaves_no_trace(pooled):
    """The default server_check_query with server_check_delay = 0: clients notice nothing."""
    pooler = pooled(default_pool_size=1, server_check_delay=0)
    with pooler.raw() as session:
        for n in range(20):
            assert session.query(f"select {n}").tags == "TDCZ"


@pytest.mark.needs("failed hidden statements close the server")
def test_a_failing_check_query_closes_the_server(pooled, pg):
    """A check query that turns bad: the server is replaced instead of being used."""
    pg.sql("drop table if exists probe_me; create table probe_me (n int); grant all on probe_me to public")
    pooler = pooled(default_pool_size=1, server_check_delay=0, server_check_query="select 1 / (1 - count(*)) from probe_me")
    with pooler.raw() as session:
        first = session.value("select pg_backend_pid()")
        assert session.value("select pg_backend_pid()") == first
        pg.sql("insert into probe_me values (1)")
        session.value("select 1")
        assert session.value("select pg_backend_pid()") != first


def idle_order(pooler):
    """Opens three servers, releases them in a known order, and returns (that order, the pids of the next three single uses)."""
    sessions = [pooler.raw() for _ in range(3)]
    for session in sessions:
        session.query("begin")
    order = [session.value("select pg_backend_pid()") for session in sessions]
    for session in sessions:
        session.query("commit")
    used = [sessions[0].value("select pg_backend_pid()") for _ in range(3)]
    for session in sessions:
        session.hang_up()
    return order, used


def test_last_used_server_first(pooled):
    """Without server_round_robin the server that was used last is used next: the other servers can grow old."""
    order, used = idle_order(pooled(default_pool_size=3))
    assert used == [order[-1]] * 3


def test_server_round_robin(pooled):
    """With server_round_robin the server that has been idle longest is next: all are used evenly."""
    order, used = idle_order(pooled(default_pool_size=3, server_round_robin=1))
    assert used == order


def test_servers_over_a_unix_socket(pooled, pg):
    """host=/folder leads to PostgreSQL's unix socket, host unset to unix_socket_dir."""
    line = f"host={pg.folder} port={pg.port} dbname=app"
    pooler = pooled(databases={"local": line})
    with pooler.raw("local") as session:
        assert session.value("select inet_server_addr() is null") == "t"
        assert pooler.servers(database="local")[0]["addr"] == "unix"


def test_fallback_database(pooled, pg):
    """The line `*` serves every name that has no line of its own, under that name."""
    pooler = pooled(databases={"*": f"host=127.0.0.1 port={pg.port}"})
    with pooler.raw("postgres") as session:
        assert session.value("select current_database()") == "postgres"
    pooler.logged("registered new auto-database")
    assert pooler.show("DATABASES", name="postgres")


def test_forced_user(pooled, pg):
    """`user=` in a [databases] line: every client shares one pool, logged in as that role."""
    pooler = pooled(databases={"forced": pg.at("app", user="bob")}, default_pool_size=1)
    with pooler.raw("forced", "alice") as one, pooler.raw("forced", "carol") as two:
        pids = {one.value("select pg_backend_pid()"), two.value("select pg_backend_pid()")}
        assert len(pids) == 1
        assert one.value("select current_user") == "bob"


def test_dbname_is_not_the_name(pooled, pg):
    """The database's name at the pooler and at PostgreSQL may differ."""
    pooler = pooled(databases={"alias": pg.at("app2")})
    with pooler.raw("alias") as session:
        assert session.value("select current_database()") == "app2"


def test_a_list_of_hosts(pooled, pg, cluster_of):
    """host=a,b: new connections go round over the list."""
    line = f"host=127.0.0.1,localhost port={pg.port} dbname=app"
    pooler = pooled(databases={"many": line}, default_pool_size=4)
    sessions = [pooler.raw("many") for _ in range(4)]
    for session in sessions:
        session.send(query("begin"))
        session.until("Z")
    assert len(pg.backends("app")) == 4
    for session in sessions:
        session.hang_up()


@pytest.fixture
def standby(certificates):
    """A server in recovery that can be promoted."""
    server = Cluster(DISTRIBUTION, certificates)
    server.stop()
    (server.data / "standby.signal").touch()
    give(server.data)
    server.start()
    yield server
    server.discard()


@pytest.mark.needs("promotions told")
def test_new_clients_hear_of_a_promotion(poolers, standby):
    """target_session_attrs, as drivers have it, goes by what clients are told at login: with the servers that are there."""
    pooler = poolers({"app": standby.at("app")})
    with pooler.connect() as reader:
        assert reader.execute("select pg_is_in_recovery()").fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError, match="standby"):
            pooler.connect(target_session_attrs="primary")
        standby.sql("select pg_promote()")
        assert reader.execute("select pg_is_in_recovery()").fetchone() == (False,)
    with pooler.connect(target_session_attrs="primary") as writer:
        writer.execute("insert into scratch values (1, 1)")
    with pytest.raises(psycopg.OperationalError, match="standby"):
        pooler.connect(target_session_attrs="standby")


def test_server_release_is_immediate(pooled):
    """A chain of clients over one server: each hand-over happens at once, not at the next tick of a timer."""
    pooler = pooled(default_pool_size=1)
    sessions = [pooler.raw() for _ in range(50)]
    start = time.monotonic()
    for session in sessions:
        session.send(query("select 1"))
    for session in sessions:
        session.until("Z")
        session.hang_up()
    assert time.monotonic() - start < 10, "a third of a second each would take seventeen seconds"


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_clients_that_send_nothing_hold_no_server(pooled, mode):
    """Clients that log in and never send a statement hold no server in transaction mode, nor in session mode."""
    pooler = pooled(pool_mode=mode, default_pool_size=1)
    sessions = [pooler.raw() for _ in range(5)]
    assert sessions[3].value("select 1") == "1"
    eventually(lambda: len(pooler.servers()) <= 1, "at most one server")
    for session in sessions:
        session.hang_up()

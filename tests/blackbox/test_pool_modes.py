"""Session, transaction and statement pooling: when a server is given back, and which client gets it."""

import threading

import psycopg
import pytest

from harness.machine import eventually
from harness.wire import query


def backend_of(connection):
    return connection.execute("select pg_backend_pid()").fetchone()[0]


def test_transaction_mode_shares_one_server_between_clients(pooled, pg):
    """Ten clients that are between transactions need one server between them."""
    pooler = pooled(default_pool_size=1)
    clients = [pooler.connect() for _ in range(10)]
    assert len({backend_of(client) for client in clients}) == 1
    assert len(pg.backends("app")) == 1


def test_transaction_mode_keeps_the_server_until_commit(pooled):
    """Inside a transaction the server is the client's own; another client waits until commit."""
    pooler = pooled(default_pool_size=1)
    one, two = pooler.connect(), pooler.connect()
    one.execute("begin")
    one.execute("insert into scratch values (1, 1)")
    answered = threading.Event()
    waiter = threading.Thread(target=lambda: (two.execute("select 1"), answered.set()))
    waiter.start()
    eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the second client waits")
    assert not answered.is_set()
    one.execute("rollback")
    waiter.join(10)
    assert answered.is_set()


def test_transaction_mode_rolls_over_failed_transactions(pooled):
    """A failed transaction keeps its server too, until the client rolls back."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        assert one.query("begin").status == "T"
        assert one.query("select 1/0").status == "E"
        two.send(query("select 1"))
        assert two.quiet(0.3)
        assert one.query("rollback").status == "I"
        assert two.until("Z").rows == [["1"]]


def test_session_mode_keeps_the_server_until_the_client_leaves(pooled, pg):
    """In session mode each client has its own server from its first query to its end."""
    pooler = pooled(pool_mode="session", default_pool_size=2)
    one, two = pooler.connect(), pooler.connect()
    first = backend_of(one)
    assert backend_of(two) != first
    assert backend_of(one) == first
    three = pooler.connect()
    answered = threading.Event()
    seen = []
    waiter = threading.Thread(target=lambda: (seen.append(backend_of(three)), answered.set()))
    waiter.start()
    eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the third client waits")
    assert not answered.is_set()
    one.close()
    waiter.join(10)
    assert seen == [first]
    assert len(pg.backends("app")) == 2


def test_session_mode_cleans_the_server_for_the_next_client(pooled):
    """server_reset_query (DISCARD ALL) takes away what the last client left in its session."""
    pooler = pooled(pool_mode="session", default_pool_size=1)
    with pooler.connect() as one:
        pid = backend_of(one)
        one.execute("set work_mem = '7MB'")
        one.execute("create temp table mine (a int)")
        one.execute("prepare p as select 1")
    with pooler.connect() as two:
        assert backend_of(two) == pid
        assert two.execute("show work_mem").fetchone()[0] != "7MB"
        assert two.execute("select count(*) from pg_prepared_statements").fetchone()[0] == 0
        with pytest.raises(psycopg.errors.UndefinedTable):
            two.execute("select * from mine")


def test_statement_mode_serves_single_statements(pooled, pg):
    """In statement mode single statements of many clients share a server."""
    pooler = pooled(pool_mode="statement", default_pool_size=1)
    clients = [pooler.connect() for _ in range(5)]
    assert len({backend_of(client) for client in clients}) == 1
    assert len(pg.backends("app")) == 1


def test_statement_mode_refuses_transactions(pooled):
    """A transaction block in statement mode ends the client with a reason, and disturbs no other client."""
    pooler = pooled(pool_mode="statement", default_pool_size=1)
    with pooler.raw() as other, pooler.raw() as client:
        assert other.value("select 1") == "1"
        client.send(query("begin"))
        ended = client.until_closed()
        assert "transaction blocks not allowed in statement pooling mode" in ended.errors[-1]["M"]
        assert ended.errors[-1]["S"] == "FATAL"
        assert other.value("select 2") == "2"


def test_pool_mode_of_a_database_wins_over_the_global_one(pooled, pg):
    """`pool_mode` in a [databases] line."""
    pooler = pooled(databases={"own": pg.at("app", pool_mode="session")}, default_pool_size=5)
    with pooler.connect("own") as one, pooler.connect("own") as two:
        assert backend_of(one) != backend_of(two)
    with pooler.connect("app") as one, pooler.connect("app") as two:
        assert backend_of(one) == backend_of(two)


def test_pool_mode_of_a_user_wins_over_the_database(pooled, pg):
    """`pool_mode` in a [users] line."""
    pooler = pooled(databases={"own": pg.at("app", pool_mode="transaction")}, users={"bob": "pool_mode=session"}, default_pool_size=5)
    with pooler.connect("own", "bob") as one, pooler.connect("own", "bob") as two:
        assert backend_of(one) != backend_of(two)
    with pooler.connect("own", "alice") as one, pooler.connect("own", "alice") as two:
        assert backend_of(one) == backend_of(two)


def test_pools_are_per_database_and_user(pooled, pg):
    """Two users, two databases: four pools, four servers, each logged in as its own role."""
    pooler = pooled(default_pool_size=1)
    for database in ("app", "app2"):
        for user in ("alice", "bob"):
            with pooler.connect(database, user) as client:
                assert client.execute("select current_database(), current_user").fetchone() == (database, user)
    assert len(pg.backends("app")) == 2 and len(pg.backends("app2")) == 2
    pools = {(row["database"], row["user"]) for row in pooler.show("POOLS")}
    assert {(d, u) for d in ("app", "app2") for u in ("alice", "bob")} <= pools


def test_a_queue_is_served_in_order(pooled):
    """First come, first served: clients that wait for the only server get it in the order in which they asked."""
    pooler = pooled(default_pool_size=1)
    holder = pooler.raw()
    holder.query("begin")
    clients = [pooler.raw() for _ in range(8)]
    for number, client in enumerate(clients, start=1):
        client.send(query("select clock_timestamp()::text from pg_sleep(0.01)"))
        eventually(lambda wanted=number: pooler.pool()["cl_waiting"] == wanted, f"{number} clients wait")
    holder.query("commit")
    times = [client.until("Z").rows[0][0] for client in clients]
    assert times == sorted(times)


@pytest.fixture
def slow_commit(pg):
    """A write to `judged` waits at COMMIT for the holder of a lock; gives the connection that holds it."""
    pg.sql("drop table if exists judged")
    pg.sql("create table judged (n int)")
    pg.sql(
        "create or replace function judge() returns trigger language plpgsql as "
        "'begin perform pg_advisory_xact_lock(4077); return null; end'"
    )
    pg.sql(
        "create constraint trigger judged after insert on judged deferrable initially deferred "
        "for each row execute function judge()"
    )
    pg.sql("grant all on judged to public")
    with pg.connect() as judge:
        judge.execute("select pg_advisory_lock(4077)")
        yield judge
    pg.sql("drop table judged")


@pytest.mark.parametrize("defer", ["packet", "server", "off"])
def test_session_mode_sends_begin_with_the_first_statement(pooled, pg, defer):
    """A BEGIN is answered at once; the transaction begins with its first statement, unless that is turned off."""
    pooler = pooled(pool_mode="session", defer_begin=defer)
    with pooler.raw() as client:
        client.query("create temp table mine (n int)")
        pid = int(client.query("select pg_backend_pid()").rows[0][0])

        def state():
            return pg.sql(f"select state from pg_stat_activity where pid = {pid}")[0][0]

        assert client.query("begin").status == "T"
        assert state() == ("idle in transaction" if defer == "off" else "idle")
        assert client.query("insert into mine values (1)").status == "T"
        assert state() == "idle in transaction"
        assert client.query("rollback").status == "I"
        assert client.query("begin").status == "T"
        assert client.query("commit").status == "I"
        assert client.query("select count(*), pg_backend_pid() from mine").rows == [["0", str(pid)]]


def test_session_mode_tells_of_notifications_at_the_end_of_a_transaction(pooled, pg):
    """Between its BEGIN, which the server may not know of, and its COMMIT a client is told of nothing."""
    pooler = pooled(pool_mode="session")
    with pooler.raw() as client:
        client.query("listen news")
        assert client.query("begin").status == "T"
        pg.sql("notify news, 'early'")
        assert client.quiet(0.3)
        assert not client.query("select 1").of("A")
        tags = [message.tag for message in client.query("commit").messages]
        assert tags.index("A") < tags.index("Z")
        assert client.query("begin").status == "T"
        pg.sql("notify news, 'empty'")
        assert client.quiet(0.3)
        client.query("commit")
        assert client.until("A")

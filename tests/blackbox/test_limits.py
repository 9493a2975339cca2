"""How many servers and how many clients: every limit holds, also under a rush, and a client that exceeds one is told which."""

import threading
import time

import pytest

from harness.cluster import PASSWORDS
from harness.machine import eventually
from harness.wire import SYNC, Closed, bind, close, describe, execute, group, parse, query


def rush(pooler, clients, seconds=1.0, database="app", users=("alice",), watch=None, expected=0):
    """Many clients run statements for a while that are too long to share a server; returns (statements done, errors, highest value that `watch` saw).

    It goes on for longer where `watch` has not seen the expected value yet: on a busy machine servers are opened slowly."""
    begin, done, errors, highest = time.monotonic(), [], [], 0

    def is_over():
        ran_s = time.monotonic() - begin
        return ran_s > seconds and (highest >= expected or ran_s > 15)

    def work(who):
        try:
            with pooler.raw(database, users[who % len(users)]) as session:
                while not is_over():
                    answer = session.query("select pg_sleep(0.02)")
                    (errors if answer.errors else done).append(answer)
        except (Closed, OSError) as fault:
            errors.append(fault)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(clients)]
    for thread in threads:
        thread.start()
    while watch and any(thread.is_alive() for thread in threads):
        highest = max(highest, watch())
    for thread in threads:
        thread.join()
    return len(done), errors, highest


def test_default_pool_size_holds_under_a_rush(pooled, pg):
    """Sixty clients never get more than seven servers, and use all seven."""
    pooler = pooled(default_pool_size=7)
    done, errors, highest = rush(pooler, 60, watch=pooler.at_once(pg.port), expected=7)
    assert done and not errors
    assert highest == 7


def test_pool_size_of_a_database(pooled, pg):
    """`pool_size` in a [databases] line wins over default_pool_size."""
    pooler = pooled(databases={"small": pg.at("app", pool_size=2)}, default_pool_size=10)
    done, errors, highest = rush(pooler, 20, database="small", watch=pooler.at_once(pg.port), expected=2)
    assert done and not errors and highest == 2


@pytest.mark.needs("per-user pool settings")
def test_pool_size_of_a_user(pooled, pg):
    """`pool_size` in a [users] line wins over the database's."""
    pooler = pooled(databases={"small": pg.at("app", pool_size=2)}, users={"bob": "pool_size=4"})
    done, errors, highest = rush(pooler, 20, database="small", users=["bob"], watch=pooler.at_once(pg.port), expected=4)
    assert done and not errors and highest == 4


@pytest.mark.needs("pool size zero")
def test_pool_size_zero_means_no_limit(pooled, pg):
    """default_pool_size = 0: as many servers as clients ask for."""
    pooler = pooled(default_pool_size=0)
    sessions = [pooler.raw() for _ in range(30)]
    for session in sessions:
        session.query("begin")
    assert len(pg.backends("app")) == 30
    for session in sessions:
        session.hang_up()


def test_limits_are_per_pool(pooled, pg):
    """Each (database, user) has its own default_pool_size."""
    pooler = pooled(default_pool_size=2)
    done, errors, highest = rush(pooler, 30, users=["alice", "bob", "carol"], watch=pooler.at_once(pg.port), expected=6)
    assert done and not errors and highest == 6


def holders(pooler, count, database="app", user="alice"):
    sessions = [pooler.raw(database, user) for _ in range(count)]
    for session in sessions:
        session.query("begin")
    return sessions


def test_reserve_pool(pooled, pg):
    """After reserve_pool_timeout of waiting, up to reserve_pool_size more servers are opened, and no more."""
    pooler = pooled(default_pool_size=2, reserve_pool_size=2, reserve_pool_timeout=1)
    held = holders(pooler, 2)
    waiters = [pooler.raw() for _ in range(3)]
    start = time.monotonic()
    for waiter in waiters:
        waiter.send(query("begin"))
    eventually(lambda: len(pg.backends("app")) == 4, "two reserve servers are open")
    assert time.monotonic() - start >= 0.9
    eventually(lambda: pooler.pool()["cl_waiting"] == 1, "one still waits")
    time.sleep(1.2)
    assert len(pg.backends("app")) == 4
    pooler.logged("reserve_pool")
    for session in held + waiters:
        session.hang_up()


def test_reserve_pool_of_a_database(pooled, pg):
    """`reserve_pool` in a [databases] line."""
    pooler = pooled(databases={"own": pg.at("app", pool_size=1, reserve_pool=1)}, reserve_pool_timeout=0.5)
    held = holders(pooler, 1, "own")
    with pooler.raw("own") as waiter:
        waiter.send(query("begin"))
        waiter.until("Z")
        assert len(pg.backends("app")) == 2
    held[0].hang_up()


@pytest.mark.needs("min_pool_size without clients")
def test_min_pool_size_of_a_forced_user(pooled, pg):
    """min_pool_size opens servers without any client when the database has a forced user."""
    pooled(databases={"warm": pg.at("app", user="alice", min_pool_size=3)})
    eventually(lambda: len(pg.backends("app", "alice")) == 3, "three servers are open", timeout_s=15)
    time.sleep(0.7)
    assert len(pg.backends("app", "alice")) == 3


def test_min_pool_size_refills(pooled, pg):
    """Servers that die are replaced up to min_pool_size while a client is there."""
    pooler = pooled(min_pool_size=2, default_pool_size=5)
    with pooler.raw() as session:
        session.query("select 1")
        eventually(lambda: len(pg.backends("app", "alice")) == 2, "two servers are open", timeout_s=15)
        pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'alice'")
        eventually(lambda: len(pg.backends("app", "alice")) == 2, "two servers are open again", timeout_s=15)


def test_max_db_connections_across_users(pooled, pg):
    """max_db_connections counts the servers of all users of a database; idle ones of other users make room (and are closed at the end of
    the same turn, so that for a moment one more may be seen)."""
    pooler = pooled(databases={"own": pg.at("app", max_db_connections=3)}, default_pool_size=3)
    done, errors, highest = rush(pooler, 30, seconds=2, database="own", users=["alice", "bob", "carol"], watch=pooler.at_once(pg.port))
    assert done and not errors, errors[:2]
    assert highest <= 3 + 1


def test_an_idle_server_is_evicted_for_another_user(pooled, pg):
    """The limit is reached with idle servers of alice: bob's statement evicts one instead of waiting forever."""
    pooler = pooled(databases={"own": pg.at("app", max_db_connections=2)}, default_pool_size=2)
    for session in holders(pooler, 2, "own"):
        session.query("commit")
        session.terminate()
    assert len(pg.backends("app", "alice")) == 2
    with pooler.raw("own", "bob") as session:
        assert session.value("select 1") == "1"
        eventually(lambda: len(pg.backends("app", "alice")) == 1, "one of alice's servers made room")


@pytest.mark.needs("a limit of the queue")
def test_max_waiting_clients(pooled, pg):
    """A client that is one too many in the queue is told so at once, keeps the session, and is served when there is room."""
    pooler = pooled(databases={"own": pg.at("app", max_waiting_clients=1)}, default_pool_size=1, max_waiting_clients=2)
    for database, limit in ("app", 2), ("own", 1):
        [holder] = holders(pooler, 1, database)
        clients = [pooler.raw(database) for _ in range(limit + 1)]
        for client in clients[:-1]:
            client.send(query("select 'served'"))
        eventually(lambda: pooler.pool(database)["cl_waiting"] == limit, "the queue is full")
        late = clients[-1]
        for answer in late.query("select 'simple'"), late_group(late):
            assert answer.error["C"] == "53300" and "max_waiting_clients" in answer.error["M"] and answer.error["S"] == "ERROR"
        holder.query("commit")
        assert all(client.until("Z").rows == [["served"]] for client in clients[:-1])
        assert late.value("select 'room'") == "room"


def late_group(session):
    """An extended query."""
    session.send(group("", "select 'extended'"))
    return session.until("Z")


def test_global_max_db_connections(pooled, pg):
    """The global setting applies to every database by itself."""
    pooler = pooled(max_db_connections=2, default_pool_size=10)
    held = holders(pooler, 2) + holders(pooler, 2, "app2")
    with pooler.raw() as waiter:
        waiter.send(query("select 1"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the third client of app waits")
        held[0].query("commit")
        assert waiter.until("Z").rows == [["1"]]
    for session in held:
        session.hang_up()


def test_max_user_connections_across_databases(pooled, pg):
    """max_user_connections counts the servers of one user in all databases."""
    pooler = pooled(max_user_connections=2, default_pool_size=5)
    with pooler.raw("app3") as waiter, pooler.raw("app3", "bob") as other:
        held = holders(pooler, 1) + holders(pooler, 1, "app2")
        waiter.send(query("select 1"))
        assert other.value("select 2") == "2", "another user is not affected"
        assert waiter.quiet(0.3)
        held[1].query("commit")
        assert waiter.until("Z").rows == [["1"]]
    for session in held:
        session.hang_up()


def test_max_user_connections_of_a_user(pooled, pg):
    """The same in a [users] line."""
    pooler = pooled(users={"bob": "max_user_connections=1"}, default_pool_size=5)
    done, errors, highest = rush(pooler, 10, users=["bob"], watch=pooler.at_once(pg.port))
    assert done and not errors and highest == 1


def test_max_client_conn(pooled):
    """One client too many is refused with the limit's name, before authentication; when one leaves, one may come."""
    pooler = pooled(max_client_conn=5)
    sessions = [pooler.raw() for _ in range(5)]
    with pytest.raises(Closed) as refused:
        pooler.raw()
    assert "max_client_conn" in refused.value.error["M"] and refused.value.error["S"] == "FATAL"
    assert pooler.admin("SHOW VERSION"), "the console is exempt"
    sessions.pop().terminate()

    def served():
        try:
            sessions.append(pooler.raw())
            return True
        except Closed:
            return False

    eventually(served, "a place is free again")
    for session in sessions:
        assert session.value("select 1") == "1"
        session.hang_up()


def test_max_client_conn_under_a_rush(pooled):
    """A hundred at once for twenty places: about twenty get in, all others get an error, no client hangs."""
    pooler = pooled(max_client_conn=20)
    served, refused, other = [], [], []
    gate = threading.Barrier(100)

    def work():
        gate.wait()
        try:
            session = pooler.raw()
            served.append(session)
        except Closed as end:
            (refused if "max_client_conn" in end.error["M"] else other).append(end.error)

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not other, other[:2]
    assert len(served) <= 20 and len(served) + len(refused) == 100 and len(served) >= 15
    for session in served:
        session.hang_up()


@pytest.mark.needs("client limits per database")
def test_max_db_client_connections(pooled, pg):
    """Clients of one database are limited, those of another are not."""
    pooler = pooled(databases={"own": pg.at("app", max_db_client_connections=2)})
    sessions = [pooler.raw("own"), pooler.raw("own", "bob")]
    with pytest.raises(Closed) as refused:
        pooler.raw("own")
    assert "max_db_client_connections" in refused.value.error["M"]
    with pooler.raw("app") as other:
        assert other.value("select 1") == "1"
    sessions.pop().terminate()
    eventually(lambda: pooler.show("DATABASES", name="own")[0]["current_client_connections"] == "1", "one has left")
    pooler.raw("own").hang_up()
    sessions[0].hang_up()


@pytest.mark.needs("client limits per user")
def test_max_user_client_connections(pooled):
    """Clients of one user are limited over all databases."""
    pooler = pooled(users={"bob": "max_user_client_connections=2"})
    sessions = [pooler.raw("app", "bob"), pooler.raw("app2", "bob")]
    with pytest.raises(Closed) as refused:
        pooler.raw("app3", "bob")
    assert "max_user_client_connections" in refused.value.error["M"]
    with pooler.raw() as other:
        assert other.value("select 1") == "1"
    for session in sessions:
        session.hang_up()


@pytest.mark.needs("client limits per user")
@pytest.mark.parametrize("limit, who", [("max_user_client_connections", "USERS"), ("max_db_client_connections", "DATABASES")])
def test_limits_of_clients_count_the_console(pooled, limit, who):
    """Clients of the console are counted for their user and for the database pgbouncer, and shown; only admins are never refused."""
    pooler = pooled(**{limit: 2})
    name = "stats" if who == "USERS" else "pgbouncer"

    def counted():
        row = pooler.show(who, name=name)[0]
        return int(row["current_client_connections"]), row.get("max_client_connections", row.get(limit))

    # The client of the console that asks for this is one of the database's own.
    asking = 1 if who == "DATABASES" else 0
    sessions = [pooler.console("stats"), pooler.console("stats")]
    eventually(lambda: counted() == (2 + asking, "2"), "both are counted")
    with pytest.raises(Closed) as refused:
        pooler.console("stats")
    assert refused.value.error["M"] == f"client connections exceeded ({limit})"
    for _ in range(3):
        sessions.append(pooler.console("admin"))
    if who == "USERS":
        with pytest.raises(Closed):
            pooler.raw("app", "stats")
        assert pooler.show("USERS", name="admin")[0]["current_client_connections"] == "4"
    for session in sessions:
        session.terminate()
    eventually(lambda: counted()[0] == asking, "none is counted any more")
    pooler.console("stats").hang_up()


def test_a_limit_changed_by_reload(pooled, pg):
    """default_pool_size raised by RELOAD: the waiting clients get servers at once; lowered: surplus servers go."""
    pooler = pooled(default_pool_size=1)
    held = holders(pooler, 1)
    waiter = pooler.raw()
    waiter.send(query("begin"))
    eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the second client waits")
    pooler.write_ini(default_pool_size=3)
    pooler.reload()
    assert waiter.until("Z").status == "T"
    for session in [*held, waiter]:
        session.query("commit")
    assert len(pg.backends("app")) == 2
    pooler.write_ini(default_pool_size=1)
    pooler.reload()
    eventually(lambda: len(pg.backends("app")) == 1, "the surplus server is closed")
    for session in [*held, waiter]:
        session.hang_up()


def test_max_connections_of_postgres_reached(pooled, pg):
    """PostgreSQL itself is full: clients wait or are told so, the pooler recovers when there is room again."""
    pooler = pooled(default_pool_size=10, server_login_retry=1, query_wait_timeout=30)
    others = []
    try:
        while True:
            others.append(pg.connect("app", "carol"))
    except Exception as full:  # noqa: BLE001  # the loop's purpose
        assert "remaining connection slots" in str(full) or "too many clients" in str(full)
    with pytest.raises(Closed) as refused, pooler.raw() as session:
        session.query("select 1")
    assert "slots" in refused.value.error["M"] or "too many" in refused.value.error["M"], refused.value.error
    for connection in others:
        connection.close()

    def served():
        try:
            with pooler.raw() as session:
                return session.value("select 1") == "1"
        except Closed:
            return False

    eventually(served, "clients are served again", timeout_s=15)


@pytest.mark.needs("parallel connects")
def test_a_cold_pool_opens_its_servers_at_once(pooled, pg):
    """Thirty clients meet an empty pool of thirty with a slow connect_query: it fills in one go, not one by one."""
    slow = pg.at("app", connect_query="select pg_sleep(0.2)")
    pooler = pooled(databases={"slow": slow}, default_pool_size=30)
    sessions = [pooler.raw("slow", login=False) for _ in range(100)]
    start = time.monotonic()
    threads = [threading.Thread(target=session.login, args=("alice", "slow")) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.send(query("select pg_sleep(0.1)"))
    eventually(lambda: len(pg.backends("app")) == 30, "thirty servers are open", timeout_s=10, every_s=0.05)
    for session in sessions:
        assert not session.until("Z").errors
    assert time.monotonic() - start < 30 * 0.2, "one by one the connect_query alone takes six seconds"
    for session in sessions:
        session.hang_up()


def test_every_user_of_the_list_has_a_pool(pooled):
    """Pools for all roles of the cluster at once: a sanity check of many small pools."""
    pooler = pooled(default_pool_size=1)
    for user in ("alice", "bob", "carol", "u_repl", "u_gone", "poolauth"):
        assert user in PASSWORDS
        with pooler.raw("app", user) as session:
            assert session.value("select current_user") == user


@pytest.mark.needs("prepared statement errors keep the session")
@pytest.mark.parametrize("length", [16_383, 16_384, 16_385])
@pytest.mark.parametrize("cut", [None, 7_000])
def test_long_statement_names(pooled, length, cut):
    """A name of 16 kB and a little more is as good as any, in every message, also when it comes in pieces."""
    name = "n" * length
    with pooled().raw() as session:
        for messages in (
            parse(name, "select 42") + SYNC,
            describe("S", name) + SYNC,
            bind("", name) + execute() + SYNC,
            close("S", name) + SYNC,
        ):
            for piece in (messages[:cut], messages[cut:]) if cut else (messages,):
                session.send(piece)
            answer = session.until()
            assert not answer.errors, answer.errors
        assert session.value("select 1") == "1"


@pytest.mark.needs("prepared statement errors keep the session")
@pytest.mark.parametrize("length", [65_529, 65_530, 65_531])
def test_long_passwords(pooled, length):
    """A password may be as long as the longest secret of PgBouncer, 65,530 bytes; a longer one is refused, and nothing else."""
    secret = "x" * min(length, 65_530)
    pooler = pooled(auth_type="plain", userlist={"alice": secret, "admin": "pw-of-admin"})
    if length <= 65_530:
        with pooler.raw(password=secret):
            pass
    else:
        with pytest.raises(Closed), pooler.raw(password="x" * length):
            pass
    assert pooler.alive()

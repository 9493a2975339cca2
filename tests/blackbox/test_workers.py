"""`workers = 2`: everything that must not depend on which thread a connection landed on."""

import threading
import time

import pytest

from harness.machine import eventually
from harness.wire import SYNC, Closed, bind, execute, group, parse, query, tls_context

pytestmark = pytest.mark.needs("workers")

WORKERS = [2, 3]


@pytest.fixture(params=WORKERS)
def start(request, pooled):
    """A function that starts a pooler with several workers."""
    return lambda **options: pooled(workers=request.param, **options)


def in_threads(count, work):
    """Runs work(n) in `count` threads and returns what went wrong."""
    faults = []

    def guarded(who):
        try:
            work(who)
        except Exception as fault:  # noqa: BLE001  # returned to the test
            faults.append((who, repr(fault)))

    threads = [threading.Thread(target=guarded, args=(who,)) for who in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


def test_limits_hold_across_workers(start, pg):
    """Sixty clients of three pools: pool sizes, max_db_connections and max_user_connections are exact.

    A socket that made room for another one is closed at the end of its worker's turn, and in a turn room may be made for one
    more than one other: until then each worker may have so many more. Without the limit there would be 15.
    """
    pooler = start(default_pool_size=5, max_db_connections=6, max_user_connections=5)
    highest, stop = [0], threading.Event()

    def watch():
        look = pooler.at_once(pg.port)
        while not stop.is_set():
            highest[0] = max(highest[0], look())

    watcher = threading.Thread(target=watch)
    watcher.start()

    def work(who):
        with pooler.raw("app", ("alice", "bob", "carol")[who % 3]) as session:
            for n in range(20):
                assert session.query(f"select pg_sleep(0.002), {n}").rows == [["", str(n)]]

    faults = in_threads(60, work)
    stop.set()
    watcher.join()
    assert not faults, faults[:3]
    assert highest[0] <= 6 + 2 * int(pooler.show("CONFIG", key="workers")[0]["value"])


def test_max_client_conn_is_exact(start):
    """The limit is one for all workers."""
    pooler = start(max_client_conn=10)
    sessions = [pooler.raw() for _ in range(10)]
    for _ in range(10):
        with pytest.raises(Closed) as refused:
            pooler.raw()
        assert "max_client_conn" in refused.value.error["M"]
    for session in sessions:
        assert session.value("select 1") == "1"
        session.hang_up()


def test_every_client_gets_its_own_answer(start):
    """Forty clients with pipelines on several databases and users."""
    pooler = start(default_pool_size=2)

    def work(who):
        with pooler.raw(("app", "app2")[who % 2], ("alice", "bob")[who // 2 % 2]) as session:
            for turn in range(20):
                numbers = [who * 1000 + turn * 20 + n for n in range(10)]
                session.send(b"".join(group("", "select $1::int", [n]) for n in numbers))
                assert [session.until("Z").rows for _ in numbers] == [[[str(n)]] for n in numbers]

    assert not in_threads(40, work)


def test_prepared_statements(start):
    """Names of forty clients."""
    pooler = start(default_pool_size=3)

    def work(who):
        with pooler.raw() as session:
            session.send(parse("s", f"select {who % 5} * 100 + $1::int") + SYNC)
            assert session.until("Z").tags == "1Z"
            for n in range(30):
                session.send(bind("", "s", [n]) + execute() + SYNC)
                assert session.until("Z").rows == [[str(who % 5 * 100 + n)]]

    assert not in_threads(40, work)


def test_cancel_from_any_worker(start, pg):
    """A cancel request lands on any worker and finds its client."""
    pooler = start()
    for _ in range(8):
        with pooler.raw() as session:
            session.send(query("select pg_sleep(30)"))
            eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
            session.cancel()
            assert session.until("Z").error["C"] == "57014"


def test_the_console_sees_all(start):
    """SHOW shows clients, servers and numbers of all workers, whichever worker the console is on."""
    pooler = start(default_pool_size=5)
    sessions = [pooler.raw(database, user) for database in ("app", "app2") for user in ("alice", "bob") for _ in range(3)]
    for session in sessions:
        session.query("begin")
    for _ in range(6):
        assert len([r for r in pooler.show("CLIENTS") if r["database"] != "pgbouncer"]) == 12
        assert len(pooler.servers()) == 12
        assert sum(int(r["sv_active"]) for r in pooler.show("POOLS") if r["database"] != "pgbouncer") == 12
        assert {r["list"]: r["items"] for r in pooler.show("LISTS")}["used_servers"] == "12"
    for session in sessions:
        session.query("commit")
        session.hang_up()
    totals = [r for r in pooler.show("STATS_TOTALS") if r["database"] in ("app", "app2")]
    assert sum(int(r["xact_count"]) for r in totals) == 12


def test_commands_reach_all(start, pg):
    """PAUSE, RESUME, RECONNECT and KILL work on the pools of every worker."""
    pooler = start()
    sessions = [pooler.raw(database, user) for database in ("app", "app2") for user in ("alice", "bob", "carol")]
    before = [session.value("select pg_backend_pid()") for session in sessions]
    pooler.admin("RECONNECT")
    assert not set(before) & {session.value("select pg_backend_pid()") for session in sessions}
    pooler.admin("PAUSE")
    eventually(lambda: not pg.backends("app") and not pg.backends("app2"), "all servers are closed")
    for session in sessions:
        session.send(query("select 1"))
    assert all(session.quiet(0.05) for session in sessions)
    pooler.admin("RESUME")
    for session in sessions:
        assert session.until("Z").rows == [["1"]]
    pooler.admin("KILL app")
    for session in sessions[:3]:
        assert session.until_closed().errors
    for session in sessions[3:]:
        assert session.value("select 1") == "1"
        session.hang_up()


def test_reload_reaches_all(start):
    """A changed setting and a removed database count on every worker."""
    pooler = start()
    sessions = [pooler.raw("app3", user) for user in ("alice", "bob", "carol")]
    for session in sessions:
        session.value("select 1")
    del pooler.databases["app3"]
    pooler.write_ini(max_client_conn=7)
    pooler.reload()
    for session in sessions:
        assert "database removed" in session.until_closed().errors[-1]["M"]
    for _ in range(4):
        assert pooler.show("CONFIG", key="max_client_conn")[0]["value"] == "7"


def test_tls_sessions_move_too(start, certificates):
    """A TLS client that is handed to its pool's worker keeps its TLS session."""
    pooler = start(client_tls_sslmode="require", client_tls_key_file=certificates.key("pooler"), client_tls_cert_file=certificates.crt("pooler"))

    def work(who):
        with pooler.raw(login=False) as session:
            session.start_tls(tls_context())
            session.login(("alice", "bob", "carol")[who % 3], "app")
            for n in range(20):
                assert session.value(f"select {n}") == str(n)

    assert not in_threads(12, work)


def test_statements_sent_with_the_login(start):
    """Bytes that come right behind the startup packet are not lost on the way to the other worker."""
    from harness.wire import startup

    pooler = start()

    def work(who):
        user = ("alice", "bob", "carol")[who % 3]
        with pooler.raw(login=False) as session:
            session.send(startup({"user": user, "database": "app"}) + query("select 1") + group("", "select 2"))
            session.authenticate(user)
            assert session.until("Z").rows == [["1"]]
            assert session.until("Z").rows == [["2"]]

    assert not in_threads(12, work)


def test_shutdown_ends_all(start, pg):
    """SHUTDOWN, with clients on every worker."""
    pooler = start()
    sessions = [pooler.raw("app", user) for user in ("alice", "bob", "carol")]
    for session in sessions:
        session.query("begin")
    with pooler.console() as console:
        console.send(query("SHUTDOWN"))
        assert pooler.wait_exit() == 0
    eventually(lambda: not pg.backends("app"), "all servers are gone")


def test_clients_that_vanish(start, pg):
    """A hundred clients vanish in the middle of everything; the pools recover."""
    pooler = start(default_pool_size=5)

    def work(who):
        session = pooler.raw("app", ("alice", "bob", "carol")[who % 3])
        session.send(query("begin" if who % 3 else "select pg_sleep(0.01)"))
        if who % 2:
            session.until("Z")
        session.reset()

    assert not in_threads(100, work)
    for user in ("alice", "bob", "carol"):
        with pooler.raw("app", user) as session:
            assert session.value("select 1") == "1"
    eventually(lambda: not [r for r in pooler.show("CLIENTS") if r["database"] == "app"], "no client is left in the books")


def test_a_cancel_that_is_over_hits_nothing_more(start):
    """The connection of a cancel request is closed when the request has been carried out, whichever worker it came to."""
    with start(default_pool_size=2).raw() as session:
        session.query("begin")
        for round_number in range(80):
            session.query("savepoint a")
            session.send(query("select pg_sleep(0.01)"))
            # Some requests come just when the statement ends.
            time.sleep(0.006 + 0.0001 * round_number)
            session.cancel()
            assert {error["C"] for error in session.until().errors} <= {"57014"}
            for at in range(3):
                answer = session.query("rollback to a" if at == 0 else "select 1")
                assert not answer.errors, (round_number, at, answer)

"""Every timeout: which connection it ends, with which words, and that it ends no other.

The bounds are wide on purpose. What is proved is that the timeout acts and acts on the right one, not how fast a machine is.
"""

import threading
import time

import pytest

from harness.machine import eventually
from harness.wire import SSL_REQUEST, Closed, Raw, query, startup


def ended(session, words, within_s=8.0):
    """Waits until the session is closed; its last error must say `words`."""
    start = time.monotonic()
    session.socket.settimeout(within_s)
    answer = session.until_closed()
    assert answer.errors, f"closed without a reason: {answer.messages}"
    error = answer.errors[-1]
    assert words in error["M"] and error["S"] == "FATAL", error
    return time.monotonic() - start


def test_query_wait_timeout(pooled):
    """A client that waits too long for a server is told and closed; the one that holds it is not."""
    pooler = pooled(default_pool_size=1)
    pooler.limit(query_wait_timeout=1)
    with pooler.raw() as holder, pooler.raw() as waiter, pooler.raw() as idle:
        holder.query("begin")
        waiter.send(query("select 1"))
        assert ended(waiter, "query_wait_timeout") > 0.5
        assert holder.query("commit").status == "I"
        assert idle.value("select 1") == "1"


def test_query_wait_timeout_counts_each_wait_from_zero(pooled):
    """Waiting several times for less than the limit is no reason."""
    pooler = pooled(default_pool_size=1, query_wait_timeout=2)
    with pooler.raw() as holder, pooler.raw() as waiter:
        for _ in range(3):
            holder.query("begin")
            waiter.send(query("select 1"))
            time.sleep(0.9)
            holder.query("commit")
            assert waiter.until("Z").rows == [["1"]]


def test_query_timeout(pooled, pg):
    """A statement that runs too long: its client is told, its server closed; a shorter one is left alone."""
    pooler = pooled(default_pool_size=2)
    pooler.limit(query_timeout=1)
    with pooler.raw() as slow, pooler.raw() as quick:
        slow.send(query("select pg_sleep(30)"))
        for _ in range(8):
            assert quick.query("select pg_sleep(0.1)").errors == []
        ended(slow, "query timeout")
        assert quick.value("select 1") == "1"
    eventually(lambda: len(pooler.servers()) <= 1, "its server is out of the pool")


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_query_timeout_before_a_pools_first_server(pooled, pg, mode):
    """A client whose pool has no server yet does not wait longer than query_timeout."""
    pooler = pooled(pool_mode=mode, query_timeout=1, query_wait_timeout=20, server_connect_timeout=20)
    with pg.frozen(), pytest.raises(Closed) as refused, pooler.raw() as session:
        session.query("select 1")
    assert refused.value.error["M"] == "query_timeout"


@pytest.mark.needs("query_timeout spares idle transactions")
def test_query_timeout_spares_idle_transactions(pooled):
    """query_timeout is about running statements, not about time between them."""
    pooler = pooled()
    pooler.limit(query_timeout=1)
    with pooler.raw() as session:
        session.query("begin")
        time.sleep(1.8)
        assert session.query("select 1").status == "T"
        session.query("commit")


def test_idle_transaction_timeout(pooled, pg):
    """A client idle in its transaction for too long is closed, its transaction rolled back; one idle outside is not."""
    pooler = pooled(default_pool_size=2, idle_transaction_timeout=1)
    with pooler.raw() as sleeper, pooler.raw() as idle:
        idle.value("select 1")
        sleeper.query("begin")
        sleeper.query("insert into scratch values (60, 1)")
        ended(sleeper, "idle transaction timeout")
        assert idle.value("select count(*) from scratch where who = 60") == "0"


def test_idle_transaction_timeout_spares_long_statements(pooled):
    """A statement that runs inside a transaction is not idle."""
    pooler = pooled(idle_transaction_timeout=1)
    with pooler.raw() as session:
        session.query("begin")
        assert session.query("select pg_sleep(1.8)").status == "T"
        assert session.query("commit").status == "I"


@pytest.mark.needs("transaction timeout")
def test_transaction_timeout(pooled):
    """A transaction that lasts too long is ended even when it is never idle; many short ones are not."""
    pooler = pooled(default_pool_size=2, transaction_timeout=1)
    with pooler.raw() as long, pooler.raw() as short:
        with pytest.raises(Closed) as closed:
            long.query("begin")
            for _ in range(60):
                long.query("select pg_sleep(0.1)")
                assert not short.query("select pg_sleep(0.01)").errors
        assert "transaction timeout" in closed.value.error["M"]
        assert short.value("select 1") == "1"


def test_client_idle_timeout(pooled):
    """An idle client is closed with a reason; an active one and one inside a transaction are not."""
    pooler = pooled(default_pool_size=2, client_idle_timeout=1)
    with pooler.raw() as idle, pooler.raw() as active, pooler.raw() as inside:
        inside.query("begin")
        stop = time.monotonic() + 2.5
        while time.monotonic() < stop:
            assert active.value("select 1") == "1"
            time.sleep(0.1)
        ended(idle, "client_idle_timeout", within_s=1)
        assert inside.query("commit").status == "I"


@pytest.mark.parametrize("sent", [b"", SSL_REQUEST[:3], startup({"user": "alice", "database": "app"})[:20]])
def test_client_login_timeout(pooled, sent):
    """A connection that does not finish its login is closed, whatever it has sent so far."""
    pooler = pooled(client_login_timeout=1)
    with Raw(pooler.address, timeout_s=8) as mute, pooler.raw() as other:
        mute.send(sent)
        answer = mute.until_closed()
        assert all("client_login_timeout" in error["M"] or "partial pkt" in error["M"] for error in answer.errors), answer.errors
        assert other.value("select 1") == "1"


def test_client_login_timeout_in_authentication(pooled):
    """The same for one that never answers the password request."""
    pooler = pooled(client_login_timeout=1, auth_type="md5")
    with Raw(pooler.address, timeout_s=8) as mute:
        mute.send(startup({"user": "alice", "database": "app"}))
        answer = mute.until_closed()
        assert answer.messages[0].tag == "R" and "client_login_timeout" in answer.error["M"]


def test_a_startup_packet_at_a_byte_per_second(pooled):
    """Trickling bytes does not prolong the login; a hundred such connections disturb no other client."""
    pooler = pooled(client_login_timeout=2)
    packet = startup({"user": "alice", "database": "app"})
    slow = [Raw(pooler.address, timeout_s=8) for _ in range(100)]
    start = time.monotonic()
    with pooler.raw() as other:
        for at in range(8):
            for session in slow:
                try:
                    session.send(packet[at : at + 1])
                except OSError:
                    pass  # it has been closed already, which is what we wait for
            assert other.value("select 1") == "1"
            time.sleep(0.5)
    for session in slow:
        assert all("client_login_timeout" in error["M"] or "partial pkt" in error["M"] for error in session.until_closed().errors)
        session.hang_up()
    assert time.monotonic() - start < 8


def test_server_lifetime(pooled, pg):
    """Servers older than server_lifetime are closed when they are free, never under a client."""
    pooler = pooled(default_pool_size=2, server_lifetime=1)
    with pooler.raw() as session:
        first = session.value("select pg_backend_pid()")
        session.query("begin")
        time.sleep(1.6)
        assert session.value("select pg_backend_pid()") == first
        session.query("commit")
        eventually(lambda: session.value("select pg_backend_pid()") != first, "another server does the work", every_s=0.1)


def test_server_lifetime_zero_uses_each_server_once(pooled):
    """server_lifetime = 0: every transaction has a fresh server."""
    pooler = pooled(default_pool_size=1, server_lifetime=0)
    with pooler.raw() as session:
        seen = {session.value("select pg_backend_pid()") for _ in range(5)}
        assert len(seen) == 5


def test_server_idle_timeout(pooled, pg):
    """Idle servers are closed after server_idle_timeout, down to min_pool_size, and reopened on demand."""
    pooler = pooled(default_pool_size=4, server_idle_timeout=2)
    sessions = [pooler.raw() for _ in range(4)]
    for session in sessions:
        session.query("begin")
    for session in sessions:
        session.query("commit")
    assert len(pg.backends("app")) == 4
    eventually(lambda: len(pg.backends("app")) == 0, "all idle servers are closed")
    for session in sessions:
        assert session.value("select 1") == "1"
        session.hang_up()


def test_server_connect_timeout(pooled, pg):
    """A server that accepts but never answers: given up after server_connect_timeout, and the client is told in the end."""
    pooler = pooled(default_pool_size=2, server_connect_timeout=1, server_login_retry=1, query_wait_timeout=4, client_login_timeout=4)
    with pg.frozen(), pytest.raises(Closed) as refused, pooler.raw(timeout_s=20) as session:
        session.query("select 1")
    assert refused.value.error["S"] == "FATAL"
    pooler.logged("connect timeout")

    def served():
        try:
            with pooler.raw() as session:
                return session.value("select 1") == "1"
        except Closed:
            return False

    eventually(served, "clients are served again", timeout_s=15)


@pytest.mark.needs("query wait notice")
def test_query_wait_notify(pooled):
    """A client that waits longer than query_wait_notify gets one notice, then its answer."""
    pooler = pooled(default_pool_size=1, query_wait_notify=1)
    with pooler.raw() as holder, pooler.raw() as waiter:
        holder.query("begin")
        waiter.send(query("select 1"))
        notice = waiter.until("N").messages[-1].fields()
        assert "client being queued" in notice["M"]
        assert waiter.quiet(1.5)
        holder.query("commit")
        assert waiter.until("Z").rows == [["1"]]


@pytest.mark.needs("user timeouts")
@pytest.mark.parametrize("setting, words", [("query_timeout", "query timeout"), ("idle_transaction_timeout", "idle transaction timeout")])
def test_timeouts_of_a_user(pooled, setting, words):
    """Timeouts in a [users] line hit that user only."""
    pooler = pooled(users={"bob": f"{setting}=1"})
    with pooler.raw("app", "bob") as bob, pooler.raw("app", "alice") as alice:
        for session in (bob, alice):
            session.query("begin")
            if setting == "query_timeout":
                session.send(query("select pg_sleep(2.5), 'through'"))
        ended(bob, words)
        if setting == "query_timeout":
            assert alice.until("Z").rows == [["", "through"]]
        else:
            time.sleep(0.5)
        assert alice.query("commit").status == "I"


@pytest.mark.needs("user timeouts")
def test_client_idle_timeout_of_a_user(pooled):
    """client_idle_timeout in a [users] line hits that user's idle clients only."""
    pooler = pooled(users={"bob": "client_idle_timeout=1"})
    with pooler.raw("app", "bob") as bob, pooler.raw("app", "alice") as alice:
        ended(bob, "client_idle_timeout")
        assert alice.value("select 1") == "1"


def test_timeouts_do_not_fire_on_a_busy_pool(pooled):
    """All timeouts set, all statements short: two seconds of work without a single error."""
    pooler = pooled(
        default_pool_size=3, query_timeout=2, query_wait_timeout=2, idle_transaction_timeout=2, client_idle_timeout=2, client_login_timeout=2,
        server_lifetime=1, server_idle_timeout=1, server_check_delay=0,
    )  # fmt: skip
    stop, faults, done = time.monotonic() + 2.5, [], []

    def work(who):
        try:
            with pooler.raw() as session:
                while time.monotonic() < stop:
                    assert session.value(f"select {who}") == str(who)
                    done.append(who)
        except Exception as fault:  # noqa: BLE001  # reported by the assertion below
            faults.append(repr(fault))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and len(done) > 100, faults[:2]

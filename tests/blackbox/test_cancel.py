"""Cancel requests: they end the statement they were meant for, and never anything else."""

import random
import threading
import time

import psycopg
import pytest

from harness.machine import eventually
from harness.wire import SYNC, Raw, cancel_request, group, query


def test_own_statement(talk, pg):
    """The running statement ends with 57014 and the session lives."""
    session = talk()
    session.send(query("select pg_sleep(30)"))
    eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
    session.cancel()
    answer = session.until("Z")
    assert answer.error["C"] == "57014" and answer.status == "I"
    assert session.value("select 1") == "1"


def test_in_a_transaction(talk, pg):
    """A cancelled statement leaves its transaction failed, on the same server."""
    session = talk()
    session.query("begin")
    session.send(query("select pg_sleep(30)"))
    eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
    session.cancel()
    assert session.until("Z").status == "E"
    assert session.query("rollback").status == "I"


def test_wrong_keys_cancel_nothing(pooled, pg):
    """A right pid with a wrong key, a wrong pid, an unknown key: closed without a word, nothing happens."""
    pooler = pooled()
    with pooler.raw() as session:
        session.send(query("select pg_sleep(1.0), 'done'"))
        eventually(lambda: pg.running("pg_sleep"), "the statement runs")
        flipped = bytes([session.key[0], session.key[1], session.key[2], session.key[3] ^ 1])
        for pid, key in ((session.pid, flipped), (session.pid + 1, session.key), (0, b"\0\0\0\0"), (-1, b"\xff\xff\xff\xff")):
            with Raw(pooler.address) as other:
                other.send(cancel_request(pid, key))
                assert other.until_closed().messages == []
        assert session.until("Z").rows == [["", "done"]]


def test_an_idle_client(pooled):
    """Cancelling a client that runs nothing has no effect, neither at once nor on its next statement."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session, pooler.raw() as other:
        session.query("select 1")
        for _ in range(5):
            session.cancel()
            assert session.query("select pg_sleep(0.02), 'mine'").rows == [["", "mine"]]
            session.cancel()
            assert other.query("select pg_sleep(0.02), 'other'").rows == [["", "other"]]


def test_a_client_idle_in_transaction(pooled):
    """The same for a client that holds a server without running anything."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        session.query("begin")
        session.cancel()
        time.sleep(0.1)
        assert session.query("select 1").status == "T"
        assert session.query("commit").status == "I"


@pytest.mark.needs("cancel of a queued statement")
@pytest.mark.parametrize("protocol", ["simple", "extended", "extended, Sync comes later"])
def test_a_statement_that_waits_for_a_server(pooled, pg, protocol):
    """It ends with 57014 at once, is never run, and the session goes on; no other client notices."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as holder, pooler.raw() as session, pooler.raw() as other:
        holder.query("begin")
        statement = "create table never_made (a int)"
        whole = query(statement) if protocol == "simple" else group("", statement)
        now, later = (whole, b"") if "later" not in protocol else (whole[: -len(SYNC)], SYNC)
        session.send(now)
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "it waits")
        other.send(query("select 'other'"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 2, "another one waits behind it")
        session.cancel()
        session.send(later)
        answer = session.until("Z")
        assert answer.error["C"] == "57014" and answer.status == "I"
        session.send(query("select 'next'"))
        holder.query("commit")
        assert other.until("Z").rows == [["other"]]
        assert session.until("Z").rows == [["next"]]
        assert session.value("select to_regclass('never_made')") is None


@pytest.mark.needs("cancel through a held server")
def test_a_late_cancel_hits_no_stranger(pooled):
    """Cancels race with the end of short statements while strangers use the same servers: strangers are never cancelled."""
    pooler = pooled(default_pool_size=4)
    stop = time.monotonic() + 6
    hit, faults, cancelled = [], [], []

    def stranger(who):
        with pooler.raw() as session:
            while time.monotonic() < stop:
                answer = session.query(f"select pg_sleep(0.001), {who}")
                if answer.errors:
                    hit.append((who, answer.errors))
                elif answer.rows != [["", str(who)]]:
                    faults.append((who, answer.rows))

    def canceller(who):
        choice = random.Random(who)
        with pooler.raw() as session:
            while time.monotonic() < stop:
                session.send(query(f"select pg_sleep(0.01), {who}"))
                time.sleep(choice.random() * 0.02)
                session.cancel()
                answer = session.until("Z")
                if answer.errors:
                    cancelled.append(answer.error["C"])

    threads = [threading.Thread(target=stranger, args=(n,)) for n in range(6)]
    threads += [threading.Thread(target=canceller, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not hit, hit[:3]
    assert not faults, faults[:3]
    assert cancelled and set(cancelled) == {"57014"}, "the race never cancelled anything: this test proved nothing"


@pytest.mark.needs("cancel requests of senders that do not wait")
def test_a_sender_that_does_not_wait(pooled, pg):
    """Some drivers hang up right after their CancelRequest: pgweir obeys it nevertheless."""
    pooler = pooled()
    with pooler.raw() as session:
        for _ in range(5):
            session.send(query("select pg_sleep(30)"))
            eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
            with Raw(pooler.address) as request:
                request.send(cancel_request(session.pid, session.key))
            assert session.until("Z").error["C"] == "57014"


def test_many_cancels_for_one_statement(pooled, pg):
    """A hundred cancel requests at once: the statement ends, the pool is whole afterwards."""
    pooler = pooled(default_pool_size=3)
    with pooler.raw() as session, pooler.raw() as other:
        session.send(query("select pg_sleep(30)"))
        eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
        requests = [Raw(pooler.address) for _ in range(100)]
        for request in requests:
            request.send(cancel_request(session.pid, session.key))
        assert session.until("Z").error["C"] == "57014"
        start = time.monotonic()
        for request in requests:
            request.until_closed()
            request.hang_up()
        assert time.monotonic() - start < 5, "a cancel request whose statement has ended is dropped, not kept until cancel_wait_timeout"
        assert other.query("select pg_sleep(0.2), 1").rows == [["", "1"]]
        assert session.value("select 1") == "1"
    eventually(lambda: pooler.pool().get("cl_waiting_cancel_req", 0) == 0, "no cancel request is left over")


def test_cancel_by_psycopg(pooled, pg):
    """The driver's cancel, in both of its forms."""
    pooler = pooled()
    with pooler.connect() as client:
        for cancel in (client.cancel, client.cancel_safe):
            pg.when_running("pg_sleep(30)", cancel)
            with pytest.raises(psycopg.errors.QueryCanceled):
                client.execute("select pg_sleep(30)")
            assert client.execute("select 1").fetchone() == (1,)


def test_cancel_in_session_mode_of_the_right_client(pooled, pg):
    """Two clients run the same long statement; only the one that is meant ends."""
    pooler = pooled(pool_mode="session")
    with pooler.raw() as one, pooler.raw() as two:
        one.send(query("select pg_sleep(1.5), 'one'"))
        two.send(query("select pg_sleep(1.5), 'two'"))
        eventually(lambda: len(pg.running("pg_sleep")) == 2, "both run")
        one.cancel()
        assert one.until("Z").error["C"] == "57014"
        assert two.until("Z").rows == [["", "two"]]


def test_cancel_when_the_pool_is_full(pooled, pg):
    """A cancel needs a server connection beyond the pool's size when all are busy, and gets it."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        session.send(query("select pg_sleep(30)"))
        eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
        session.cancel()
        assert session.until("Z").error["C"] == "57014"


def test_cancel_of_a_console_wait(pooled):
    """Cancelling a console client that waits in PAUSE resumes the pooler."""
    pooler = pooled()
    with pooler.raw() as session, pooler.console() as console:
        session.query("begin")
        console.send(query("PAUSE"))
        eventually(lambda: pooler.show("DATABASES", name="app")[0]["paused"] == "1" or console.quiet(0.2), "the pause has begun")
        console.cancel()
        session.query("commit")
        assert session.value("select 1") == "1"

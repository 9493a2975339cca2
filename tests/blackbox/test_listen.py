"""LISTEN in transaction pooling: one connection of the pooler listens for all clients of a pool."""

import asyncio
import threading

import asyncpg
import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import kind

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")


def connect(pooler):
    return psycopg.connect(host="127.0.0.1", port=pooler.port, user="alice", dbname="app", autocommit=True)


def payloads(session, count):
    return [note.payload for note in session.notifies(timeout=10, stop_after=count)]


def listening(pooler):
    return [row for row in pooler.show("servers") if row["state"] == "listening"]


def test_many_listen_through_one_connection(pooled):
    """A hundred clients on ten channels need one server and one connection that listens; each is told all of its own, in order."""
    pooler = pooled(default_pool_size=2)
    sessions = [connect(pooler) for _ in range(100)]
    try:
        for number, session in enumerate(sessions):
            session.execute(f"listen channel_{number % 10}")
        assert len(listening(pooler)) == 1
        assert sum(int(row["sv_pinned"]) for row in pooler.show("pools")) == 0
        with connect(pooler) as speaker:
            for number in range(50):
                speaker.execute("select pg_notify(%s, %s)", [f"channel_{number % 10}", str(number)])
        for number, session in enumerate(sessions):
            assert payloads(session, 5) == [str(told) for told in range(number % 10, 50, 10)]
    finally:
        for session in sessions:
            session.close()
    eventually(lambda: pooler.pool()["cl_active"] == 0, "nobody is left")


def test_own_notifications_carry_the_clients_own_process_id(pooled):
    """Who notifies itself is told so before its statement is over, with the process id that it was told at login."""
    pooler = pooled(default_pool_size=2)
    with connect(pooler) as session, connect(pooler) as other:
        session.execute("listen a")
        for number in range(20):
            session.execute("select pg_notify('a', %s)", [str(number)])
            other.execute("select pg_notify('a', 'other')")
        notes = list(session.notifies(timeout=10, stop_after=40))
        own = [note.payload for note in notes if note.pid == session.info.backend_pid]
        assert own == [str(number) for number in range(20)]
        assert sum(note.payload == "other" for note in notes) == 20


def test_nothing_is_missed_that_is_sent_after_listen(pooled):
    """Somebody notifies all the time: from its LISTEN on, each listener gets every one, once and in order."""
    pooler = pooled(default_pool_size=3)
    stop = threading.Event()

    def speak():
        with connect(pooler) as speaker:
            number = 0
            while not stop.is_set():
                number += 1
                speaker.execute("select pg_notify('ticks', %s)", [str(number)])

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        for turn in range(12):
            with connect(pooler) as session:
                session.execute("begin" if turn % 2 else "select 1")
                session.execute("listen ticks")
                session.execute("select 1")
                session.execute("commit" if turn % 2 else "select 1")
                got = [int(payload) for payload in payloads(session, 50)][:50]
                assert got == list(range(got[0], got[0] + 50))
    finally:
        stop.set()
        speaker.join()


def test_a_broken_listening_connection_is_not_hidden(pooled, pg):
    """Where it breaks, those who listened are disconnected and told why; whoever listens anew is told again."""
    pooler = pooled(default_pool_size=2)
    with connect(pooler) as session, connect(pooler) as bystander:
        session.execute("listen a")
        with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as direct:
            pid = listening(pooler)[0]["remote_pid"]
            direct.execute("select pg_terminate_backend(%s)", [int(pid)])
        with pytest.raises(psycopg.OperationalError):
            list(session.notifies(timeout=10, stop_after=1))
            session.execute("select 1")
        assert bystander.execute("select 1").fetchone() == (1,)
    with connect(pooler) as session, connect(pooler) as speaker:
        session.execute("listen a")
        speaker.execute("notify a, 'again'")
        assert payloads(session, 1) == ["again"]


def test_asyncpg_listeners(pooled):
    """asyncpg's add_listener and remove_listener, with statements between."""
    pooler = pooled(default_pool_size=1)

    async def go():
        session = await asyncpg.connect(host="127.0.0.1", port=pooler.port, user="alice", database="app")
        speaker = await asyncpg.connect(host="127.0.0.1", port=pooler.port, user="alice", database="app")
        told = []
        heard = asyncio.Event()

        def note(_, pid, channel, payload):
            told.append((channel, payload))
            if len(told) == 30:
                heard.set()

        await session.add_listener("news", note)
        await session.add_listener("Odd Name", note)
        for number in range(15):
            await speaker.execute(f"notify news, '{number}'")
            await session.fetchval("select 1")
            await speaker.execute(f"notify \"Odd Name\", '{number}'")
        await asyncio.wait_for(heard.wait(), 10)
        await session.remove_listener("news", note)
        await speaker.execute("notify news, 'late'")
        assert await session.fetch("select pg_listening_channels()") == [("Odd Name",)]
        assert told == [(channel, str(number)) for number in range(15) for channel in ("news", "Odd Name")]
        await session.close()
        await speaker.close()

    asyncio.run(go())

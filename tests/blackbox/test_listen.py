"""LISTEN in transaction pooling: one connection of the pooler listens for all clients of a pool."""

import asyncio
import contextlib
import resource
import threading
from pathlib import Path

import asyncpg
import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import query

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
        assert sum(int(row["sv_pinned"]) for row in pooler.show("pools_extended")) == 0
        with connect(pooler) as speaker:
            for number in range(50):
                speaker.execute("select pg_notify(%s, %s)", [f"channel_{number % 10}", str(number)])
        for number, session in enumerate(sessions):
            assert payloads(session, 5) == [str(told) for told in range(number % 10, 50, 10)]
    finally:
        for session in sessions:
            session.close()
    eventually(lambda: pooler.pool()["cl_active"] == 0, "no client is left")


def test_own_notifications_carry_the_clients_own_process_id(pooled):
    """A client that notifies itself is told so before its statement is over, with the process id that it was told at login."""
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
    """A client notifies all the time: from its LISTEN on, each listener gets every one, once and in order."""
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


SPEECH = """do $$ begin
    for number in 1..10000000 loop
        perform pg_notify('{}', number::text);
        commit;
    end loop;
end $$"""


def test_nothing_is_missed_nor_told_twice_where_several_notify_at_once(pooled, pg):
    """As above, for eight clients that listen side by side: PostgreSQL signals its listeners one after the other, not all at once."""
    pooler = pooled(default_pool_size=3)
    channels = [f"channel_{number}" for number in range(4)]

    speakers = [pg.connect() for _ in channels]

    def speak(speaker, channel):
        with contextlib.suppress(psycopg.errors.QueryCanceled), speaker:
            speaker.execute(SPEECH.format(channel))

    threads = [threading.Thread(target=speak, args=pair) for pair in zip(speakers, channels, strict=True)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            sessions = [(channel, pooler.raw()) for channel in channels for _ in range(2)]
            for channel, session in sessions:
                session.send(query(f"listen {channel}"))
            for channel, session in sessions:
                told = []
                while len(told) < 12:
                    message = session.receive()
                    if message.tag == "A":
                        told.append(int(message.body[4:].split(b"\0")[1]))
                assert told == list(range(told[0], told[0] + 12)), channel
                session.hang_up()
    finally:
        for speaker in speakers:
            speaker.cancel()
        for thread in threads:
            thread.join()


def test_a_broken_listening_connection_is_not_hidden(pooled, pg):
    """If it breaks, the clients that listened are disconnected and told why; a client that listens again is told again."""
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


class Crowd:
    """Many raw clients, each listening on one of some channels, and what each was told so far."""

    def __init__(self, pooler, clients, channels):
        self.pooler, self.channels = pooler, channels
        self.sessions = [pooler.raw(timeout_s=120) for _ in range(clients)]
        self.told = [[] for _ in self.sessions]
        for start in range(0, clients, 100):
            batch = list(enumerate(self.sessions))[start : start + 100]
            for number, session in batch:
                session.send(query(f"listen channel_{number % channels}"))
            for _, session in batch:
                assert session.until("Z").commands == ["LISTEN"]

    def read(self, number, count):
        """Reads until a client was told so many; nothing but notifications may come."""
        while len(self.told[number]) < count:
            message = self.sessions[number].receive()
            assert message.tag == "A", message
            channel, payload = message.body[4:].split(b"\0")[:2]
            assert channel.decode() == f"channel_{number % self.channels}"
            self.told[number].append(int(payload))

    def hang_up(self):
        for session in self.sessions:
            session.hang_up()


def resident_kb(pooler):
    lines = Path(f"/proc/{pooler.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def listen_at_size(pooled, pg, clients, channels, rounds):
    """Idle listeners are told all of their channel's notifications, once and in order, through one connection."""
    pooler = pooled(
        default_pool_size=4, max_client_conn=clients + 50, limits=["prlimit", f"--nofile={clients + 1000}"],
    )  # fmt: skip
    with pooler.raw() as speaker, pooler.raw() as bystander:
        idle_kb = resident_kb(pooler)
        crowd = Crowd(pooler, clients, channels)
        assert len(listening(pooler)) == 1
        assert sum(int(row["sv_pinned"]) for row in pooler.show("pools_extended")) == 0
        for turn in range(rounds):
            speaker.query("; ".join(f"notify channel_{channel}, '{turn}'" for channel in range(channels)))
            # Many in one transaction, and other clients' work between.
            assert bystander.value("select 7") == "7"
        for number in range(clients):
            crowd.read(number, rounds)
        assert crowd.told == [list(range(rounds))] * clients
        used_kb = resident_kb(pooler) - idle_kb
        assert used_kb < clients * 16 + 32 * 1024, f"{used_kb} kB for {clients} clients"
        # No client was told anything twice: what comes next is the answer to the next statement.
        for number in range(0, clients, max(1, clients // 50)):
            assert crowd.sessions[number].query("select 1").tags == "TDCZ"
        end_of_the_listening_connection(pooler, pg, crowd)
        assert bystander.value("select 7") == "7"
        assert speaker.value("select 8") == "8"


def end_of_the_listening_connection(pooler, pg, crowd):
    """It is terminated: all clients that listened are told that they may have missed something, and can come back."""
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as direct:
        direct.execute("select pg_terminate_backend(%s)", [int(listening(pooler)[0]["remote_pid"])])
    for session in crowd.sessions:
        assert session.until_closed().errors[-1]["C"] == "08006"
    crowd.hang_up()
    again = Crowd(pooler, 20, 5)
    with pooler.raw() as speaker:
        speaker.query("; ".join(f"notify channel_{channel}, '{turn}'" for turn in range(3) for channel in range(5)))
        for number in range(20):
            again.read(number, 3)
            assert again.told[number] == [0, 1, 2]
    again.hang_up()


def test_five_hundred_listeners_on_twenty_channels(pooled, pg):
    """See `listen_at_size`."""
    listen_at_size(pooled, pg, 500, 20, 30)


@pytest.mark.slow
def test_ten_thousand_listeners_on_a_hundred_channels(pooled, pg):
    """The same at the size that the design promises."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listen_at_size(pooled, pg, 10_000, 100, 20)


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

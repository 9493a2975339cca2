"""Everything at once: load with right answers while the pooler is reconfigured, servers are killed and clients misbehave."""

import random
import threading
import time

import pytest

from harness.machine import eventually
from harness.wire import SYNC, Closed, bind, copy_data, execute, group, parse, query

pytestmark = pytest.mark.needs("pipelines known to the pooler")

SECONDS = 4


class Load:
    """Clients that run statements and check every answer, through SECONDS of disturbance and on, until each has finished one after it."""

    def __init__(self, pooler, clients, errors_allowed):
        self.pooler, self.errors_allowed = pooler, errors_allowed
        self.done, self.ended, self.faults = [0] * clients, 0, []
        self.stop, self.over = time.monotonic() + SECONDS, threading.Event()
        self.threads = [threading.Thread(target=self._client, args=(who,)) for who in range(clients)]
        for thread in self.threads:
            thread.start()

    def running(self):
        """Whether it is still time to disturb them."""
        return time.monotonic() < self.stop

    def _client(self, who):
        choice = random.Random(who)
        while not self.over.is_set():
            try:
                with self.pooler.raw("app", ("alice", "bob")[who % 2]) as session:
                    while not self.over.is_set():
                        self._work(choice, who, session)
                        self.done[who] += 1
            except (Closed, OSError) as end:
                if not self.errors_allowed:
                    self.faults.append(f"{who}: {end!r}")
                    return
                self.ended += 1
            except AssertionError as fault:
                self.faults.append(f"{who}: {fault}")
                return

    def _work(self, choice, who, session):
        number = choice.randrange(1_000_000)
        kind = choice.randrange(4)
        if kind == 0:
            answer = session.query(f"select {number}, {who}")
            assert answer.rows == [[str(number), str(who)]], answer.messages
        elif kind == 1:
            session.send(b"".join(group("", "select $1::int, $2::int", [number + n, who]) for n in range(5)))
            for n in range(5):
                answer = session.until("Z")
                assert answer.rows == [[str(number + n), str(who)]], answer.messages
        elif kind == 2:
            session.send(query("begin") + query(f"select {number}") + query("commit"))
            answers = [session.until("Z") for _ in range(3)]
            assert answers[1].rows == [[str(number)]] and answers[2].status == "I", answers
        else:
            session.send(query(f"copy (select {number}, generate_series(1, 50)) to stdout"))
            rows = session.until("Z").of("d")
            assert len(rows) == 50 and all(m.body.startswith(b"%d\t" % number) for m in rows), rows[:2]

    def finish(self):
        """The disturbance is over: every client gets on (how much was done during it says how fast the machine is, not whether it is right)."""
        before = list(self.done)
        try:
            eventually(lambda: self.faults or all(now > then for now, then in zip(self.done, before)), "every client gets on", 30)
        finally:
            self.over.set()
            for thread in self.threads:
                thread.join()
        assert not self.faults, self.faults[:3]


def balanced(pooler):
    """Whether the pooler's books say that no client is connected and no server is in use."""
    pools = [row for row in pooler.show("POOLS") if row["database"] != "pgbouncer"]
    counts = ("cl_active", "cl_waiting", "sv_active", "sv_tested", "sv_login", "cl_waiting_cancel_req")
    return all(row.get(name, "0") == "0" for row in pools for name in counts)


def test_console_storm(pooled):
    """RECONNECT, PAUSE, RESUME, RELOAD and SET all the time: not one client notices."""
    pooler = pooled(default_pool_size=3, server_lifetime=1)
    load = Load(pooler, 12, errors_allowed=False)
    choice = random.Random(3)
    while load.running():
        command = choice.choice(["RECONNECT", "PAUSE", "RELOAD", "SET default_pool_size = 2", "RECONNECT app"])
        pooler.admin(command)
        if command == "PAUSE":
            pooler.admin("RESUME")
    load.finish()
    eventually(lambda: balanced(pooler), "the books are balanced")


def test_servers_are_killed(pooled, pg):
    """PostgreSQL ends random sessions: clients may be disconnected, but no answer is ever wrong, and the pool recovers."""
    pooler = pooled(default_pool_size=4, server_login_retry=0.1)
    load = Load(pooler, 12, errors_allowed=True)
    while load.running():
        pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename in ('alice', 'bob') order by random() limit 1")
        time.sleep(0.05)
    load.finish()
    assert load.ended, "no session was hit: this test proved nothing"
    eventually(lambda: balanced(pooler), "the books are balanced")
    assert len(pooler.servers()) <= 8


def test_clients_misbehave(pooled, pg):
    """Other clients vanish in transactions, in COPY, in pipelines, send garbage and cancel at random; honest clients notice nothing."""
    pooler = pooled(default_pool_size=6)
    load = Load(pooler, 8, errors_allowed=False)

    def misbehave(who):
        choice = random.Random(who)
        while load.running():
            try:
                session = pooler.raw("app", ("alice", "bob")[who % 2], timeout_s=5)
                kind = choice.randrange(6)
                if kind == 0:
                    session.query("begin")
                    session.query("insert into scratch values (8000, 1)")
                elif kind == 1:
                    session.send(query("copy scratch from stdin"))
                    session.until("G")
                    session.send(copy_data(b"8000\t2\n"))
                elif kind == 2:
                    session.send(b"".join(group("", "select 'garbage'") for _ in range(20)))
                elif kind == 3:
                    session.send(choice.randbytes(30))
                elif kind == 4:
                    session.send(parse("", "insert into scratch values (8000, 3)") + bind("", "") + execute())
                else:
                    session.send(query("select pg_sleep(0.02)"))
                    session.cancel()
                    session.until("Z")
                    session.send(SYNC)
                time.sleep(choice.random() * 0.01)
                session.reset() if choice.random() < 0.5 else session.hang_up()
            except (Closed, OSError):
                pass

    threads = [threading.Thread(target=misbehave, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.finish()
    assert pg.sql("select count(*) from scratch where who = 8000") == [(0,)]
    eventually(lambda: balanced(pooler), "the books are balanced")
    eventually(lambda: pooler.open_files() < 40, "all file descriptors are given back")

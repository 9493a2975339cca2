"""`shared_limits = etcd`: limits that hold for all poolers together. etcd and PostgreSQL are real, and PostgreSQL refuses what is above the limit."""

import contextlib
import signal
import threading
import time

import pytest

from harness.link import Link
from harness.machine import eventually, free_port
from harness.patroni import Etcd, needed
from harness.pooler import kind
from harness.wire import Closed, query

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such setting")

TTL_S = 5
# The statements are long enough that clients do not share a server.
WORK = "select pg_sleep(0.05)"
COUNT = "select count(*) from pg_stat_activity where datname = 'app' and usename = 'alice'"
# A refusal by PostgreSQL: of a role, and of a database. Both are what a connection above the limit gets.
REFUSED = ("too many connections for role", "too many connections for database")


@pytest.fixture
def etcd():
    """An etcd of its own."""
    needed()
    one = Etcd()
    yield one
    one.discard()


class Relay:
    """A way to etcd that can be cut: connections through it end, and new ones are refused."""

    def __init__(self, port):
        self.to, self.link = port, Link(port)
        self.port = self.link.port

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def cut(self):
        if self.link:
            self.link.mend()
            self.link.close()
            self.link = None

    def mend(self):
        self.link = Link(self.to, port=self.port)


class Crowd:
    """Clients of a pooler that work until they are told to stop. A client whose pooler is gone stops by itself."""

    def __init__(self, pooler, clients, database="app", user="alice"):
        self.pooler, self.database, self.user = pooler, database, user
        self.ends, self.done, self.faults = threading.Event(), 0, []
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _work(self):
        try:
            with self.pooler.raw(self.database, self.user, timeout_s=60) as session:
                while not self.ends.is_set():
                    answer = session.query(WORK)
                    if answer.errors:
                        self.faults.append(str(answer.errors))
                        return
                    self.done += 1
        except (Closed, OSError, EOFError) as fault:
            self.faults.append(repr(fault))

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive(), "a client hangs"


class Fleet:
    """Poolers that share a limit, and a watch of what PostgreSQL has."""

    def __init__(self, pg, poolers, limit, user_limit=0):
        self.pg, self.poolers, self.limit, self.crowds = pg, list(poolers), limit, []
        self.highest, self.ends = 0, threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def _watch(self):
        with self.pg.connect("postgres") as session:
            while not self.ends.is_set():
                self.highest = max(self.highest, session.execute(COUNT).fetchone()[0])
                time.sleep(0.01)

    def count(self):
        """The connections that PostgreSQL has now."""
        return self.pg.sql(COUNT, database="postgres")[0][0]

    def crowd(self, pooler, clients):
        self.crowds.append(Crowd(pooler, clients))
        return self.crowds[-1]

    def row(self, pooler, name="app"):
        """The pooler's row of SHOW LIMITS; without values if it has none at this moment."""
        rows = [row for row in pooler.show("limits") if row["name"] == name]
        return rows[0] if rows else dict.fromkeys(("kind", "limit", "granted", "poolers", "leader", "state", "reason"), None) | {"kept_back": "0"}

    def granted(self, pooler):
        return int(self.row(pooler)["granted"] or 0)

    def stop_crowds(self):
        for crowd in self.crowds:
            crowd.stop()

    def check(self):
        """PostgreSQL has neither had nor refused one connection too many."""
        self.stop_crowds()
        self.ends.set()
        self.watcher.join(20)
        assert self.highest <= self.limit
        for pooler in self.poolers:
            lines = [line for line in pooler.log().splitlines() if any(words in line for words in (*REFUSED, "shared limit"))]
            refused = [line for line in lines if any(words in line for words in REFUSED)]
            assert not refused, "a pooler opened one too many:\n" + "\n".join(lines[-30:])


@pytest.fixture
def fleet(poolers, pg, etcd):
    """A function that starts poolers which share `max_db_connections`; PostgreSQL itself refuses more of alice's."""
    started = []

    def start(count=3, limit=40, endpoints=None, refuses=True, **settings):
        if refuses:
            pg.sql(f"alter role alice connection limit {limit}")
        lines = {"app": pg.at("app")}
        made = []
        for number in range(count):
            options = {"max_db_connections": limit, "default_pool_size": limit, "shared_limits": "etcd", "shared_limits_ttl": TTL_S}
            options |= {"etcd_endpoints": (endpoints or {}).get(number, etcd.url), "query_wait_timeout": 0, "server_tls_sslmode": "disable"} | settings
            made.append(poolers(lines, **options))
        started.append(Fleet(pg, made, limit))
        return started[-1]

    yield start
    try:
        for one in started:
            one.check()
    finally:
        pg.sql("alter role alice connection limit -1")


def shares(fleet, poolers, least):
    """Waits until each of these poolers is granted that many connections."""
    eventually(lambda: all(fleet.granted(one) >= least for one in poolers), f"each has {least}", timeout_s=60)


def uses(fleet, count, what="the limit is used", timeout_s=60):
    """Waits until PostgreSQL has that many connections; returns after how many seconds."""
    began = time.monotonic()
    eventually(lambda: fleet.count() >= count, what, timeout_s=timeout_s)
    return time.monotonic() - began


def kill(pooler):
    """Kills a pooler."""
    pooler.expect_exit = True
    pooler.process.kill()
    pooler.process.wait()


def test_the_limit_is_divided_by_demand(fleet):
    """Three poolers with clients share 40 connections; what the clients of one do not need goes to the others, and comes back."""
    all = fleet()
    first, second, third = all.poolers
    crowd = all.crowd(first, 60)
    uses(all, 35)
    others = [all.crowd(second, 60), all.crowd(third, 60)]
    shares(all, all.poolers, 12)
    uses(all, 38)
    assert sum(all.granted(one) for one in all.poolers) <= 40
    row = all.row(first)
    assert (row["kind"], row["limit"], row["poolers"], row["state"]) == ("database", "40", "3", "shared")
    assert row["leader"] and row["leader"] == all.row(second)["leader"]
    for one in others:
        one.stop()
    uses(all, 35, "one pooler uses what the others do not")
    crowd.stop()
    assert crowd.done and not crowd.faults


def test_a_newcomer_is_served_while_the_others_have_everything(fleet, poolers, pg):
    """One connection is kept back, so that a pooler that starts serves at once."""
    all = fleet(count=1, limit=6)
    [first] = all.poolers
    held = [first.raw() for _ in range(5)]
    for session in held:
        session.query("begin")
    eventually(lambda: all.count() == 5, "a pooler alone uses all but one")
    late = poolers({"app": pg.at("app")}, max_db_connections=6, default_pool_size=6, shared_limits="etcd", shared_limits_ttl=TTL_S,
                   etcd_endpoints=first.settings["etcd_endpoints"], server_tls_sslmode="disable")  # fmt: skip
    all.poolers.append(late)
    with late.raw() as session:
        assert session.value("select 7") == "7"
    assert all.count() == 6
    for session in held:
        session.hang_up()


def test_a_killed_pooler(fleet):
    """The part of a pooler that was killed is used after its lease, and as long as its statements run it is not."""
    all = fleet()
    first, *others = all.poolers
    busy = [first.raw() for _ in range(4)]
    crowds = [all.crowd(one, 60) for one in all.poolers]
    shares(all, all.poolers, 12)
    uses(all, 38)
    for session in busy:
        session.query("begin")
        session.send(query(f"select pg_sleep({TTL_S + 6})"))
    running = f"select count(*) from pg_stat_activity where usename = 'alice' and state = 'active' and query ~ 'pg_sleep.{TTL_S + 6}.'"
    eventually(lambda: all.pg.sql(running, database="postgres")[0][0] == 4, "they run")
    kill(first)
    began = time.monotonic()
    others_have = lambda: sum(all.granted(one) for one in others)  # noqa: E731
    eventually(lambda: others_have() >= 33, "the free part is given out", timeout_s=60)
    granted = others_have()
    still_run = all.pg.sql(running, database="postgres")[0][0] == 4
    assert granted <= 36 or not still_run, "the connections of its statements are given out"
    print(f"free part given out {time.monotonic() - began:.1f} s after the kill, lease {TTL_S} s")
    eventually(lambda: others_have() == 39, "and the rest when its statements are over", timeout_s=60)
    print(f"the rest after {time.monotonic() - began:.1f} s")
    uses(all, 38)
    for crowd in crowds[1:]:
        crowd.stop()
        assert not crowd.faults


def test_a_clean_stop(fleet):
    """The part of a pooler that ends is used by the others at once."""
    all = fleet()
    first, *others = all.poolers
    gone = all.crowd(first, 40)
    for one in others:
        all.crowd(one, 60)
    shares(all, all.poolers, 12)
    uses(all, 38)
    gone.ends.set()
    first.expect_exit = True
    first.signal(signal.SIGINT)
    assert first.process.wait(60) == 0
    began = time.monotonic()
    eventually(lambda: sum(all.granted(one) for one in others) == 39, "its part is given out", timeout_s=60)
    uses(all, 38)
    took_s = time.monotonic() - began
    print(f"used {took_s:.2f} s after the end of the process")
    # The lease alone would take longer.
    assert took_s < TTL_S + 10


def test_a_pooler_that_is_cut_off_from_etcd(fleet, etcd):
    """It keeps its connections and opens no more; the others get only what it does not have; it comes back."""
    relay = Relay(etcd.port)
    try:
        all = fleet(endpoints={0: relay.url})
        first, *others = all.poolers
        crowds = [all.crowd(one, 50) for one in all.poolers]
        shares(all, all.poolers, 12)
        uses(all, 38)
        relay.cut()
        eventually(lambda: all.row(first)["state"] == "frozen", "it says so", timeout_s=60)
        assert "etcd" in all.row(first)["reason"]
        done = crowds[0].done
        eventually(lambda: crowds[0].done > done + 50, "its clients are served")
        eventually(lambda: int(all.row(others[0])["kept_back"]) > 0, "the others keep its part back", timeout_s=60)
        relay.mend()
        eventually(lambda: all.row(first)["state"] == "shared", "it is back", timeout_s=60)
        shares(all, all.poolers, 12)
        all.stop_crowds()
        assert not any(crowd.faults for crowd in crowds)
    finally:
        relay.cut()


def test_a_frozen_pooler(fleet):
    """A pooler that stands still for longer than its lease opens nothing when it goes on, before it has asked."""
    all = fleet()
    first = all.poolers[0]
    for one in all.poolers:
        all.crowd(one, 50)
    shares(all, all.poolers, 12)
    uses(all, 38)
    for _ in range(2):
        first.signal(signal.SIGSTOP)
        eventually(lambda: int(all.row(all.poolers[1])["kept_back"]) > 0, "its lease is over", timeout_s=60)
        time.sleep(1)
        first.signal(signal.SIGCONT)
        eventually(lambda: all.row(first)["state"] == "shared", "it is back", timeout_s=60)
        shares(all, all.poolers, 12)


def test_etcd_is_killed_and_comes_back(fleet, etcd):
    """Without etcd each pooler keeps what it has; with it they share again. A pooler that starts meanwhile has nothing."""
    all = fleet()
    crowds = [all.crowd(one, 50) for one in all.poolers]
    shares(all, all.poolers, 12)
    uses(all, 38)
    etcd.stop(signal.SIGKILL)
    eventually(lambda: all.row(all.poolers[0])["state"] == "frozen", "the parts hold no longer", timeout_s=60)
    done = [crowd.done for crowd in crowds]
    eventually(lambda: all_more(crowds, done), "all are served")
    etcd.start()
    eventually(lambda: {all.row(one)["state"] for one in all.poolers} == {"shared"}, "they share again", timeout_s=60)
    shares(all, all.poolers, 12)
    uses(all, 38)
    all.stop_crowds()
    assert not any(crowd.faults for crowd in crowds)


def all_more(crowds, done):
    return all(crowd.done > before + 20 for crowd, before in zip(crowds, done, strict=True))


def test_the_leader_is_killed(fleet):
    """Another pooler leads, and gives its part out."""
    all = fleet()
    for one in all.poolers:
        all.crowd(one, 50)
    shares(all, all.poolers, 12)
    leader = all.row(all.poolers[0])["leader"]
    port = int(leader.split("#")[0].rsplit("/", 1)[0].rsplit(":", 1)[1])
    [led] = [one for one in all.poolers if one.port == port]
    others = [one for one in all.poolers if one is not led]
    kill(led)
    eventually(lambda: sum(all.granted(one) for one in others) == 39, "the others have all", timeout_s=60)
    assert all.row(others[0])["leader"] not in (None, leader)
    uses(all, 38)


def test_a_limit_is_reloaded(fleet):
    """A lower limit is followed before anything else; a higher one is used."""
    all = fleet()
    for one in all.poolers:
        all.crowd(one, 50)
    shares(all, all.poolers, 12)
    uses(all, 38)
    for one in all.poolers:
        one.write_ini(max_db_connections=20)
        one.reload()
    eventually(lambda: all.count() <= 20, "the lower limit holds", timeout_s=60)
    eventually(lambda: all.count() >= 18, "and is used", timeout_s=60)
    for _ in range(50):
        assert all.count() <= 20
        time.sleep(0.02)
    for one in all.poolers:
        one.write_ini(max_db_connections=40)
        one.reload()
    uses(all, 38)


def test_an_online_restart_counts_once(fleet):
    """While two processes of a pooler run, they have no more than the part of one; the new one goes on with the name."""
    all = fleet()
    first = all.poolers[0]
    crowds = [all.crowd(one, 50) for one in all.poolers[1:]]
    pinned = first.raw(timeout_s=60)
    sessions = [first.raw(timeout_s=60) for _ in range(8)]
    pinned.query("begin")
    pinned.query("select 1")
    # One connection is taken. The others' clients leave this pooler no second one until a client here waits for it.
    for session in sessions:
        assert session.value("select 7") == "7"
    old = first.process
    first.arguments = ["--quiet", "-R"]
    first.start(wait=False)
    eventually(lambda: all.row(first)["state"] == "shared", "the new process has the part", timeout_s=60)
    assert old.poll() is None, "the open transaction is served by the old process"
    assert int(all.row(first)["poolers"]) == 3, "both processes are one pooler"
    for session in sessions:
        assert session.value("select 7") == "7"
    pinned.query("commit")
    pinned.hang_up()
    for session in sessions:
        session.hang_up()
    assert old.wait(timeout=60) == 0
    all.crowd(first, 50)
    shares(all, all.poolers, 12)
    uses(all, 38)
    assert not any(crowd.faults for crowd in crowds)


def test_max_user_connections(fleet, pg):
    """The limit on a user is shared in the same way."""
    all = fleet(limit=12, max_db_connections=0, max_user_connections=12)
    for one in all.poolers:
        all.crowd(one, 20)
    row = lambda one: all.row(one, "alice")  # noqa: E731
    eventually(lambda: all_granted(row, all.poolers, 3), "each has its part", timeout_s=60)
    assert row(all.poolers[0])["kind"] == "user"
    uses(all, 10)


def all_granted(row, poolers, least):
    return all(int(row(one)["granted"] or 0) >= least for one in poolers)


def test_a_pooler_that_starts_without_etcd(fleet, pg):
    """Without etcd a pooler that starts serves no client of a limited database: another pooler may have everything."""
    all = fleet(count=1, limit=5, endpoints={0: f"http://127.0.0.1:{free_port()}"})
    [one] = all.poolers
    session = one.raw(login=False)
    one.logged("shared limits: etcd cannot be asked")
    assert (all.row(one)["state"], all.row(one)["granted"]) == ("joining", "0")
    assert all.count() == 0
    session.hang_up()


def test_another_prefix_is_another_fleet(fleet):
    """Poolers with another prefix in etcd have the limit for themselves."""
    all = fleet(count=2, limit=3, refuses=False)
    first, second = all.poolers
    shares(all, all.poolers, 1)
    assert all.row(first)["poolers"] == "2"
    second.write_ini(shared_limits_prefix="/pgweir/others/")
    second.reload()
    eventually(lambda: [all.row(one)["poolers"] for one in (first, second)] == ["1", "1"], "each is alone", timeout_s=60)
    all.limit = 6
    held = [one.raw() for one in all.poolers for _ in range(2)]
    for session in held:
        session.query("begin")
    assert all.count() == 4
    for session in held:
        session.hang_up()


def test_settings_that_lack_something(poolers, pg):
    """`shared_limits=etcd` without etcd is refused with the reason; `off` shares nothing."""
    pooler = poolers({"app": pg.at("app")}, max_db_connections=5)
    assert pooler.show("limits") == []
    with pooler.raw() as session:
        assert session.value("select 7") == "7"
    pooler.write_ini(shared_limits="etcd")
    with contextlib.suppress(Exception):
        pooler.reload()
    assert pooler.logged("shared_limits=etcd needs etcd_endpoints")


@pytest.mark.slow
def test_six_hundred_clients(fleet):
    """Forty connections over three poolers with 600 clients: PostgreSQL never has 41, whatever ends and comes back."""
    all = fleet(max_client_conn=1000)
    for one in all.poolers:
        all.crowd(one, 200)
    shares(all, all.poolers, 12)
    uses(all, 38)
    for victim in (1, 2):
        kill(all.poolers[victim])
        time.sleep(TTL_S + 2)
        all.poolers[victim].start()
        all.crowd(all.poolers[victim], 200)
        eventually(lambda victim=victim: all.granted(all.poolers[victim]) >= 12, "it is back", timeout_s=90)
    uses(all, 38)

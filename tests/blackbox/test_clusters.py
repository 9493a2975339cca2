"""Databases that are served by a cluster: pgweir finds the primary, follows a promotion, and holds clients while there is none."""

import contextlib
import functools
import os
import signal
import threading
import time
import urllib.request

import psycopg
import pytest

from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually, free_port
from harness.wire import Closed

FAST = {"check_interval_ms": 100, "check_timeout_ms": 500, "down_after_ms": 500, "primary_max_age_ms": 3000, "primary_wait": 20}


class Nodes:
    """A primary and its standbys, and what a pooler's configuration says of them."""

    def __init__(self, certificates, count=2, major=DISTRIBUTION):
        self.primary = Cluster(major, certificates)
        self.all = [self.primary]
        self.primary.sql("create role checker login password 'pw-of-checker'")
        self.primary.sql("create table changes (who text, n int)")
        self.primary.sql("grant all on changes to public")
        # As by default: standbys are sent what is flushed, else up to 200 ms later.
        self.primary.sql("alter system set synchronous_commit = 'on'")
        self.primary.sql("select pg_reload_conf()")
        for _ in range(count - 1):
            self.all.append(Cluster(major, certificates, follows=self.primary))
        # A standby that becomes the primary before it has the table, or the right to change it, refuses the clients' changes.
        may = "select count(*) from pg_class where relname = 'changes' and has_table_privilege('bob', oid, 'insert')"
        for node in self.all:
            eventually(lambda node=node: node.sql(may) == [(1,)], "the node has the table and the rights")

    def ini(self, nodes=None, **options):
        """The sections [clusters] and [nodes]."""
        options = {"check_user": "checker", **FAST, **options}
        words = " ".join(f"{key}={value}" for key, value in options.items())
        lines = ["[nodes]"]
        lines += [f"m{n} = host=127.0.0.1 port={node.port}" for n, node in enumerate(self.all, 1)]
        names = ",".join(nodes or (f"m{n}" for n in range(1, len(self.all) + 1)))
        return "\n".join([*lines, "[clusters]", f"main = nodes={names} {words}", ""])

    def discard(self):
        for node in self.all:
            node.discard()


@pytest.fixture
def nodes(certificates):
    """A function that makes a primary with standbys."""
    made = []

    def make(count=2, **options):
        made.append(Nodes(certificates, count, **options))
        return made[-1]

    yield make
    for one in made:
        one.discard()


@pytest.fixture
def clustered(poolers):
    """A function that starts a pooler for these nodes, whose database app is the cluster's."""

    def start(nodes, options=None, **settings):
        tail = nodes.ini(**(options or {}))
        return poolers({"app": "cluster=main"}, ini_tail=tail, **settings)

    return start


def port_of(session):
    """The port of the server that the session's transactions run on."""
    return int(session.value("select inet_server_port()"))


def node_states(pooler):
    """State by node."""
    return {row["node"]: row["state"] for row in pooler.show("NODES")}


def shown(pooler):
    """The row of SHOW CLUSTERS."""
    return pooler.show("CLUSTERS", cluster="main")[0]


class Later(threading.Thread):
    """Something that blocks, in another thread; `value` waits for what came of it."""

    def __init__(self, action):
        super().__init__(daemon=True)
        self.action, self.result, self.error = action, None, None
        self.start()

    def run(self):
        try:
            self.result = self.action()
        except Exception as error:  # noqa: BLE001: it is the thread's result
            self.error = error

    def value(self):
        self.join(30)
        assert not self.is_alive(), "it still waits"
        if self.error:
            raise self.error
        return self.result


def test_clients_follow_a_promotion(nodes, clustered):
    """After a promotion the same clients go on with the new primary, and SHOW says what the nodes are."""
    two = nodes(2)
    pooler = clustered(two)
    old, new = two.all
    with pooler.raw() as session:
        assert port_of(session) == old.port
        eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
        session.query("insert into changes values ('a', 1)")
        eventually(lambda: new.sql("select n from changes") == [(1,)], "the standby has it")
        old.stop(signal.SIGQUIT)
        new.promote()
        assert port_of(session) == new.port
        assert not session.query("insert into changes values ('a', 2)").errors
    assert new.sql("select n from changes order by n") == [(1,), (2,)]
    assert (shown(pooler)["primary"], shown(pooler)["epoch"], shown(pooler)["timeline"]) == ("m2", "2", "2")


@pytest.mark.parametrize("major", ["14", "18"])
def test_other_versions(nodes, clustered, major):
    """The same with the oldest version that a cluster may have, and with a newer one."""
    two = nodes(2, major=major)
    pooler = clustered(two)
    with pooler.raw() as session:
        assert port_of(session) == two.all[0].port
        eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
        two.all[0].stop(signal.SIGQUIT)
        two.all[1].promote()
        assert port_of(session) == two.all[1].port


def test_a_version_that_is_too_old(nodes, clustered):
    """PostgreSQL 13 does not tell a client at its login whether it is in recovery: it is refused, and SHOW NODES says so."""
    one = nodes(1, major="13")
    pooler = clustered(one)
    eventually(lambda: node_states(pooler) == {"m1": "refused"}, "it is refused")
    assert "needs 14" in pooler.show("NODES")[0]["last_error"]


def test_clients_wait_in_order_while_there_is_no_primary(nodes, clustered):
    """Statements and logins wait for the next primary, and are served in the order in which they came."""
    two = nodes(2)
    pooler = clustered(two, default_pool_size=1)
    old, new = two.all
    with pooler.raw() as one, pooler.raw() as two_, pooler.raw() as three:
        for session in (one, two_, three):
            session.query("select 1")
        eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
        old.stop(signal.SIGQUIT)
        eventually(lambda: shown(pooler)["state"] == "held", "the pooler knows that there is no primary")
        eventually(lambda: node_states(pooler)["m1"] == "down", "it is down")
        later = []
        for number, session in enumerate((one, two_, three), 1):
            text = f"insert into changes values ('w', {number})"
            later.append(Later(lambda session=session, text=text: session.query(text)))
            eventually(lambda number=number: shown(pooler)["held_clients"] == str(number), "it waits")
        login = Later(lambda: port_of(pooler.raw(user="bob")))
        eventually(lambda: shown(pooler)["held_clients"] == "4", "a login waits, too")
        assert shown(pooler)["held_since"] and "m1: down" in shown(pooler)["reason"]
        new.promote()
        assert not [answer.errors for answer in (one.value() for one in later) if answer.errors]
        assert login.value() == new.port
    assert new.sql("select n from changes where who = 'w'") == [(1,), (2,), (3,)]
    assert shown(pooler)["held_clients"] == "0"


def test_primary_wait(nodes, clustered):
    """A client that has waited for primary_wait gets an error that says what each node is; with 0 it gets it at once."""
    one = nodes(1)
    pooler = clustered(one, {"primary_wait": 1})
    with pooler.raw() as session:
        session.query("select 1")
        one.primary.stop(signal.SIGQUIT)
        with pytest.raises(Closed) as closed:
            session.query("select 1")
    error = closed.value.error
    assert error["C"] == "57P03" and "main" in error["M"] and "m1: down" in error["D"], error
    pooler.ini_tail = one.ini(primary_wait=0)
    pooler.write_ini()
    pooler.reload()
    with pytest.raises(Closed) as closed, pooler.raw() as session:
        began_s = time.monotonic()
        session.query("select 1")
    assert closed.value.error["C"] == "57P03" and time.monotonic() - began_s < 1


def test_a_restart_in_place(nodes, clustered):
    """While the primary restarts its clients wait; it is the same primary afterwards, in a new epoch."""
    one = nodes(1)
    pooler = clustered(one)
    with pooler.raw() as session:
        session.query("select 1")
        one.primary.stop()
        later = Later(lambda: session.query("insert into changes values ('r', 1)"))
        one.primary.start()
        assert not later.value().errors
    assert (shown(pooler)["primary"], shown(pooler)["epoch"]) == ("m1", "2")


@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_terminated_backends_are_no_evidence(nodes, clustered, times):
    """Whatever is terminated, and however often, while clients change rows: the view stays what it is."""
    two = nodes(2)
    pooler = clustered(two)
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    ends, done = threading.Event(), [0] * 4

    def work(number):
        while not ends.is_set():
            with contextlib.suppress(psycopg.Error), pooler.connect() as session:
                while not ends.is_set():
                    session.execute("insert into changes values (%s, 1)", [f"c{number}"])
                    done[number] += 1

    workers = [Later(functools.partial(work, number)) for number in range(len(done))]
    try:
        for _ in range(times):
            before = sum(done)
            for node in two.all:
                node.sql("select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()")
            assert node_states(pooler) == {"m1": "primary", "m2": "standby"}
            eventually(lambda: sum(done) > before, "clients go on")  # noqa: B023
    finally:
        ends.set()
    for worker in workers:
        worker.value()
    assert shown(pooler)["epoch"] == "1"
    assert "is down" not in pooler.log() and "is unsure" not in pooler.log()


def test_what_a_client_is_told_of_its_transaction(nodes, clustered):
    """Rolled back if nothing of the transaction was under way, unknown if a statement was; and the errors say so."""
    one = nodes(1)
    pooler = clustered(one)
    with pooler.raw() as idle, pooler.raw() as busy:
        idle.query("begin")
        idle.query("insert into changes values ('i', 1)")
        busy.query("select 1")

        def crash():
            # No word comes from a process that is killed; PostgreSQL then ends all the others and recovers.
            os.kill(one.primary.running("pg_sleep")[0][0], signal.SIGKILL)

        sleeping = one.primary.when_running("pg_sleep", crash)
        with pytest.raises(Closed) as closed:
            busy.query("insert into changes select 'b', 1 from pg_sleep(60)")
        assert closed.value.error["C"] == "08007", closed.value.error
        sleeping.join(30)
        eventually(lambda: not pooler.servers(database="app"), "the other process has ended, too")
        [error] = idle.query("commit").errors
        assert error["C"] == "40001" and "rolled back" in error["M"], error
        assert idle.value("select 7") == "7", "the session goes on"


def test_an_old_primary_that_comes_back(nodes, clustered):
    """It is refused and gets no client; as a standby of the new one it is one of the cluster again."""
    two = nodes(2)
    pooler = clustered(two)
    old, new = two.all
    with pooler.raw() as session:
        assert port_of(session) == old.port
        old.stop()
        new.promote()
        assert port_of(session) == new.port
        old.start()
        eventually(lambda: node_states(pooler) == {"m1": "refused", "m2": "primary"}, "the old one is refused")
        assert "old primary" in pooler.show("NODES", node="m1")[0]["last_error"]
        assert port_of(session) == new.port
        old.stop()
        old.follow(new)
        eventually(lambda: node_states(pooler) == {"m1": "standby", "m2": "primary"}, "it is a standby")
    assert pooler.log().count("old primary") == 1, "it is said once"


def test_an_online_restart(nodes, clustered):
    """With -R clients and servers go over: a server of the present primary is used on, and the next promotion is followed."""
    two = nodes(2)
    pooler = clustered(two, start=False, server_tls_sslmode="disable")
    pooler.write_ini(pidfile=str(pooler.folder / "pid"))
    pooler.start()
    with pooler.raw() as open_, pooler.raw() as idle:
        open_.query("begin")
        backends = [open_.value("select pg_backend_pid()"), idle.value("select pg_backend_pid()")]
        old = pooler.process
        pooler.arguments = ["--quiet", "-R"]
        pooler.start(wait=False)
        assert old.wait(timeout=30) == 0
        eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "the new process knows both nodes")
        assert open_.value("select pg_backend_pid()") == backends[0]
        open_.query("commit")
        assert idle.value("select pg_backend_pid()") in backends
        two.primary.stop(signal.SIGQUIT)
        two.all[1].promote()
        assert port_of(open_) == port_of(idle) == two.all[1].port


class Ledger(threading.Thread):
    """A client that adds rows, some of them in transactions, and keeps its own account of what it was told."""

    def __init__(self, pooler, name, stop):
        super().__init__(daemon=True)
        self.pooler, self.name_, self.stopping = pooler, name, stop
        self.told, self.unknown, self.rolled_back = set(), set(), set()
        self.start()

    def run(self):
        session, n = self.pooler.raw(), 0
        while not self.stopping.is_set():
            n += 1
            texts = [f"insert into changes values ('{self.name_}', {n})"]
            if n % 3 == 0:
                texts = ["begin", *texts, "commit"]
            try:
                errors = [error for text in texts for error in session.query(text).errors]
                if errors:
                    assert {error["C"] for error in errors} <= {"40001", "25P02"}, errors
                    self.rolled_back.add(n)
                    session.query("rollback")
                else:
                    self.told.add(n)
            except Closed as closed:
                code = (closed.error or {}).get("C")
                (self.rolled_back if code == "40001" else self.unknown).add(n)
                session = self.pooler.raw()
        session.hang_up()


def test_what_each_client_was_told_is_what_the_new_primary_has(nodes, clustered):
    """With synchronous replication: what was acknowledged is there once, what was rolled back is not, the rest was called unknown."""
    two = nodes(2)
    pooler = clustered(two, default_pool_size=4)
    old, new = two.all
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    old.sql("alter system set synchronous_standby_names = '*'")
    old.sql("alter system set synchronous_commit = 'on'")
    old.sql("select pg_reload_conf()")
    eventually(lambda: old.sql("select 1 from pg_stat_replication where sync_state = 'sync'"), "it is synchronous")
    stop = threading.Event()
    clients = [Ledger(pooler, f"c{i}", stop) for i in range(8)]
    try:
        eventually(lambda: all(len(client.told) > 50 for client in clients), "all are at work", timeout_s=30)
        old.stop(signal.SIGQUIT)
        new.promote()
        before = [len(client.told) for client in clients]
        eventually(lambda: all(len(c.told) > n + 50 for c, n in zip(clients, before)), "all go on", timeout_s=30)
    finally:
        stop.set()
        for client in clients:
            client.join(30)
    assert not any(client.is_alive() for client in clients)
    rows = new.sql("select who, n, count(*) from changes group by who, n")
    assert {count for _, _, count in rows} == {1}, "nothing is there twice"
    for client in clients:
        there = {n for who, n, _ in rows if who == client.name_}
        assert client.told <= there, f"lost: {client.told - there}"
        assert not client.rolled_back & there, f"wrongly called rolled back: {client.rolled_back & there}"
        assert there <= client.told | client.unknown, "nothing else is there"
        assert len(client.unknown) <= 3, client.unknown


def test_metrics(nodes, clustered):
    """/metrics has the state of each node, the epoch, and the clients that wait."""
    two = nodes(2)
    port = free_port()
    pooler = clustered(two, http_listen=f"127.0.0.1:{port}", http_anonymous="all")

    def metrics():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    text = metrics()
    assert 'pgweir_cluster_available{cluster="main"} 1\n' in text
    assert 'pgweir_cluster_epoch{cluster="main"} 1\n' in text
    assert 'pgweir_node_state{cluster="main",node="m1",state="primary"} 1\n' in text
    assert 'pgweir_node_state{cluster="main",node="m2",state="primary"} 0\n' in text
    eventually(lambda: 'pgweir_node_lag_bytes{cluster="main",node="m2"} ' in metrics(), "both positions are known")
    with pooler.raw() as session:
        session.query("select 1")
        two.primary.stop(signal.SIGQUIT)
        eventually(lambda: shown(pooler)["state"] == "held", "the pooler knows that there is no primary")
        later = Later(lambda: port_of(session))
        eventually(lambda: 'pgweir_cluster_held_clients{cluster="main"} 1\n' in metrics(), "it waits")
        two.all[1].promote()
        assert later.value() == two.all[1].port


def test_two_primaries(nodes, clustered):
    """If a standby is promoted while the primary lives, the newer timeline gets the clients, and what was open on the old one is cut."""
    two = nodes(2)
    pooler = clustered(two)
    old, new = two.all
    with pooler.raw() as session, pooler.raw() as open_:
        assert port_of(session) == old.port
        open_.query("begin")
        open_.query("insert into changes values ('lost', 1)")
        new.promote()
        eventually(lambda: node_states(pooler) == {"m1": "refused", "m2": "primary"}, "the newer one has it")
        assert port_of(session) == new.port
        [error] = open_.query("insert into changes values ('lost', 2)").errors
        assert error["C"] == "40001", error
        assert not open_.query("rollback").errors
        assert port_of(open_) == new.port
    assert old.sql("select * from changes") == [] == new.sql("select * from changes")


def test_a_client_that_keeps_its_server_is_told(nodes, clustered):
    """In session pooling, and with state that cannot move: the connection ends with the epoch."""
    two = nodes(2)
    pooler = clustered(two)
    sessions = clustered(two, pool_mode="session")
    old, new = two.all
    with pooler.raw() as pinned, sessions.raw() as kept:
        pinned.query("create temporary table t (n int)")
        kept.query("select 1")
        for each in (pooler, sessions):
            eventually(lambda each=each: node_states(each)["m2"] == "standby", "both nodes are known")
        new.promote()
        for each, session in ((pooler, pinned), (sessions, kept)):
            eventually(lambda each=each: node_states(each)["m1"] == "refused", "the old one is refused")
            with pytest.raises(Closed) as closed:
                session.query("select 1")
            assert closed.value.error["C"] == "08006", closed.value.error
    with pooler.raw() as session:
        assert port_of(session) == new.port


def test_attached_and_the_commands_about_nodes(nodes, clustered):
    """A node with attached=0 takes no part until ATTACH; DRAIN holds new transactions; the primary cannot be detached."""
    two = nodes(2)
    tail = two.ini(nodes=["m1", "m2"]).replace(f"port={two.all[1].port}", f"port={two.all[1].port} attached=0")
    pooler = clustered(two)
    pooler.ini_tail = tail
    pooler.write_ini()
    pooler.reload()
    old, new = two.all
    with pooler.raw() as session, pooler.console() as console:
        assert port_of(session) == old.port
        eventually(lambda: pooler.show("NODES", node="m2")[0]["switch"] == "detached", "it is detached")
        assert "is the primary" in console.query("DETACH NODE main.m1").errors[0]["M"]
        assert "no such cluster" in console.query("DRAIN NODE other.m1").errors[0]["M"]
        assert "has no node" in console.query("DRAIN NODE main.m7").errors[0]["M"]
        new.promote()
        eventually(lambda: node_states(pooler)["m2"] == "unsure", "it is seen")
        assert port_of(session) == old.port, "a detached node's claim counts nothing"
        pooler.admin("DRAIN NODE main.m1")
        later = Later(lambda: port_of(session))
        eventually(lambda: shown(pooler)["held_clients"] == "1", "a draining primary gets nothing new")
        pooler.admin("ATTACH NODE main.m2")
        assert later.value() == new.port
        old.stop()
        new.stop()
        eventually(lambda: set(node_states(pooler).values()) == {"down"}, "both are down")
        pooler.admin("DETACH NODE main.m2")
        pooler.admin("ATTACH NODE main.m1")
        old.start()
        eventually(lambda: node_states(pooler)["m1"] == "refused", "an older timeline")
        pooler.admin("RECHECK main")
        assert port_of(session) == old.port


def test_check_user(nodes, clustered):
    """check_user, check_password and check_dbname are those of the watch; if they are refused, SHOW NODES says so."""
    one = nodes(1)
    pooler = clustered(one, {"check_user": "u_scram", "check_dbname": "app2", "check_password": "wrong"})
    eventually(lambda: node_states(pooler) == {"m1": "refused"}, "the login is refused")
    assert "password" in pooler.show("NODES")[0]["last_error"]
    pooler.ini_tail = one.ini(check_user="u_scram", check_dbname="app2", check_password="pw-of-u_scram")
    pooler.write_ini()
    pooler.reload()
    eventually(lambda: node_states(pooler) == {"m1": "primary"}, "the login succeeds")
    watch = "select usename, datname from pg_stat_activity where application_name = 'pgweir watch'"
    eventually(lambda: one.primary.sql(watch) == [("u_scram", "app2")], "one watch")
    assert not pooler.servers(user="u_scram"), "it is none of a pool's servers"


def test_a_server_that_does_not_answer_is_down(nodes, clustered):
    """A frozen server fails its checks after check_timeout_ms, and is down after down_after_ms; then its clients go elsewhere."""
    two = nodes(2)
    pooler = clustered(two, {"check_timeout_ms": 200, "down_after_ms": 1000, "check_interval_ms": 50})
    old, new = two.all
    with pooler.raw() as session:
        assert port_of(session) == old.port
        eventually(lambda: node_states(pooler)["m2"] == "standby", "both nodes are known")
        with old.frozen():
            old_watch = "select pid from pg_stat_activity where application_name = 'pgweir watch'"
            assert new.sql(old_watch), "each node is watched"
            with pytest.raises(Closed):
                session.query("select pg_terminate_backend(pg_backend_pid())")
            with pooler.raw() as other:
                later = Later(lambda: port_of(other))
                eventually(lambda: node_states(pooler)["m1"] == "down", "it is down")
                assert "check_timeout_ms" in pooler.log()
                new.promote()
                assert later.value() == new.port


def test_recovery_wait(nodes, clustered):
    """A node that says it starts up is waited for, but not longer than recovery_wait_ms."""
    one = nodes(1)
    pooler = clustered(one, {"recovery_wait_ms": 300, "primary_wait": 30})
    with pooler.raw() as session:
        session.query("select 1")
        one.primary.stop()
        # A standby that accepts no connections says 57P03 for as long as it runs.
        with open(one.primary.data / "postgresql.conf", "a") as conf:
            conf.write("hot_standby = off\nprimary_conninfo = 'host=127.0.0.1 port=1'\n")
        (one.primary.data / "standby.signal").touch()
        one.primary._ready = lambda: True
        one.primary.start()
        eventually(lambda: node_states(pooler)["m1"] == "starting", "it starts")
        eventually(lambda: node_states(pooler)["m1"] == "down", "it has taken too long")


def test_a_database_joins_a_cluster_at_reload(nodes, clustered, pg):
    """RELOAD moves a database from a host to a cluster and back, and a node that is taken out of the list gets nothing new."""
    two = nodes(2)
    pooler = clustered(two)
    pooler.databases["app"] = two.all[0].at("app")
    pooler.write_ini()
    pooler.reload()
    with pooler.raw() as session:
        assert port_of(session) == two.all[0].port
        pooler.databases["app"] = "cluster=main"
        pooler.write_ini()
        pooler.reload()
        assert port_of(session) == two.all[0].port
        assert pooler.show("CLUSTERS")[0]["primary"] == "m1"
        pooler.ini_tail = two.ini(nodes=["m2"])
        pooler.write_ini()
        pooler.reload()
        later = Later(lambda: port_of(session))
        eventually(lambda: shown(pooler)["held_clients"] == "1", "m1 is none of it any more")
        two.all[1].promote()
        assert later.value() == two.all[1].port
        pooler.databases["app"] = two.all[0].at("app")
        pooler.write_ini()
        pooler.reload()
        assert port_of(session) == two.all[0].port


def test_what_hinders_a_standby_is_said(nodes, clustered):
    """Replay that is paused, an isolation level that a standby refuses, and hot_standby=off: SHOW NODES and the log say it."""
    two = nodes(2)
    pooler, standby = clustered(two), two.all[1]

    def says(state, words):
        eventually(lambda: (row := pooler.show("NODES", node="m2")[0])["state"] == state and words in (row["last_error"] or ""), words)

    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    standby.sql("select pg_wal_replay_pause()")
    says("standby", "its replay is paused")
    pooler.logged("WARNING cluster main: node m2 is standby: its replay is paused")
    standby.sql("select pg_wal_replay_resume()")
    eventually(lambda: pooler.show("NODES", node="m2")[0]["last_error"] is None, "it goes on")
    # A session of the standby's would be refused, too: the file says it.
    with open(standby.data / "postgresql.conf", "a") as conf:
        conf.write("default_transaction_isolation = 'serializable'\n")
    standby.sql("select pg_reload_conf()")
    says("standby", "cannot use serializable mode in a hot standby (SQLSTATE 0A000)")
    with open(standby.data / "postgresql.conf", "a") as conf:
        conf.write("hot_standby = off\n")
    standby.stop()
    standby.launch()
    says("starting", "not accepting connections")

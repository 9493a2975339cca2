"""commit_outcome: what became of a transaction whose primary is lost before its client has the answer to COMMIT."""

import os
import re
import signal
import socket
import threading

import pytest
from harness.machine import eventually
from harness.wire import SYNC, bind, execute, parse
from test_clusters import Nodes, clustered, nodes  # noqa: F401 (fixtures)


class Relay:
    """A way to a server. It can lose what the server says from some time on, and be cut."""

    def __init__(self, port):
        self.to, self.loses, self.pairs = port, False, []
        self.takes = threading.Event()
        self.takes.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                self.takes.wait()
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                if self.listener.fileno() < 0:
                    return
                near.close()
                continue
            self.pairs.append((near, far))
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source, sink, is_server):
        try:
            while data := source.recv(65536):
                if not (is_server and self.loses):
                    sink.sendall(data)
        except OSError:
            pass
        # What is lost ends with the relay: the pooler sees no end of such a connection before.
        if not (is_server and self.loses):
            for end in (source, sink):
                self._shut(end)

    @staticmethod
    def _shut(end):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def end_all(self):
        """Ends all connections: what was to be lost stays lost. New ones lose nothing."""
        self.takes.clear()
        for pair in list(self.pairs):
            for end in pair:
                self._shut(end)
        self.loses = False
        self.takes.set()

    def cut(self):
        """Ends all connections, and takes no new ones."""
        self.listener.close()
        for pair in self.pairs:
            for end in pair:
                self._shut(end)


class Failing:
    """A primary behind a relay, its standby, and a client with an open transaction that has changed something."""

    def __init__(self, nodes, clustered, wal_level="replica", **options):
        self.old, self.new = nodes.all
        for node in nodes.all:
            node.sql(f"alter system set wal_level = {wal_level}")
            node.stop()
            node.start()
        self.relay = Relay(self.old.port)
        real, self.old.port = self.old.port, self.relay.port
        # What a standby has replayed counts if the primary answered within two of these before: seconds, however slow the machine is.
        self.pooler = clustered(nodes, {"commit_outcome": "on", "check_interval_ms": 1000, **options})
        self.old.port = real
        self.client = self.pooler.raw(timeout_s=60)

    def row(self):
        [row] = self.pooler.show("CLUSTERS")
        return {key: int(row[key]) for key in ("outcomes_committed", "outcomes_rolled_back", "outcomes_unknown", "resolving")}

    def has(self, node, who):
        return node.sql("select count(*) from changes where who = %s", (who,)) == [(1,)]

    def change(self, who):
        """A transaction with one change."""
        self.client.query("begin")
        assert not self.client.query(f"insert into changes values ('{who}', 1)").errors
        # Behind the answer to the question for the transaction's number.
        self.client.query("select 1")

    def is_near(self):
        """What the primary has written by now is on the standby, and pgweir knows that."""
        self.old.sql("insert into changes values ('near', 0)")
        [(at,)] = self.old.sql("select pg_current_wal_flush_lsn()::text")

        def known():
            [row] = self.pooler.show("NODES", node="m2")
            return row["position"] and as_number(row["position"]) >= as_number(at)

        eventually(known, "pgweir knows that the standby is near", timeout_s=20)

    def commit(self):
        """COMMIT, with an answer that is lost. Returns when it has taken effect."""
        self.relay.loses = True
        self.client.send(query("commit"))

    def fail_over(self):
        self.old.stop(signal.SIGQUIT)
        self.relay.cut()
        self.new.promote()

    def told(self):
        return self.client.until()


def query(text):
    body = text.encode() + b"\0"
    return b"Q" + (len(body) + 4).to_bytes(4, "big") + body


def as_number(position):
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)


@pytest.fixture
def failing(nodes, clustered):  # noqa: F811
    made = []

    def make(**options):
        made.append(Failing(nodes(2), clustered, **options))
        return made[-1]

    yield make
    for one in made:
        one.relay.cut()
        one.client.hang_up()


@pytest.mark.parametrize("sync", [False, True])
def test_a_commit_that_was_replicated_is_told(failing, sync):
    case = failing()
    if sync:
        case.old.sql("alter system set synchronous_standby_names = '*'")
        case.old.sql("select pg_reload_conf()")
        eventually(lambda: case.old.sql("select sync_state from pg_stat_replication") == [("sync",)], "the standby is synchronous")
    case.change("replicated")
    case.is_near()
    case.commit()
    eventually(lambda: case.has(case.new, "replicated"), "the standby has the commit")
    case.fail_over()
    answer = case.told()
    assert answer.commands == ["COMMIT"] and answer.status == "I", answer
    assert case.client.value("select count(*) from changes where who = 'replicated'") == "1", "the session goes on"
    assert case.row() == {"outcomes_committed": 1, "outcomes_rolled_back": 0, "outcomes_unknown": 0, "resolving": 0}


def test_a_commit_that_was_not_replicated_is_told_rolled_back(failing):
    case = failing()
    [(sender,)] = case.old.sql("select pid from pg_stat_replication")
    case.is_near()
    os.kill(sender, signal.SIGSTOP)
    case.change("lost")
    case.commit()
    eventually(lambda: case.has(case.old, "lost"), "the old primary has committed it")
    os.kill(sender, signal.SIGKILL)
    case.fail_over()
    # The numbers of what was lost are given out again, and committed.
    for n in range(20):
        case.new.sql("insert into changes values ('other', %s)", (n,))
    answer = case.told()
    assert [error["C"] for error in answer.errors] == ["40001"] and answer.status == "I", answer
    assert case.client.value("select count(*) from changes where who = 'lost'") == "0"
    assert case.row()["outcomes_rolled_back"] == 1


def test_a_lost_connection_alone_is_no_reason_to_doubt(failing):
    """The primary goes on: it says itself what became of the transaction."""
    case = failing()
    case.change("same")
    case.commit()
    eventually(lambda: case.has(case.old, "same"), "it is committed")
    case.relay.end_all()
    answer = case.told()
    assert answer.commands == ["COMMIT"], answer
    assert case.row()["outcomes_committed"] == 1


def test_a_single_change_whose_commit_is_lost_is_told(failing):
    """pgweir gives it a COMMIT, which waits here for a standby that does not exist, so that its answer can be lost."""
    case = failing()
    case.old.sql("alter system set synchronous_standby_names = 'nowhere'")
    case.old.sql("select pg_reload_conf()")
    eventually(lambda: case.old.sql("show synchronous_standby_names") == [("nowhere",)], "commits wait")
    case.client.send(query("insert into changes values ('single', 1)"))
    waits = "select 1 from pg_stat_activity where wait_event = 'SyncRep'"
    eventually(lambda: case.old.sql(waits) == [(1,)], "its COMMIT waits")
    case.relay.loses = True
    case.relay.end_all()
    case.old.sql("alter system reset synchronous_standby_names")
    case.old.sql("select pg_reload_conf()")
    answer = case.told()
    assert answer.commands == ["INSERT 0 1"] and not answer.errors and answer.status == "I", answer
    assert case.client.value("select count(*) from changes where who = 'single'") == "1"
    assert case.row()["outcomes_committed"] == 1


def test_a_single_change_that_is_lost_before_its_commit_runs_again(failing):
    """Nothing of it was shown, and it is rolled back for certain."""
    case = failing()
    assert case.client.value("select 1") == "1", "it has a server that is up"
    case.relay.loses = True
    case.client.send(query("insert into changes values ('again', 1)"))
    done = "select 1 from pg_stat_activity where state = 'idle in transaction' and usename = 'alice'"
    eventually(lambda: case.old.sql(done) == [(1,)], "PostgreSQL has done it, and waits for COMMIT")
    case.relay.end_all()
    answer = case.told()
    assert answer.commands == ["INSERT 0 1"] and not answer.errors and answer.status == "I", answer
    assert case.client.value("select count(*) from changes where who = 'again'") == "1"


@pytest.mark.parametrize("outcome", ["on", "exact"])
def test_a_commit_that_fails_concerns_nobody_else(nodes, clustered, outcome):  # noqa: F811
    """A deferred constraint fails at the COMMIT that pgweir gives to a single change: each client gets its own answers, before and after."""
    made = nodes(2)
    made.all[0].sql("create table deferred (a int primary key, b int unique deferrable initially deferred)")
    made.all[0].sql("grant all on deferred to public")
    pooler = clustered(made, {"commit_outcome": outcome}, default_pool_size=1)
    failing, other = pooler.raw(), pooler.raw()
    assert not failing.query("insert into deferred values (1, 1)").errors
    for at in range(2, 8):
        text = f"insert into deferred values ({at}, 1)"
        failing.send(query(text) if at % 2 else parse("", text) + bind("", "") + execute() + SYNC)
        answer = failing.until()
        assert [error["C"] for error in answer.errors] == ["23505"] and answer.status == "I", answer
        answer = other.query(f"insert into changes values ('other', {at})")
        assert answer.commands == ["INSERT 0 1"] and not answer.errors, answer
    assert other.value("select count(*) from changes where who = 'other'") == "6"
    assert other.value("select count(*) from deferred") == "1"
    assert not re.search("the question for the number of a transaction failed", pooler.log())


def test_where_others_read_the_log_no_record_is_written(failing):
    """Then a commit cannot be proven; the client is told so, and its session goes on."""
    case = failing(wal_level="logical")
    case.change("logical")
    case.is_near()
    case.commit()
    eventually(lambda: case.has(case.new, "logical"), "the standby has the commit")
    case.fail_over()
    answer = case.told()
    assert [error["C"] for error in answer.errors] == ["08007"] and answer.status == "I", answer
    assert "its number to another one" in answer.errors[0]["D"]
    assert case.row()["outcomes_unknown"] == 1


def test_off_does_not_ask(failing):
    case = failing(commit_outcome="off")
    case.client.query("begin")
    case.client.query("insert into changes values ('off', 1)")
    assert "txid" not in case.old.sql("select query from pg_stat_activity where query ~ 'changes' and pid <> pg_backend_pid()")[0][0]

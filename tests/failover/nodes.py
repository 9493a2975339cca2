"""Clusters that a series runs on. Each can be switched over and loses its primary, and is whole again for the next round."""

import os
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg

from harness.cluster import BESIDE, DISTRIBUTION, Cluster, program
from harness.machine import eventually, processes_of, run_as_service, scratch_folder
from harness.patroni import API_PASSWORD, Etcd, Patroni

from . import ledger

SEGMENT_BYTES = 1 << 24

SERVER = {"synchronous_commit": "on", "wal_level": "replica", "full_page_writes": "on", "max_connections": "200", "wal_log_hints": "on"}


def as_number(position):
    """A position in the write-ahead log as a number of bytes."""
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)


def has_ended(pid):
    """Whether the process is gone, or only its parent has not noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(postmaster):
    """Ends a server without a word, and waits until nothing of it is left. Returns when the signal was sent."""
    pids = processes_of(postmaster)
    killed_s = time.monotonic()
    os.kill(postmaster, signal.SIGKILL)
    eventually(lambda: all(map(has_ended, pids)), "the processes of the killed server are gone", timeout_s=30, every_s=0.005)
    return killed_s


class Remains:
    """The end of a killed server's write-ahead log, copied before anything makes it a standby."""

    def __init__(self, data, timeline, received):
        self.folder = scratch_folder("wal")
        self.timeline = timeline
        first = max(as_number(received) // SEGMENT_BYTES - 1, 1)
        for number in range(first, first + 12):
            segment = data / "pg_wal" / f"{timeline:08X}{number >> 8:08X}{number & 0xFF:08X}"
            if segment.exists():
                shutil.copy(segment, self.folder)

    def commits_behind(self, fork):
        """The transactions that are committed behind this position."""
        words = [program(DISTRIBUTION, "pg_waldump"), "-p", self.folder, "-t", str(self.timeline), "-s", fork, "-r", "Transaction"]
        # It ends with an error where the log ends: within a segment, or ahead of one that was made and never written.
        shown = subprocess.run([*map(str, words)], capture_output=True, text=True)
        lines = [line.split("tx:")[1].split(",") for line in shown.stdout.splitlines() if "desc: COMMIT" in line]
        assert lines or "record" in shown.stderr or "specifies 0 bytes" in shown.stderr, shown.stderr
        return {int(words[0]) for words in lines}

    def discard(self):
        """Removes the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)


def fork_point(data):
    """(timeline, position) at which this primary left the history of the one before."""
    newest = max((data / "pg_wal").glob("*.history"), key=lambda path: path.name)
    timeline, position, *_ = newest.read_text().strip().splitlines()[-1].split("\t")
    return int(timeline), position


class Readiness(threading.Thread):
    """Asks a node itself, every few milliseconds, until it says that it is no standby. `at_s` is when it first said so."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node, self.at_s, self.ends = node, None, False
        self.start()

    def run(self):
        connection = None
        while not self.ends and self.at_s is None:
            try:
                connection = connection or beside(self.node.port)
                if connection.execute("select pg_is_in_recovery()").fetchone() == (False,):
                    self.at_s = time.monotonic()
            except psycopg.Error:
                connection = None
            time.sleep(0.003)
        if connection:
            connection.close()


def beside(port, database="postgres"):
    """A superuser's connection that does not pass through the pooler."""
    return psycopg.connect(host="127.0.0.1", port=port, dbname=database, user="postgres", autocommit=True, application_name=BESIDE, connect_timeout=10)


def ask(node, statement, database="postgres"):
    """Runs one statement at the node itself, and returns its rows."""
    with beside(node.port, database) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def switchover(pooler, target, word):
    """SWITCHOVER, from the moment at which SHOW CLUSTERS has this word of its step, which is given, until pgweir has answered."""
    with ThreadPoolExecutor(1) as background:
        command = background.submit(pooler.admin, f"SWITCHOVER main TO {target.name}")

        def acts():
            return command.done() or word in (pooler.show("CLUSTERS")[0]["switchover"] or "")

        eventually(acts, "the switchover is at its act", timeout_s=30, every_s=0.003)
        if command.done():
            command.result()
        yield time.monotonic()
        command.result(timeout=120)


class Listed:
    """`discovery=sql`: two servers that nothing manages. The series stops and promotes them, as an operator would."""

    discovery = "sql"

    def __init__(self, certificates, synchronous):
        self.synchronous = synchronous
        self.members = [Cluster(DISTRIBUTION, certificates)]
        self.members[0].stop()
        with open(self.members[0].data / "postgresql.conf", "a") as conf:
            conf.write("".join(f"{name} = {value}\n" for name, value in SERVER.items()))
        self.members[0].start()
        ask(self.members[0], "create role checker login password 'pw-of-checker' in role pg_read_all_stats")
        ask(self.members[0], "create database bench owner alice")
        bench = ["pgbench", "-i", "-q", "-s", "5", "-h", "127.0.0.1", "-p", str(self.members[0].port), "-U", "alice", "bench"]
        subprocess.run(bench, check=True, capture_output=True)
        self.members.append(Cluster(DISTRIBUTION, certificates))
        self.members[1].stop()
        for number, member in enumerate(self.members, 1):
            member.name = f"m{number}"
        self.leader = self.members[0]
        self.copy(self.members[1])
        if synchronous:
            self.wait_for_standby("*")

    def ini(self, watch):
        """The sections of pgweir's file."""
        lines = ["[nodes]", *(f"{member.name} = host=127.0.0.1 port={member.port}" for member in self.members)]
        return "\n".join([*lines, "[clusters]", f"main = nodes=m1,m2 {watch}", ""])

    settings = {}

    def copy(self, member):
        """Makes the stopped server a standby of the leader, from a new copy."""
        shutil.rmtree(member.data)
        words = ["-h", "127.0.0.1", "-p", self.leader.port, "-U", "u_repl", "-D", member.data, "-X", "stream", "-c", "fast", "--no-sync"]
        run_as_service(program(DISTRIBUTION, "pg_basebackup"), *words)
        member.data.joinpath("postgresql.auto.conf").write_text("")
        member.follow(self.leader)

    def settled(self):
        """Both are there. Returns the leader."""
        streams = ask(self.leader, "select sync_state from pg_stat_replication where state = 'streaming'")
        return self.leader if streams and self.synchronous in (False, streams[0][0] == "sync") else None

    def settle(self):
        """Makes the server that was stopped or killed in the round before a standby again. Returns the leader."""
        other = next(member for member in self.members if member is not self.leader)
        other.stop()
        self.copy(other)
        if self.synchronous:
            self.wait_for_standby("*")
        return eventually(self.settled, "the standby streams", timeout_s=60)

    def wait_for_standby(self, names):
        """Says for which standbys a COMMIT waits."""
        ask(self.leader, f"alter system set synchronous_standby_names = '{names}'")
        ask(self.leader, "select pg_reload_conf()")

    def by_command(self, pooler, target):
        """SWITCHOVER, and what pgweir says is to be done then. Returns when the act began."""
        with switchover(pooler, target, "promote") as began_s:
            self.leader.stop()
            self.promote(target)
        return began_s

    def promote(self, target):
        """Makes the standby the primary."""
        ask(target, "select pg_promote()")
        self.leader = target

    def by_kill(self, target):
        """Kills the primary and promotes the standby. Returns when the act began, and what is left of the primary."""
        timeline = self.timeline()
        killed_s = kill(self.leader.postmaster())
        remains = Remains(self.leader.data, timeline, received(target))
        self.leader.stop()
        self.promote(target)
        return killed_s, remains

    def by_freeze(self, pooler, target):
        """Freezes the primary, promotes the standby, and wakes the primary up when pgweir knows the new one. Returns when the act began, and
        what is left of the old primary after it has read all that was sent to it."""
        old, timeline = self.leader, self.timeline()
        began_s = time.monotonic()
        with old.frozen(whole=True):
            eventually(lambda: not pooler.show("NODES", node=old.name, state="primary"), "pgweir misses the primary", timeout_s=60)
            sent = received(target)
            self.promote(target)
            eventually(lambda: pooler.show("NODES", node=target.name, state="primary"), "pgweir knows the next primary", timeout_s=60)
        eventually(lambda: not at_work(old), "the old primary has done all that was sent to it", timeout_s=60)
        old.stop(signal.SIGQUIT)
        return began_s, Remains(old.data, timeline, sent)

    def timeline(self):
        """The leader's."""
        return timeline_of(self.leader)

    def discard(self):
        """Ends everything and removes what it wrote."""
        for member in self.members:
            member.discard()


def at_work(primary):
    """The clients' backends that have something to do or an open transaction, but for those that wait for a standby that never answers, or
    for a lock of such a one."""
    waits = "coalesce(wait_event, '') = 'SyncRep' or coalesce(wait_event_type, '') = 'Lock'"
    clients = "backend_type = 'client backend' and datname = 'bench' and state <> 'idle'"
    return ask(primary, f"select pid from pg_stat_activity where {clients} and not ({waits})")


def received(standby):
    """How far a standby has the primary's log."""
    return ask(standby, "select pg_last_wal_receive_lsn()::text")[0][0]


def timeline_of(primary):
    """The timeline that a primary writes."""
    return int(ask(primary, "select pg_walfile_name(pg_current_wal_insert_lsn())")[0][0][:8], 16)


class Patronied:
    """`discovery=patroni` or `etcd`: Patroni stops, promotes and repairs."""

    def __init__(self, certificates, synchronous, discovery):
        self.discovery = discovery
        self.etcd = Etcd()
        dcs = {"synchronous_mode": True} if synchronous else {}
        try:
            self.patroni = Patroni(certificates, self.etcd, 2, parameters=SERVER, dcs=dcs)
        except BaseException:
            self.etcd.discard()
            raise
        self.synchronous = synchronous
        self.members = self.patroni.members
        self.settings = {"allow_discovered_hosts": "127.0.0.0/8"} | ({"etcd_endpoints": self.etcd.url} if discovery == "etcd" else {})

    @property
    def leader(self):
        return self.patroni.leader

    def ini(self, watch):
        """The sections of pgweir's file."""
        ways = {"patroni": "patroni_api=" + ",".join(member.api for member in self.members), "etcd": "etcd_prefix=/service/main/"}
        line = f"discovery={self.discovery} {ways[self.discovery]} patroni_user=switcher patroni_password={API_PASSWORD} {watch}"
        return f"[clusters]\nmain = {line}\n"

    def settled(self):
        """One leads, the other follows. Returns the leader."""
        leader = self.patroni.settled()
        if leader and self.synchronous and not all(member.is_synchronous() for member in self.members if member is not leader):
            return None
        return leader

    def settle(self):
        """Waits until Patroni has repaired what the round before has left. Returns the leader."""
        return eventually(self.settled, "Patroni's cluster is settled", timeout_s=120)

    def by_command(self, pooler, target):
        """SWITCHOVER. Returns when Patroni was asked."""
        with switchover(pooler, target, "Patroni") as began_s:
            return began_s

    def by_patronictl(self, pooler, target):
        """The same by Patroni's own tool."""
        began_s = time.monotonic()
        self.patroni.switch_over(target)
        return began_s

    def by_kill(self, target):
        """Kills the primary. Returns when, and what is left of it."""
        old = self.leader
        timeline, postmaster = timeline_of(old), old.postmaster()
        killed_s = kill(postmaster)
        return killed_s, Remains(old.data, timeline, received(target))

    def discard(self):
        """Ends everything and removes what it wrote."""
        self.patroni.discard()
        self.etcd.discard()


def make(discovery, certificates, synchronous):
    """The cluster for this way of discovery, with the clients' table."""
    nodes = Listed(certificates, synchronous) if discovery == "sql" else Patronied(certificates, synchronous, discovery)
    ask(nodes.leader, ledger.TABLE, "bench")
    return nodes

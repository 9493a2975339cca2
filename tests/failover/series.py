"""A series of switchovers, and of killed or frozen primaries, under TPC-B, through pgweir, and what it cost the clients.

`make failover-series ARGS="--discovery patroni --switchovers 50 --kills 100"`. Beside pgbench there are clients that keep ledgers. The table
says what they were told, whether the database agrees, for how long they were held, and how long the act itself took.
"""

import argparse
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from failover import ledger
from failover.nodes import Readiness, ask, fork_point, make
from harness.machine import eventually, scratch_folder
from harness.pooler import Pooler
from harness.tls import Certificates
from harness.workload import Pgbench

NEAR_BYTES = 4_000_000

WATCH = "check_user=checker primary_wait=60"


@dataclass
class Round:
    """What one act came to. `hold_s` is the longest time in which no change of any client, pgbench's too, was acknowledged."""

    done: int = 0
    failed: int = 0
    disconnected: int = 0
    act_s: float = 0.0
    hold_s: float = 0.0
    first_write_s: float = 0.0
    longest_s: float = 0.0
    verdict: ledger.Verdict = None
    told: Counter = field(default_factory=Counter)
    """What ledgers of unknown outcome and clients of pgbench that gave up were told, and how often."""


@dataclass
class Series:
    """Rounds of one kind."""

    name: str
    rounds: list = field(default_factory=list)

    def total(self, of):
        """The sum over all rounds."""
        return sum(of(one) for one in self.rounds)

    def told(self, word):
        return self.total(lambda one: one.verdict.told[word])

    def quantile(self, of, part):
        """Of the rounds' values."""
        values = sorted(of(one) for one in self.rounds)
        return values[min(int(len(values) * part), len(values) - 1)]

    def row(self):
        """The line of the table."""
        verdicts = [one.verdict for one in self.rounds]
        cells = [self.name, len(self.rounds)]
        cells += [self.total(lambda one: one.done), self.total(lambda one: one.failed), self.total(lambda one: one.disconnected)]
        cells += [self.told(ledger.COMMITTED), self.told(ledger.ROLLED_BACK), self.told(ledger.UNKNOWN)]
        cells += [sum(len(verdict.lost) for verdict in verdicts), sum(len(verdict.doubled) for verdict in verdicts)]
        cells += [sum(len(verdict.wrongly_told) for verdict in verdicts), sum(len(verdict.behind_fork) for verdict in verdicts)]
        cells += [self.times(lambda one: one.act_s), self.times(lambda one: one.hold_s), self.times(lambda one: one.hold_s - one.act_s)]
        cells += [self.times(lambda one: one.first_write_s), self.times(lambda one: one.longest_s)]
        return "| " + " | ".join(map(str, cells)) + " |"

    def times(self, of):
        """Median, 95th percentile and maximum, in milliseconds."""
        return " / ".join(f"{self.quantile(of, part) * 1000:.0f}" for part in (0.5, 0.95, 1))


COLUMNS = [
    "what", "rounds", "pgbench: transactions", "failed", "disconnected", "ledgers: committed", "rolled back", "unknown", "lost", "doubled",
    "wrongly told", "acknowledged behind the fork", "act, ms (p50 / p95 / max)", "hold", "hold - act", "ready to first write", "longest wait",
]  # fmt: skip


class Stage:
    """The nodes and the pooler, and the rounds that are played on them."""

    def __init__(self, options, certificates):
        self.options = options
        self.nodes = make(options.discovery, certificates, options.synchronous)
        self.pooler, self.changes, self.excused = None, [], set()
        try:
            watch = f"{WATCH} commit_outcome={options.commit_outcome} {options.watch}"
            self.pooler = Pooler(
                {"app": "cluster=main", "bench": "cluster=main"}, ini_tail=self.nodes.ini(watch), pool_mode="transaction",
                default_pool_size=20, **self.nodes.settings,
            )  # fmt: skip
        except BaseException:
            self.nodes.discard()
            raise

    def ready(self):
        """One node leads, the other follows closely, and pgweir knows it. Returns the node that is to lead next."""
        leader = self.nodes.settle() if self.changes else eventually(self.nodes.settled, "the nodes are settled", timeout_s=60)

        target = next(member for member in self.nodes.members if member is not leader)
        eventually(lambda: self.pooler.show("NODES", node=leader.name, state="primary"), "pgweir knows the primary", timeout_s=120)
        self.wait_until_near(target)
        return target

    def wait_until_near(self, target):
        """A standby that is far behind is not made the primary."""

        def is_near():
            rows = self.pooler.show("NODES", node=target.name, state="standby")
            return rows and rows[0]["lag_bytes"] and int(rows[0]["lag_bytes"]) < NEAR_BYTES

        eventually(is_near, "the standby is near", timeout_s=120)

    def play(self, act):
        """One round. `act` gives when it began, and what is left of the primary if it was killed."""
        target = self.ready()
        load = Pgbench(self.pooler, clients=self.options.clients)
        clients = ledger.Ledgers(self.pooler, self.options.ledgers)
        with load, clients:
            load.goes_on(500)
            began_s = time.monotonic()
            eventually(lambda: clients.all_have_written_since(began_s), "all clients write", timeout_s=60)
            self.wait_until_near(target)
            readiness = Readiness(target)
            began_s, remains = act(target)
            ready_s = eventually(lambda: readiness.at_s, "the next primary is ready", timeout_s=60)
            eventually(lambda: clients.all_have_written_since(ready_s), "all clients go on", timeout_s=90)
            load.goes_on(200)
        return self.judge(load, clients, began_s, ready_s, remains, target)

    def judge(self, load, clients, began_s, ready_s, remains, target):
        """Holds what was told against the database."""
        lost_xids = set()
        if remains:
            timeline, position = fork_point(target.data)
            assert timeline == remains.timeline, f"left timeline {timeline}, and {remains.timeline} was killed"
            lost_xids = remains.commits_behind(position)
            remains.discard()
        changes = clients.changes()
        verdict = ledger.compare(changes, self.rows(target), lost_xids, ready_s)
        self.changes += changes
        self.excused |= {one.key for one in verdict.behind_fork}
        one = Round(load.done, load.failed, load.disconnected, act_s=ready_s - began_s, verdict=verdict)
        to_monotonic_s = time.monotonic() - time.time()
        told = [c.told_s for c in changes if c.told == ledger.COMMITTED]
        told = sorted([*told, *(at_s + to_monotonic_s for at_s in load.ended_s)])
        one.hold_s = max(after - before for before, after in zip(told, told[1:]))
        one.first_write_s = min(at for at in told if at > ready_s) - ready_s
        one.told = Counter([*(c.why for c in changes if c.told == ledger.UNKNOWN), *load.told])
        one.longest_s = max(load.longest_s, max(c.told_s - c.began_s for c in changes))
        return one

    def rows(self, node):
        """What the database has of the ledgers."""
        return ask(node, "select client, n, count(*) from ledger group by 1, 2", "bench")

    def series(self, name, act, count):
        """Plays the rounds and prints the line of the table. Returns what must not be."""
        series = Series(name)
        for _ in range(count):
            one = self.play(act)
            series.rounds.append(one)
            if self.options.verbose:
                print(Series(f"{name} {len(series.rounds)}", [one]).row(), flush=True)
                for why, times in one.told.most_common():
                    print(f"  {times} x {why}", flush=True)
            for fault in one.verdict.faults():
                print(f"{name}, round {len(series.rounds)}: {fault}", flush=True)
        if count:
            print(series.row(), flush=True)
        return [fault for one in series.rounds for fault in one.verdict.faults()], series

    def at_the_end(self):
        """The ledgers of all rounds once more: nothing that was there has gone since. Returns what must not be."""
        verdict = ledger.compare([one for one in self.changes if one.key not in self.excused], self.rows(self.nodes.leader))
        return verdict.faults()

    def discard(self):
        """Ends everything. Returns what was wrong with the pooler."""
        faults = self.pooler.finish()
        self.nodes.discard()
        return faults


def run(options):
    """Plays all series. Returns them, and what must not be."""
    folder = scratch_folder("series")
    stage = Stage(options, Certificates(folder / "files"))
    nodes, pooler, faults, played = stage.nodes, stage.pooler, [], []
    kinds = [
        ("SWITCHOVER", lambda target: (nodes.by_command(pooler, target), None), options.switchovers),
        ("patronictl switchover", lambda target: (nodes.by_patronictl(pooler, target), None), options.announced),
        ("kill -9 of the primary", nodes.by_kill, options.kills),
        ("frozen, deposed, woken", lambda target: nodes.by_freeze(pooler, target), options.freezes),
    ]
    try:
        print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
        for name, act, count in kinds:
            found, series = stage.series(name, act, count)
            faults += found
            played.append(series)
        faults += stage.at_the_end()
        [row] = pooler.show("CLUSTERS")
        told = ", ".join(f"{word} {row['outcomes_' + word]}" for word in ("committed", "rolled_back", "unknown"))
        print(f"clients at COMMIT were told: {told}", flush=True)
    finally:
        faults += stage.discard()
        shutil.rmtree(folder, ignore_errors=True)
    return played, faults


def options_of(words=None):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--discovery", choices=("sql", "patroni", "etcd"), default="patroni")
    parser.add_argument("--switchovers", type=int, default=5, help="by pgweir's SWITCHOVER")
    parser.add_argument("--announced", type=int, default=0, help="by patronictl; only discovery=etcd sees them before they begin")
    parser.add_argument("--kills", type=int, default=5, help="of the primary, with SIGKILL")
    parser.add_argument("--freezes", type=int, default=0, help="of the primary, which wakes up when pgweir knows the next one; discovery=sql")
    parser.add_argument("--synchronous", action="store_true", help="synchronous replication: what is acknowledged cannot be lost")
    parser.add_argument("--clients", type=int, default=40, help="of pgbench")
    parser.add_argument("--ledgers", type=int, default=20, help="clients that keep ledgers")
    parser.add_argument("--commit-outcome", choices=("off", "on", "exact"), default="on")
    parser.add_argument("--watch", default="", help="further keys of the cluster: 'check_interval_ms=200 ...'")
    parser.add_argument("--verbose", action="store_true", help="a line for each round, too")
    options = parser.parse_args(words)
    if options.freezes and options.discovery != "sql":
        parser.error("--freezes needs --discovery sql: Patroni's agent would have to be frozen, too")
    return options


def main():
    """Runs all series; ends with 1 if a client lost something or was told what is not so."""
    # A shell starts what is in the background with it ignored, and pgbench ends by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, faults = run(options_of())
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()

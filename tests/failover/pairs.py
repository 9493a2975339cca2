"""A series of faults of two poolers under load, and what their clients saw of each.

`make pair-series ARGS="--rounds 10 --ways vip --only kill,cut"`. The poolers, keepalived, HAProxy, three etcd and the clients are in network
namespaces. The clients keep ledgers, which are compared with the database after each round. The table has a line for each way and fault; a bar
that was missed is said, and makes the exit code 1. A run that is stopped (SIGINT, SIGTERM) prints what it has.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from failover import ledger
from failover.crowd import REFUSED, Crowd
from failover.ways import FAULTS, WAYS, Moving
from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually, scratch_folder
from harness.network import Host, Network
from harness.pair import HAPROXY, KEEPALIVED, Machine
from harness.tls import Certificates

THINK_S = 0.3
"""The mean pause of a client between two changes."""

SETTLED_S = 300.0
"""A limit for hangs only: keepalived and etcd take their time on a busy machine."""

COLUMNS = [
    "clients reach them by", "fault", "rounds", "clients hit", "hit clients are back after, ms (p50 / p99 / max)", "bar",
    "longest answer of the others (p99 / max)", "address moved after (p50 / p99 / max)", "two had it (max)",
    "committed", "lost", "doubled", "wrongly told", "gave up waiting",
]  # fmt: skip


@dataclass
class Round:
    """What one fault came to. Times are in seconds."""

    back_s: list
    """For each client that was hit: from the fault, or from its first failure after it, to its next acknowledged change."""
    longest_s: list
    """For each of the other clients: the longest time in which a change was answered."""
    verdict: ledger.Verdict
    told: Counter
    """The errors that clients got, and how often."""
    given_up: int = 0
    moved_s: float | None = None
    """The time after which the other machine had the address; `None` if it never had it."""
    both_s: float = 0.0
    """The time in which both machines had the address, after the fault, or after a cut was mended."""
    faults: list = field(default_factory=list)
    """What must not be, as texts."""


def quantiles(values, *parts):
    """These quantiles of times in seconds, in milliseconds, as a cell of the table."""
    values = sorted(values)
    return " / ".join(f"{values[min(int(len(values) * part), len(values) - 1)] * 1000:.0f}" for part in parts) if values else "-"


@dataclass
class Series:
    """Rounds of one fault, with clients that reach the poolers in one way. `bar_s` is the bar for the 99th percentile; `None`: there is none."""

    way: str
    fault: str
    bar_s: float | None
    rounds: list = field(default_factory=list)

    def back_s(self):
        """Of all clients that were hit, in all rounds."""
        return sorted(value for one in self.rounds for value in one.back_s)

    def misses(self):
        """Whether the 99th percentile is above the bar."""
        values = self.back_s()
        return bool(self.bar_s and values) and values[min(int(len(values) * 0.99), len(values) - 1)] > self.bar_s

    def row(self):
        """The line of the table."""
        back_s, verdicts = self.back_s(), [one.verdict for one in self.rounds]
        bar = "-" if self.bar_s is None or not back_s else f"{self.bar_s * 1000:.0f}: {'missed' if self.misses() else 'held'}"
        cells = [self.way, self.fault, len(self.rounds), len(back_s), quantiles(back_s, 0.5, 0.99, 1), bar]
        cells += [quantiles([value for one in self.rounds for value in one.longest_s], 0.99, 1)]
        cells += [quantiles([one.moved_s for one in self.rounds if one.moved_s is not None], 0.5, 0.99, 1)]
        cells += [quantiles([one.both_s for one in self.rounds], 1), sum(verdict.told[ledger.COMMITTED] for verdict in verdicts)]
        cells += [sum(len(verdict.lost) for verdict in verdicts), sum(len(verdict.doubled) for verdict in verdicts)]
        cells += [sum(len(verdict.wrongly_told) for verdict in verdicts), sum(one.given_up for one in self.rounds)]
        return "| " + " | ".join(map(str, cells)) + " |"


def outages(book, fault_s):
    """The outages of one client after the fault, in seconds: each begins with a change or an attempt to connect that failed, at the earliest
    when the fault began, and ends with the next acknowledged change."""
    found, began_s = [], None
    for one in book:
        if one.told != ledger.COMMITTED and began_s is None and one.told_s > fault_s:
            began_s = max(fault_s, one.began_s)
        elif one.told == ledger.COMMITTED and began_s is not None:
            found.append(one.told_s - began_s)
            began_s = None
    return found


def overlap(ones, others, since_s):
    """The time after `since_s` that is in a span of both lists."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0], since_s)) for a in ones for b in others)


class Stage:
    """The network, its machines and PostgreSQL, and the rounds that are played on them."""

    def __init__(self, options):
        self.options = options
        self.folder = scratch_folder("pairs")
        self.network, self.pg = Network("ab", Machine), None
        self.machines = list(self.network.hosts)
        self.clients = Host(self.network, "c", 50)
        self.network.hosts.append(self.clients)
        try:
            self.network.build()
            self.pg = Cluster(DISTRIBUTION, Certificates(self.folder / "files"))
            self.pg.sql(ledger.TABLE)
        except BaseException:
            self.discard()
            raise

    def discard(self):
        """Ends everything."""
        if self.pg:
            self.pg.discard()
        self.network.destroy()
        shutil.rmtree(self.folder, ignore_errors=True)

    def bar_s(self, way, fault):
        """The longest time for which 99 of 100 clients that were hit may be without an answer."""
        ttl_s = self.options.vip_ttl
        bars = {
            ("hosts", "kill"): 3,
            ("keepalived", "kill"): 3,
            ("keepalived", "machine"): 5,
            ("vip", "kill"): ttl_s + 1,
            ("vip", "machine"): ttl_s + 1,
        }
        return bars.get((way, fault))

    def series(self, way_name, fault_name, faults):
        """Plays all rounds of a fault and prints the line of the table, also if it is stopped. Adds to `faults` what must not be. Returns the
        rounds."""
        way = WAYS[way_name](self.machines, self.clients, self.pg, self.options.vip_ttl)
        series, found = Series(way.name, fault_name, self.bar_s(way_name, fault_name)), []
        try:
            way.begin()
            while len(series.rounds) < self.options.rounds:
                self.play(way, fault_name, series)
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            found += [str(failure), *(f"last of the log of {m.name}:\n{m.pooler.output()[-2000:]}" for m in self.machines if m.pooler)]
        finally:
            found += way.end()
            found += [text for one in series.rounds for text in one.faults]
            if series.misses():
                found.append(f"p99 is above {series.bar_s:g} s")
            print(series.row(), flush=True)
            for text in found:
                print(f"{way.name}, {fault_name}: {text}", flush=True)
            faults += found
        return series

    def play(self, way, fault_name, series):
        """One round."""
        eventually(way.is_settled, "both poolers serve, and one has the address", SETTLED_S, 0.2)
        fault = FAULTS[fault_name](way, way.victim(), self.options.outage)
        self.empty_ledger()
        with Crowd(self.clients, way.conninfo, self.options.clients, THINK_S, self.options.patience) as crowd:
            crowd.wait_until_all_have_written_since(0, "all clients write")
            fault_s = time.monotonic()
            fault.strike()
            # A fault that ends by itself has ended now.
            served_s = time.monotonic() if fault_name in ("restart", "drain", "etcd") else fault_s
            crowd.wait_until_all_have_written_since(served_s, "all clients are served again")
            mended_s = time.monotonic()
            fault.mend()
            eventually(way.is_settled, "both poolers serve again, and one has the address", SETTLED_S, 0.2)
            settled_s = time.monotonic()
            crowd.wait_until_all_have_written_since(settled_s, "all clients go on")
        one = self.judge(crowd, way, fault, fault_name, fault_s, mended_s)
        one.faults = [f"round {len(series.rounds) + 1}: {text}" for text in one.faults]
        series.rounds.append(one)
        if self.options.verbose:
            print(Series(way.name, f"{fault_name} {len(series.rounds)}", None, [one]).row(), flush=True)
            for why, times in one.told.most_common():
                print(f"  {times} x {why}", flush=True)

    def empty_ledger(self):
        """Removes the rows of the round before. Its clients have ended, and so must their transactions."""
        try:
            self.pg.sql("set lock_timeout = '60s'; truncate ledger")
        except psycopg.errors.LockNotAvailable:
            raise AssertionError("a transaction of a client that is gone still has its locks") from None

    def judge(self, crowd, way, fault, fault_name, fault_s, mended_s):
        """Compares what clients were told with the database, and what became of the address with what the documentation says."""
        rows = self.pg.sql("select client, n, count(*) from ledger group by 1, 2")
        verdict = ledger.compare(crowd.changes(), rows)
        failures = [one for book in crowd.books.values() for one in book if one.told != ledger.COMMITTED]
        hit = {number: outages(book, fault_s) for number, book in crowd.books.items()}
        others = [
            [c.told_s - max(c.began_s, fault_s) for c in crowd.books[number] if c.told_s > fault_s] for number, found in hit.items() if not found
        ]
        told = Counter(one.why for one in failures)
        one = Round([max(found) for found in hit.values() if found], [max(times) for times in others], verdict, told)
        one.given_up = sum(one.told != REFUSED and one.told_s - one.began_s >= self.options.patience for one in failures)
        one.faults += verdict.faults()
        if any(failure.told_s <= fault_s for failure in failures):
            one.faults.append("a client failed before the fault")
        if fault_name in ("restart", "etcd") and one.back_s:
            one.faults.append(f"{len(one.back_s)} clients were cut: {told.most_common(1)}")
        if isinstance(way, Moving):
            self.judge_address(one, way, fault, fault_name, fault_s, mended_s)
        return one

    def judge_address(self, one, way, fault, fault_name, fault_s, mended_s):
        """The address moves once, or not at all, and two machines have it for no longer than a check."""
        own, other = (next(watch.spans() for watch in way.watches if (watch.host is fault.victim) is is_own) for is_own in (True, False))
        taken_s = [began_s for began_s, _ in other if began_s > fault_s]
        one.moved_s = taken_s[0] - fault_s if taken_s else None
        one.both_s = overlap(own, other, mended_s if fault_name == "cut" else fault_s)
        limit_s = way.check_s if fault_name == "cut" else max(way.check_s, way.lingers_s)
        if one.both_s > limit_s:
            one.faults.append(f"two machines had the address for {one.both_s * 1000:.0f} ms, more than {limit_s * 1000:.0f} ms")
        if fault_name in ("restart", "etcd"):
            if taken_s or not any(began_s < fault_s and until_s > mended_s for began_s, until_s in own):
                one.faults.append("the address moved")
        elif fault_name != "cut" and fault.victim.has():
            one.faults.append("the address moved back")


def options_of(words=None):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = lambda known: lambda text: [name if name in known else parser.error(f"{name} is none of {', '.join(known)}") for name in text.split(",")]
    parser.add_argument("--rounds", type=int, default=50, help="of each fault in each way")
    parser.add_argument("--ways", type=names(WAYS), default=list(WAYS), help=f"how clients reach the poolers: {','.join(WAYS)}")
    parser.add_argument("--only", type=names(FAULTS), default=list(FAULTS), help=f"these faults: {','.join(FAULTS)}")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--patience", type=float, default=8.0, help="seconds after which a client gives up an answer and connects again")
    parser.add_argument("--vip-ttl", type=int, default=3, help="the setting vip_ttl")
    parser.add_argument("--outage", type=float, default=60.0, help="seconds for which etcd is down")
    parser.add_argument("--verbose", action="store_true", help="a line for each round, too")
    return parser.parse_args(words)


def run(options, faults):
    """Plays all series. Returns them and `faults`, to which it adds what must not be as soon as that is known."""
    played, stage = [], Stage(options)
    try:
        print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
        for way in options.ways:
            if (way == "keepalived" and not KEEPALIVED) or (way == "haproxy" and not HAPROXY):
                print(f"{way} is not installed (tests/setup.sh installs it)", flush=True)
                continue
            for fault in options.only:
                if fault != "etcd" or way == "vip":
                    played.append(stage.series(way, fault, faults))
    finally:
        stage.discard()
    return played, faults


def stop(*_):
    """Ends the run as Ctrl-C does."""
    raise KeyboardInterrupt


def main():
    """Runs all series; ends with 1 if a bar was missed or a client was told what is not so, else with 130 if it was stopped."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    options, faults, code = options_of(), [], 0
    try:
        run(options, faults)
    except KeyboardInterrupt:
        print("stopped", flush=True)
        code = 130
    sys.exit(1 if faults else code)


if __name__ == "__main__":
    main()

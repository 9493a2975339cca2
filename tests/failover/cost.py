"""What `commit_outcome` and `causal_reads` cost: the same load through one pgweir with and without them, in interleaved rounds.

`make cluster-cost ARGS="--rounds 9 --seconds 5"`. A primary with one standby and `route=auto`. The table has the median of each round's
ratio to the database that has neither, the lowest and the highest, and pgweir's CPU time for a transaction, by the kernel's own count.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually, scratch_folder
from harness.pooler import Pooler
from harness.tls import Certificates

WAYS = {
    "neither": "commit_outcome=off causal_reads=off",
    "neither, again": "commit_outcome=off causal_reads=off",
    "causal_reads=session": "commit_outcome=off causal_reads=session",
    "commit_outcome=on": "commit_outcome=on causal_reads=off",
    "both": "commit_outcome=on causal_reads=session",
    "commit_outcome=exact": "commit_outcome=exact causal_reads=off",
}
# Connections of each pool: together they stay below max_connections.
SERVERS = 12
CHANGE = "\\set aid random(1, 1000000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
HEAD = "| load | | TPS | median ratio | lowest to highest | pgweir's CPU, us |\n|---|---|---|---|---|---|"
LOADS = {"TPC-B": [], "single changes": ["-f", "CHANGE"], "SELECT by key": ["-S"]}


def cpu_us(pid):
    """So long have all threads of the process run."""
    times = (path.read_text().split()[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(nanoseconds) for nanoseconds in times) / 1000


def one_round(pooler, database, arguments, options):
    """Transactions per second, and pgweir's microseconds for each."""
    command = ["pgbench", "-n", "-M", options.protocol, "-c", str(options.clients), "-j", "2", "-T", str(options.seconds), *arguments]
    before = cpu_us(pooler.pid)
    ran = subprocess.run([*command, "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", database], capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stderr)
    done = int(re.search(r"actually processed: (\d+)", ran.stdout)[1])
    return float(re.search(r"tps = ([\d.]+)", ran.stdout)[1]), (cpu_us(pooler.pid) - before) / done


def measure(pooler, ways, load, arguments, options):
    """All rounds of one load; prints a line for each way. The ratios are to the first way."""
    rates, times = {way: [] for way in ways}, {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            rate, time_us = one_round(pooler, f"way{ways.index(way)}", arguments, options)
            rates[way].append(rate)
            times[way].append(time_us)
    for way in ways:
        ratios = [rate / base for rate, base in zip(rates[way], rates[ways[0]], strict=True)]
        spread = f"{statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f}"
        print(f"| {load} | {way} | {statistics.median(rates[way]):.0f} | {spread} | {statistics.median(times[way]):.1f} |", flush=True)


@contextmanager
def bench(standbys, scale, watch, ways, servers):
    """A primary with pgbench's tables and its standbys, and a pgweir with a database for each way: `way0`, `way1` and so on. Gives both."""
    folder = scratch_folder("bench")
    nodes, pooler, faults = [], None, []
    try:
        certificates = Certificates(folder / "files")
        nodes.append(Cluster(DISTRIBUTION, certificates))
        port = str(nodes[0].port)
        nodes[0].sql("create database bench owner alice")
        fill = ["pgbench", "-i", "-q", "-s", str(scale), "-h", "127.0.0.1", "-p", port, "-U", "alice", "bench"]
        subprocess.run(fill, check=True, capture_output=True)
        nodes += [Cluster(DISTRIBUTION, certificates, follows=nodes[0]) for _ in range(standbys)]
        names = ",".join(f"m{n}" for n in range(len(nodes)))
        tail = "[nodes]\n" + "".join(f"m{n} = host=127.0.0.1 port={node.port}\n" for n, node in enumerate(nodes))
        tail += f"[clusters]\nmain = nodes={names} check_user=postgres lag_limit_ms=0 {watch}\n"
        databases = {f"way{n}": f"dbname=bench {where.format(port=port)}" for n, where in enumerate(ways)}
        pooler = Pooler(databases, ini_tail=tail, default_pool_size=servers)
        known = ["primary", *["standby"] * standbys]
        eventually(lambda: sorted(row["state"] for row in pooler.show("NODES")) == known, "the nodes are known")
        yield nodes, pooler
    finally:
        faults = pooler.finish() if pooler else []
        for node in nodes:
            node.discard()
        shutil.rmtree(folder, ignore_errors=True)
    if faults:
        sys.exit("\n".join(faults))


def main():
    """Starts the nodes and pgweir, and measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=5, help="of one run")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--protocol", default="simple", help="of pgbench: simple, extended or prepared")
    parser.add_argument("--only", default="", help="loads whose name has this")
    options = parser.parse_args()
    ways = [f"cluster=main {keys}" for keys in WAYS.values()]
    with bench(1, 10, "route=auto", ways, SERVERS) as (_, pooler), tempfile.NamedTemporaryFile("w", suffix=".sql") as change:
        change.write(CHANGE)
        change.flush()
        print(HEAD, flush=True)
        for load, arguments in LOADS.items():
            if options.only in load:
                whole = [change.name if word == "CHANGE" else word for word in arguments]
                measure(pooler, list(WAYS), load, whole, options)


if __name__ == "__main__":
    main()

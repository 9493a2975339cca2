"""Changes, each followed by a read of it, through pgweir and two standbys that are behind by a changing time; and the reads that do not show it.

`make stale-reads ARGS="--writes 200000"`. It prints a table with a line for each `causal_reads`: the reads that showed less than was
committed before they came, the reads that standbys served, and how long reads took. With `off` some must be stale: the test can fail.
"""

import argparse
import random
import shutil
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually, scratch_folder
from harness.pooler import Pooler
from harness.tls import Certificates

MODES = ["session", "database", "off"]
# So many connections of a pool to a node do; most clients wait for a standby, and need none.
SERVERS_MAX = 32


def start(nodes, clients, wait_ms):
    """A pooler with a database for each mode."""
    tail = "[nodes]\n" + "".join(f"m{n} = host=127.0.0.1 port={node.port}\n" for n, node in enumerate(nodes, 1))
    names = ",".join(f"m{n}" for n in range(1, len(nodes) + 1))
    tail += f"[clusters]\nmain = nodes={names} check_user=postgres check_interval_ms=200 lag_limit_ms=0 route=auto causal_wait_ms={wait_ms}\n"
    databases = {f"app_{mode}": f"cluster=main dbname=app causal_reads={mode}" for mode in MODES}
    pooler = Pooler(databases, ini_tail=tail, default_pool_size=min(clients, SERVERS_MAX), max_client_conn=2 * clients + 20, pool_mode="transaction")
    eventually(lambda: {row["state"] for row in pooler.show("NODES")} == {"primary", "standby"}, "the nodes are known")
    return pooler


class Delays(threading.Thread):
    """Changes each standby's delay, until it is ended: none, a fixed one, or replay that stands for so long."""

    def __init__(self, standbys, seed, longest_ms):
        super().__init__(daemon=True)
        self.standbys, self.random, self.ends = standbys, random.Random(seed), threading.Event()
        self.longest_ms = longest_ms
        self.start()

    def run(self):
        while not self.ends.wait(self.random.uniform(0.05, 0.4)):
            standby = self.random.choice(self.standbys)
            delay_ms = min(self.random.choice([0, 0, 1, 5, 20, 100, self.longest_ms]), self.longest_ms)
            if self.random.random() < 0.5:
                standby.sql("select pg_wal_replay_pause()")
                self.ends.wait(delay_ms / 1000)
                standby.sql("select pg_wal_replay_resume()")
            else:
                standby.sql(f"alter system set recovery_min_apply_delay = {delay_ms}")
                standby.sql("select pg_reload_conf()")

    def end(self):
        self.ends.set()
        self.join()
        for standby in self.standbys:
            standby.sql("select pg_wal_replay_resume()")


class Client(threading.Thread):
    """Changes its own row and reads it; with `database` another connection reads it."""

    def __init__(self, pooler, mode, row, writes, rest_ms):
        super().__init__(daemon=True)
        self.pooler, self.mode, self.row, self.writes, self.rest_ms = pooler, mode, row, writes, rest_ms
        self.done = self.stale = 0
        self.took_s, self.error = [], None
        self.start()

    def run(self):
        try:
            writer = self.pooler.raw(database=f"app_{self.mode}")
            reader = self.pooler.raw(database=f"app_{self.mode}") if self.mode == "database" else writer
            reader.value("select 1")
            written = 0
            while self.done < self.writes:
                written = int(writer.value(f"update kept set n = n + 1 where id = {self.row} returning n"))
                time.sleep(random.uniform(0, self.rest_ms) / 1000)
                began_s = time.monotonic()
                seen = int(reader.value(f"select n from kept where id = {self.row}"))
                self.took_s.append(time.monotonic() - began_s)
                self.done += 1
                self.stale += seen < written
        except Exception as error:  # noqa: BLE001: it is said at the end
            self.error = error


def count(pooler, mode, writes, options):
    """Runs one mode, and prints its line. Returns the number of stale reads."""
    before = {row["node"]: int(row["reads"]) for row in pooler.show("NODES")}
    began_s = time.monotonic()
    rows = options.clients
    clients = [Client(pooler, mode, row, max(1, writes // rows), options.rest_ms) for row in range(rows)]
    for client in clients:
        client.join()
    took_s = time.monotonic() - began_s
    errors = [client.error for client in clients if client.error]
    if errors:
        sys.exit(f"{mode}: {errors[0]!r}")
    stale, done = sum(client.stale for client in clients), sum(client.done for client in clients)
    reads = sorted(took for client in clients for took in client.took_s)
    at_standbys = sum(int(row["reads"]) - before[row["node"]] for row in pooler.show("NODES") if row["node"] != "m1")
    median, high = (1000 * reads[int(part * (len(reads) - 1))] for part in (0.5, 0.99))
    print(f"| {mode} | {done} | {stale} | {at_standbys} | {median:.1f} | {high:.1f} | {1000 * reads[-1]:.1f} | {took_s:.0f} |", flush=True)
    return stale


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--writes", type=int, default=2000, help="changes in each mode (2000); a tenth with off")
    parser.add_argument("--clients", type=int, default=16, help="each with its own row (16); reads wait, so more of them are faster")
    parser.add_argument("--delay-ms", type=int, default=200, help="the longest delay of a standby (200)")
    parser.add_argument("--wait-ms", type=int, default=400, help="causal_wait_ms (400)")
    parser.add_argument("--rest-ms", type=int, default=0, help="a client reads so long after its change, or less; meanwhile the primary may be idle")
    parser.add_argument("--seed", type=int, default=1, help="of the standbys' delays (1)")
    options = parser.parse_args()
    folder = scratch_folder("stale")
    nodes, pooler, stale, faults = [], None, {}, []
    try:
        certificates = Certificates(folder / "files")
        nodes.append(Cluster(DISTRIBUTION, certificates))
        # As a server of users has it. Without, the log of a commit leaves the primary up to 200 ms later.
        nodes[0].sql("alter system set synchronous_commit = on")
        nodes[0].sql("select pg_reload_conf()")
        nodes[0].sql("create table kept (id int primary key, n int); grant all on kept to public")
        nodes[0].sql(f"insert into kept select n, 0 from generate_series(0, {options.clients - 1}) n")
        nodes += [Cluster(DISTRIBUTION, certificates, follows=nodes[0]) for _ in range(2)]
        for standby in nodes[1:]:
            eventually(lambda: standby.sql("select to_regclass('kept') is not null") == [(True,)], "the standby has it")  # noqa: B023
        pooler = start(nodes, options.clients, options.wait_ms)
        print("| causal_reads | changes | stale reads | reads at standbys | median ms | 99 % ms | longest ms | seconds |\n|---|---|---|---|---|---|---|---|", flush=True)
        delays = Delays(nodes[1:], options.seed, options.delay_ms)
        try:
            for mode in MODES:
                # That the test can fail shows soon.
                writes = options.writes // 10 if mode == "off" else options.writes
                stale[mode] = count(pooler, mode, writes, options)
        finally:
            delays.end()
    finally:
        faults = pooler.finish() if pooler else []
        for node in nodes:
            node.discard()
        shutil.rmtree(folder, ignore_errors=True)
    if stale["session"] or stale["database"]:
        faults.append("reads were stale")
    if not stale["off"] and options.delay_ms:
        faults.append("no read was stale with causal_reads=off: this shows nothing")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()

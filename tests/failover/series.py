"""A series of switchovers and of killed primaries under TPC-B, through pgweir, and what it cost the clients.

`make failover-series ARGS="--switchovers 50 --announced 50 --kills 100"`. It prints a table: transactions that failed, clients that were
disconnected, and the longest that a transaction took, which is how long its client was held.
"""

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.machine import eventually, scratch_folder
from harness.patroni import API_PASSWORD, Etcd, Patroni
from harness.pooler import Pooler
from harness.tls import Certificates
from harness.workload import Pgbench

WATCH = "check_user=checker check_interval_ms=200 check_timeout_ms=1000 down_after_ms=1000 primary_max_age_ms=5000 primary_wait=60"


def start(etcd, commit_outcome):
    """A pooler that finds its nodes by etcd."""
    line = f"main = discovery=etcd etcd_prefix=/service/main/ patroni_user=switcher patroni_password={API_PASSWORD} commit_outcome={commit_outcome} {WATCH}"
    return Pooler(
        {"app": "cluster=main", "bench": "cluster=main"}, ini_tail=f"[clusters]\n{line}\n", etcd_endpoints=etcd.url,
        allow_discovered_hosts="127.0.0.0/8", pool_mode="transaction", default_pool_size=20,
    )  # fmt: skip


def ready(patroni, pooler):
    """One node leads, the others follow closely, and pgweir knows it. Returns the node that is to lead next."""
    leader = eventually(patroni.settled, "Patroni's cluster is settled", timeout_s=120)

    def is_known():
        rows = {row["node"]: row for row in pooler.show("NODES")}
        others = [row for name, row in rows.items() if name != leader.name]
        near = all(row["state"] == "standby" and row["lag_bytes"] and int(row["lag_bytes"]) < 4_000_000 for row in others)
        return rows.get(leader.name, {}).get("state") == "primary" and near

    eventually(is_known, "pgweir knows the nodes, and the standbys are near", timeout_s=120)
    return next(member for member in patroni.members if member is not leader)


def leads(pooler, member):
    """Waits until pgweir sends work to this node."""
    eventually(lambda: pooler.show("CLUSTERS")[0]["primary"] == member.name, "pgweir has followed", timeout_s=120)


def by_command(patroni, pooler, target):
    """SWITCHOVER at pgweir's console."""
    pooler.admin(f"SWITCHOVER main TO {target.name}")


def by_patronictl(patroni, pooler, target):
    """The same by Patroni's own tool."""
    patroni.switch_over(target)
    leads(pooler, target)


def by_kill(patroni, pooler, target):
    """The primary is killed without a word."""
    os.kill(patroni.leader.postmaster(), signal.SIGKILL)
    eventually(lambda: pooler.show("CLUSTERS")[0]["state"] == "held", "there is no primary", timeout_s=60)
    eventually(lambda: pooler.show("CLUSTERS")[0]["state"] == "available", "there is a primary again", timeout_s=120)


def series(name, act, rounds, patroni, pooler, clients):
    """Runs the rounds, and prints the row of the table."""
    done = failed = disconnected = 0
    holds = []
    for _ in range(rounds):
        target = ready(patroni, pooler)
        with Pgbench(pooler, clients=clients) as load:
            act(patroni, pooler, target)
            load.goes_on(200)
        done, failed, disconnected = done + load.done, failed + load.failed, disconnected + load.disconnected
        holds.append(load.longest_s)
    holds.sort()
    if rounds:
        median, longest = holds[len(holds) // 2], holds[-1]
        print(f"| {name} | {rounds} | {done} | {failed} | {disconnected} | {median:.2f} s | {longest:.2f} s |", flush=True)


def main():
    """Runs all series."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switchovers", type=int, default=5)
    parser.add_argument("--announced", type=int, default=5)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--commit-outcome", choices=("off", "on"), default="on")
    options = parser.parse_args()
    folder = scratch_folder("series")
    certificates = Certificates(folder / "files")
    etcd = Etcd()
    patroni = pooler = None
    try:
        patroni = Patroni(certificates, etcd, 2)
        pooler = start(etcd, options.commit_outcome)
        print("| what | rounds | transactions | failed | disconnected | longest hold, median | longest hold |\n|---|---|---|---|---|---|---|")
        series("SWITCHOVER", by_command, options.switchovers, patroni, pooler, options.clients)
        series("patronictl switchover", by_patronictl, options.announced, patroni, pooler, options.clients)
        series("kill -9 of the primary", by_kill, options.kills, patroni, pooler, options.clients)
        [row] = pooler.show("CLUSTERS")
        told = ", ".join(f"{word} {row['outcomes_' + word]}" for word in ("committed", "rolled_back", "unknown"))
        print(f"clients at COMMIT were told: {told}", flush=True)
    finally:
        faults = pooler.finish() if pooler else []
        if patroni:
            patroni.discard()
        etcd.discard()
        shutil.rmtree(folder, ignore_errors=True)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()

"""How reads grow with standbys: the same reads through one pgweir, from one node and from two standbys, in interleaved rounds.

`make cluster-scaling ARGS="--rounds 6 --seconds 5"`. Each node gets the same part of a processor by a control group of the kernel, which takes
root, so that the nodes are what limits the load and not the machine that all of it runs on. The table is that of `cost.py`.
"""

import argparse
import os
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from failover.cost import HEAD, bench, measure, one_round
from harness.machine import eventually, processes_of

# Short, so that a statement that waits for its processor still counts as short to pgweir.
PERIOD_US = 4_000
SERVERS = 20
GROUPS = Path("/sys/fs/cgroup")

WAYS = {
    "one node": "host=127.0.0.1 port={port}",
    "one node of the cluster": "cluster=main route=primary",
    "two standbys, route=standby": "cluster=main route=standby",
    "two standbys, route=auto": "cluster=main route=auto causal_reads=session",
}


class Share:
    """A control group with a part of a processor."""

    def __init__(self, name, part):
        is_first_version = (GROUPS / "cpu").is_dir()
        self.folder = (GROUPS / "cpu" if is_first_version else GROUPS) / f"pgweir-{os.getpid()}-{name}"
        self.folder.mkdir()
        quota_us = int(part * PERIOD_US)
        if is_first_version:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")

    def take(self, node):
        """From here on all processes of the node share it; those that it starts later are in it from the beginning."""
        for pid in processes_of(node.postmaster()):
            with suppress(ProcessLookupError):
                (self.folder / "cgroup.procs").write_text(str(pid))

    def discard(self):
        """Its processes have ended."""
        eventually(lambda: not (self.folder / "cgroup.procs").read_text().strip(), "the processes of the node are gone")
        self.folder.rmdir()


def main():
    """Starts the nodes and pgweir, and measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=5, help="of one run")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--protocol", default="prepared", help="of pgbench: simple, extended or prepared")
    parser.add_argument("--part", type=float, default=0.25, help="of a processor, for each node")
    options = parser.parse_args()
    # Nodes with so little of a processor answer late.
    watch = "check_timeout_ms=4000 primary_max_age_ms=8000"
    # The groups are removed when the nodes have ended.
    with ExitStack() as groups, bench(2, 5, watch, WAYS.values(), SERVERS) as (nodes, pooler):
        for number, node in enumerate(nodes):
            share = Share(f"m{number}", options.part)
            groups.callback(share.discard)
            share.take(node)
        for number in range(len(WAYS)):
            # Opening a connection takes long with so little of a processor.
            one_round(pooler, f"way{number}", ["-S"], options)
        print(HEAD, flush=True)
        measure(pooler, list(WAYS), "SELECT by key", ["-S"], options)


if __name__ == "__main__":
    main()

"""The search: rounds by their seeds, what fails made small and written down.

    python -m sessions.fuzz --rounds 3000 --seed 1 --clients 4 --major 15 --set sequence_affinity=pin
    python -m sessions.fuzz --replay sessions/cases/quoted-name.session

`make fuzz-sessions` calls it. Ends with 1 if something was found.
"""

import argparse
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from harness import cluster as clusters
from harness.machine import scratch_folder
from harness.tls import Certificates
from sessions import cache, rounds, swarm
from sessions.arena import Arena, Invalid
from sessions.generate import FEATURES, round_of
from sessions.known import KNOWN
from sessions.shrink import Shrinker

CONFIRM = 5
"""How often a round is played again to see whether it fails each time."""


class Finding:
    """A round that fails, made small, with the difference it shows."""

    def __init__(self, seed, played, difference, times):
        self.seed, self.played, self.difference, self.times = seed, played, difference, times

    def __str__(self):
        how = "each time" if self.times == CONFIRM else f"{self.times} of {CONFIRM} times"
        return f"seed {self.seed} fails ({how} when it is played again):\n{self.difference}\n\n{self.played}"


def attempt(arena, played):
    """The difference of a round, or None; a round that cannot be compared has none."""
    try:
        return arena.compare(played)
    except Invalid:
        return None


def examine(arena, seed, played, found, tries):
    """Plays a failing round again, and makes it small."""
    again = [attempt(arena, played) for _ in range(CONFIRM)]
    times = sum(difference is not None for difference in again)
    signature = found.signature()

    def fails(smaller):
        # One that fails now and then is tried more often.
        for _ in range(1 if times == CONFIRM else 3):
            difference = attempt(arena, smaller)
            if difference is not None and difference.signature() == signature:
                return True
        return False

    small = Shrinker(fails, tries).shrunk(played)
    return Finding(seed, small, next((d for d in (attempt(arena, small) for _ in range(CONFIRM)) if d), found), times)


def search(arena, seeds, clients=4, features=FEATURES, tries=400, most=1, swarm_too=False):
    """Plays the seeds; yields a `Finding` for each that fails, `most` at the most. `swarm_too`: with settings that are drawn, too."""
    left = most
    for seed in seeds:
        played = round_of(seed, clients, features)
        if swarm_too:
            played = replace(played, settings=swarm.draw(seed // swarm.ROUNDS, bool(arena.standbys)))
        if arena.caches(played):
            played = cache.with_reads(played, seed)
        found = attempt(arena, played)
        if found:
            yield examine(arena, seed, played, found, tries)
            left -= 1
            if not left:
                return


def allowed():
    """The features of rounds that are not known to fail."""
    return FEATURES - {feature for known in KNOWN for feature in known.features}


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each round has the next one")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--major", default=clusters.DISTRIBUTION, help="PostgreSQL's major version")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the pooler")
    parser.add_argument("--standbys", type=int, default=0, help="this many standbys, to which the pooler sends reads (route=auto)")
    parser.add_argument("--cluster", action="append", default=[], metavar="NAME=VALUE", help="an option of the cluster: begin_undeclared=first")
    parser.add_argument("--swarm", action="store_true", help=f"draw the settings of the pooler, others after {swarm.ROUNDS} rounds each")
    parser.add_argument("--known", action="store_true", help="also play what is known to fail (known.py)")
    parser.add_argument("--without", default="", help="features of rounds to leave out, with commas: " + ", ".join(sorted(FEATURES)))
    parser.add_argument("--most", type=int, default=10, help="stop after this many failing rounds")
    parser.add_argument("--tries", type=int, default=400, help="how many smaller rounds are tried for one that fails")
    parser.add_argument("--keep", type=Path, help="a folder: each failing round is written there")
    parser.add_argument("--replay", type=Path, nargs="+", help="play these files of rounds instead")
    return parser.parse_args()


def main():
    """The command."""
    given = arguments()
    folder = scratch_folder("tls")
    certificates = Certificates(folder / "files")
    cluster = clusters.Cluster(given.major, certificates)
    standbys = [clusters.Cluster(given.major, certificates, follows=cluster) for _ in range(given.standbys)]
    arena = Arena(cluster, standbys, pairs(given.cluster), **pairs(given.set))
    try:
        failed = replay(arena, given.replay) if given.replay else hunt(arena, given)
    finally:
        faults = arena.finish()
        for node in [*standbys, cluster]:
            node.discard()
        shutil.rmtree(folder)
    print(*faults, sep="\n")
    sys.exit(1 if failed or faults else 0)


def pairs(given):
    """NAME=VALUE arguments as a dictionary."""
    return dict(pair.split("=", 1) for pair in given)


def replay(arena, paths):
    """Plays kept rounds; how many fail."""
    failed = 0
    for path in paths:
        found = attempt(arena, rounds.read(path.read_text()))
        print(f"{path}: {found or 'equal'}")
        failed += found is not None
    return failed


def hunt(arena, given):
    """Plays seeds; how many fail."""
    features = (FEATURES if given.known else allowed()) - set(given.without.split(","))
    begin, failed = time.monotonic(), 0
    seeds = range(given.seed, given.seed + given.rounds)
    for finding in search(arena, seeds, given.clients, features, given.tries, given.most, given.swarm):
        failed += 1
        print(finding, flush=True)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            (given.keep / f"seed-{finding.seed}.session").write_text(f"{finding.played}")
            (given.keep / f"seed-{finding.seed}.txt").write_text(str(finding))
    print(
        f"{given.rounds} rounds from seed {given.seed} on PostgreSQL {given.major}, {time.monotonic() - begin:.0f} s: {failed} failed, "
        f"{arena.incomparable} cannot be compared"
    )
    if arena.standbys:
        print("at standbys: {} reads, {} of which the primary ran after that".format(*arena.reads_at_standbys()))
    if arena.hits:
        print(f"from the query cache: {arena.hits} answers")
    for played in arena.crashes:
        print(f"PostgreSQL crashed:\n{played}")
    return failed


if __name__ == "__main__":
    main()

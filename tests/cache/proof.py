"""The query cache with `follow=wal` against real PostgreSQL: readers check every answer while writers, faults and DDL change what they read.

`make cache-proof ARGS="--hits 1000000 --major 15"`. It prints the answers, hits and violations, and how far answers were behind. With
`--expect-violations` it succeeds only if there are violations: for a binary with a fault (`cargo xtask mutants --build=WORDS`).
"""

import argparse
import multiprocessing
import queue
import re
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cache import world
from cache.faults import Faults
from cache.ledger import VIOLATIONS, Ledger
from cache.readers import Reader
from cache.writers import Writer
from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually, scratch_folder
from harness.pooler import Pooler
from harness.tls import Certificates

DDL_MS = 2000
SLACK_S = 0.05
"""pgweir looks at the clock before it reads what clients have sent: if the machine is busy, time passes in between."""

TABLES = """
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = relnamespace
where relkind in ('r', 'p') and not relispartition and nspname = any(%s) and relname not in ('kv', 'scratch')"""

FORKS = multiprocessing.get_context("fork")


def nodes(major, certificates):
    """A primary whose commits wait for a standby, and the standby."""
    primary = Cluster(major, certificates)
    made = [primary]
    try:
        made.append(Cluster(major, certificates, follows=primary))
        with primary.connect() as connection:
            for statement in world.objects():
                connection.execute(statement)
            names = [name for (name,) in connection.execute(TABLES, [["public", *world.TENANTS]])]
            connection.execute(world.publication(names))
        # Only now: what is made before is not to wait.
        eventually(lambda: primary.sql("select 1 from pg_stat_replication"), "the standby follows")
        primary.sql(f"alter system set synchronous_standby_names = '\"{made[1].folder.name}\"'")
        primary.sql("alter system set synchronous_commit = on")
        primary.sql("select pg_reload_conf()")
        eventually(lambda: primary.sql("select 1 from pg_stat_replication where sync_state = 'sync'"), "commits wait for the standby")
        return made
    except BaseException:
        for node in made:
            node.discard()
        raise


def start(primary, options):
    """The pooler, when it follows the database."""
    settings = {"query_cache": "on", "query_cache_user": "u_repl", "query_cache_max_age_ms": options.max_age_ms, "query_cache_ddl_ms": DDL_MS, "query_cache_verify": 20}
    settings |= {"default_pool_size": 20, "pool_mode": "transaction", "max_prepared_statements": 200, "workers": 2}
    pooler = Pooler({"app": primary.at("app")}, ini_tail="[cache]\nall = database=app follow=wal\n", **settings)
    with pooler.connect() as client:
        client.execute("select 1")
    eventually(lambda: pooler.show("CACHE", database="app")[0]["follow_state"] == "following", "changes are followed")
    return pooler


def processes(options, primary, pooler, ledger, report):
    """The readers and writers, started."""

    def guarded(make):
        try:
            make().run()
        except BaseException as error:  # noqa: BLE001: the process must not go on with its parent's work
            report.put(f"ended: {error!r}")
            ledger.end()

    def writer(number):
        reads_back = number % 2 == 1
        connection = pooler.connect() if reads_back else primary.connect(application_name="past pgweir")
        return Writer(number, options.readers, options.writers, connection, reads_back, ledger, report, options.pause_ms / 1000)

    limit_s = options.max_age_ms / 1000 + SLACK_S
    makes = [lambda number=number: Reader(number, pooler.address, ledger, limit_s, report) for number in range(options.readers)]
    makes += [lambda number=number: writer(number) for number in range(options.writers)]
    started = [FORKS.Process(target=guarded, args=(make,), daemon=True) for make in makes]
    for process in started:
        process.start()
    return started


def counted(pooler):
    """The numbers of SHOW CACHE over all pools."""
    rows = pooler.show("CACHE", database="app")
    names = ["hits", "misses", "fills", "dropped_by_write", "not_fresh", "refused_unsettled", "redefined", "verified", "wrong"]
    return {name: sum(int(row[name]) for row in rows) for name in names}


def until_done(options, pooler, ledger):
    """Waits until there were so many hits, and at least `--seconds-min` have passed; returns the seconds it took."""
    began_s = told_s = time.monotonic()
    while True:
        time.sleep(0.2)
        now_s = time.monotonic()
        shown = counted(pooler)
        if ledger.is_over() or now_s - began_s > options.seconds_max:
            return now_s - began_s
        if shown["hits"] >= options.hits and now_s - began_s >= options.seconds_min:
            return now_s - began_s
        if now_s - told_s > 30:
            told_s = now_s
            print(f"... {shown['hits']} hits after {now_s - began_s:.0f} s", file=sys.stderr, flush=True)


def drained(report):
    """The lines that processes have reported."""
    lines = []
    while True:
        try:
            lines.append(report.get(timeout=0.2))
        except queue.Empty:
            return lines


def hits_by_kind(pooler):
    """The hits of the statements that read each kind of table."""
    found = {}
    for row in pooler.show("STATEMENTS", database="app"):
        table = re.search(r"\b(shared|own|twin|child|parent|key|moved|copy|truncate)_\d+|\b(mine|tenants|shaped|guarded)\b", row["query"])
        if table:
            kind = table[1] or table[2]
            found[kind] = found.get(kind, 0) + int(row["cache_hits"])
    return found


def quantile(behind, part):
    """The time (ms) by which so great a part of the answers was behind, at most."""
    left = part * sum(behind)
    for behind_ms, count in enumerate(behind):
        left -= count
        if left <= 0:
            return behind_ms
    return len(behind) - 1


def table(options, ledger, shown, faults, took_s, kinds):
    """Prints the result."""
    behind = ledger.behind()
    highest = max((behind_ms for behind_ms, count in enumerate(behind) if count), default=0)
    lines = {
        "PostgreSQL": options.major,
        "seconds": f"{took_s:.0f}",
        "answers checked": sum(behind),
        "changes": sum(ledger.begun),
        **shown,
        "answers that did not show an acknowledged change": sum(behind[1:]),
        "behind, 50 % / 99 % / 99.99 % / most (ms)": " / ".join(str(quantile(behind, part)) for part in (0.5, 0.99, 0.9999)) + f" / {highest}",
        **faults.counts,
        **{f"hits of {kind}": count for kind, count in sorted(kinds.items())},
        **{f"VIOLATIONS, {kind}": count for kind, count in ledger.faults().items()},
    }
    print("| | |\n|---|---:|")
    for name, value in lines.items():
        print(f"| {name} | {value} |", flush=True)


def prove(options, folder):
    """Runs it; returns the counts of violations, and what else went wrong."""
    certificates = Certificates(folder / "files")
    primary, standby = nodes(options.major, certificates)
    pooler = faults = None
    wrong, started = [], []
    report, ledger = FORKS.Queue(), Ledger(options.readers + options.writers)
    try:
        pooler = start(primary, options)
        window_s = (DDL_MS + options.max_age_ms) / 1000 + SLACK_S
        started = processes(options, primary, pooler, ledger, report)
        faults = Faults(ledger, primary, standby, pooler, window_s, options.fault_s)
        took_s = until_done(options, pooler, ledger)
        shown, kinds = counted(pooler), hits_by_kind(pooler)
        faults.end()
        ledger.end()
        lines = drained(report)
        for process in started:
            process.join(timeout=60)
        table(options, ledger, shown, faults, took_s, kinds)
        for line in lines[:20]:
            print(line)
        wrong += [line for line in lines if line.startswith("ended: ")]
        wrong += [f"a fault could not be made: {faults.error!r}"] if faults.error else []
        if shown["wrong"]:
            wrong.append(f"{shown['wrong']} kept answers were not those of a server (query_cache_verify)")
        if shown["hits"] < options.hits:
            wrong.append(f"only {shown['hits']} hits")
    finally:
        ledger.end()
        if faults:
            faults.end()
        for process in started:
            process.kill()
        wrong += pooler.finish() if pooler else []
        for node in (standby, primary):
            node.discard()
    return ledger.faults(), wrong


def main():
    """Prints the table. The exit code is 1 if an answer was wrong, or, with `--expect-violations`, if none was."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], epilog="\n".join(f"{k}: {v}" for k, v in VIOLATIONS.items()))
    parser.add_argument("--hits", type=int, default=1_000_000, help="end after so many hits (1000000)")
    parser.add_argument("--major", default=DISTRIBUTION, help=f"PostgreSQL's major version ({DISTRIBUTION})")
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--writers", type=int, default=6, help="every second one writes through pgweir (6)")
    parser.add_argument("--pause-ms", type=float, default=50, help="mean pause of a writer between two changes (50)")
    parser.add_argument("--max-age-ms", type=int, default=200, help="query_cache_max_age_ms, the limit that answers are held against (200)")
    parser.add_argument("--fault-s", type=float, default=10, help="the walsender is killed this often; other faults are more frequent (10)")
    parser.add_argument("--seconds-min", type=float, default=0, help="go on for at least so long")
    parser.add_argument("--seconds-max", type=float, default=3600, help="give up after so long (3600)")
    parser.add_argument("--expect-violations", action="store_true", help="fail if there are none")
    options = parser.parse_args()
    folder = scratch_folder("proof")
    try:
        violations, wrong = prove(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    count = sum(violations.values())
    if options.expect_violations and not count:
        wrong.append("there are no violations: the check sees nothing")
    if not options.expect_violations and count:
        wrong.append(f"{count} violations")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()

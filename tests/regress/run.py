"""PostgreSQL's own regression suite through pgweir: with one node, with a primary, two standbys and `route=auto`, and with the query cache.

`make regress ARGS="--suite postgresql-15.18/src/test/regress"`: the folder of PostgreSQL's sources of the installed major version, with
`regress.so`, `autoinc.so` and `refint.so` built in it. It prints which tests fail in each way, what the standbys did, and what the cache did.
Debian has the sources: `apt-get source postgresql-15`, then `./configure --without-readline --without-zlib`, `make -C src/backend
generated-headers`, `make -C src/test/regress regress.so`, and `make -C contrib/spi` for the two others, which are copied into the suite's folder.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.cluster import Cluster, DISTRIBUTION
from harness.machine import eventually, scratch_folder
from harness.pooler import Pooler
from harness.tls import Certificates

PROGRAMS = Path(f"/usr/lib/postgresql/{DISTRIBUTION}")
WATCH = "check_user=postgres check_interval_ms=200 check_timeout_ms=1000 down_after_ms=2000 primary_max_age_ms=5000"
RULES = {
    "cache-ttl": "[cache]\nall = database=regression ttl_ms=1000\n",
    "cache-coalesce": "",
    "cache-wal": "[cache]\nall = database=regression follow=wal\n",
}
"""The rules of the ways with a query cache."""
PUBLISHED = """
create publication pgweir_cache;
create function public.publish_table() returns event_trigger language plpgsql security definer set search_path = pg_catalog as $$
declare made record;
begin
    for made in select objid, object_identity from pg_event_trigger_ddl_commands() where object_type = 'table' loop
        if exists (select from pg_class join pg_index on indrelid = pg_class.oid where pg_class.oid = made.objid and relkind = 'r'
                and relpersistence = 'p' and not relispartition and relreplident = 'd' and indisprimary) then
            execute 'alter publication pgweir_cache add table only ' || made.object_identity;
        end if;
    end loop;
end $$;
create event trigger publish_table on ddl_command_end when tag in ('CREATE TABLE', 'CREATE TABLE AS') execute function public.publish_table();
"""
"""Publishes each table that is made with a primary key. Some tests show this, or change a key later: so the cache that follows is compared with the
way `published`, which has the publication and no cache."""
DDL_MS = 5000
CACHE_COLUMNS = ("user", "hits", "misses", "fills", "coalesced", "own_changes", "redefined", "dropped_by_write", "follow_state", "follow_reason")
LOCALE = ["lc_messages", "lc_monetary", "lc_numeric", "lc_time"]


def prepared(primary):
    """The database that the suite runs in, as pg_regress would make it."""
    primary.sql("create database regression template template0")
    for name in LOCALE:
        primary.sql(f"alter database regression set {name} to 'C'")
    primary.sql("alter database regression set bytea_output to 'hex'")
    primary.sql("alter database regression set timezone_abbreviations to 'Default'")


def suite(folder, port, output, schedule):
    """Runs the suite; returns the names of the tests that failed."""
    output.mkdir(parents=True)
    # The server writes there, too.
    (output / "results").mkdir()
    for place in (output, output / "results"):
        place.chmod(0o777)
    # fmt: off
    command = [
        PROGRAMS / "lib/pgxs/src/test/regress/pg_regress", "--use-existing", "--dbname=regression", "--user=postgres", "--host=127.0.0.1",
        f"--port={port}", f"--bindir={PROGRAMS}/bin", f"--inputdir={folder}", f"--outputdir={output}", f"--dlpath={folder}",
        f"--schedule={schedule}", "--max-connections=8",
    ]
    # fmt: on
    answer = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    (output / "said.txt").write_text(answer.stdout + answer.stderr)
    results = output / "results"
    for path in results.glob("*"):
        path.chmod(0o666)
    words = [line.split() for line in answer.stdout.splitlines() if "FAILED" in line and "..." in line]
    return {line[line.index("...") - 1] for line in words}, len(list(results.glob("*.out")))


def run(way, options, certificates, folder):
    """One way of running it."""
    nodes = [Cluster(DISTRIBUTION, certificates)]
    pooler = None
    try:
        if way == "auto":
            nodes += [Cluster(DISTRIBUTION, certificates, follows=nodes[0]) for _ in range(2)]
        prepared(nodes[0])
        names = [f"m{n}" for n in range(1, len(nodes) + 1)]
        places = [f"{name} = host=127.0.0.1 port={node.port}" for name, node in zip(names, nodes, strict=True)]
        tail = "\n".join(["[nodes]", *places, "[clusters]", f"main = nodes={','.join(names)} {WATCH} route=auto", ""])
        database = "cluster=main" if way == "auto" else f"host=127.0.0.1 port={nodes[0].port}"
        settings = {"session_state": "preserve", "default_pool_size": 20, "max_prepared_statements": 200}
        if way in RULES:
            settings["query_cache"], tail = "coalesce" if way == "cache-coalesce" else "on", RULES[way]
        if way in ("published", "cache-wal"):
            settings |= {"query_cache_user": "u_repl", "query_cache_ddl_ms": DDL_MS}
            nodes[0].sql(PUBLISHED, database="regression")
        pooler = Pooler({"regression": database}, ini_tail=tail if way == "auto" or way in RULES else "", **settings)
        if way == "auto":
            eventually(lambda: [row["state"] for row in pooler.show("NODES")] == ["primary", "standby", "standby"], "all nodes are known")
        if way == "cache-wal":
            # The first questions about definitions would run beside the suite's first VACUUM, which then marks no page as visible to all.
            with pooler.connect(database="regression", user="postgres") as client:
                client.execute("select 1")
            eventually(lambda: [row["follow_state"] for row in pooler.show("CACHE")] == ["following"], "changes are followed")
        failed, ran = suite(options.suite, pooler.port, folder / way, options.schedule or options.suite / "parallel_schedule")
        kept = pooler.show("CACHE") if way in RULES else []
        for row in kept:
            print({name: row[name] for name in CACHE_COLUMNS}, flush=True)
        if kept and not sum(int(row["hits"]) + int(row["coalesced"]) for row in kept):
            print(f"{way}: no answer came from the cache: this shows only that the cache was not in the way", flush=True)
        shown = pooler.show("NODES") if way == "auto" else []
        for row in shown:
            print({name: row[name] for name in ("node", "reads", "second_tries", "misrouted")}, flush=True)
        print(f"{way}: {ran} tests ran, {len(failed)} failed: {' '.join(sorted(failed))}", flush=True)
        return failed, sum(int(row["misrouted"]) for row in shown)
    finally:
        if pooler:
            shutil.copy(pooler.log_path, folder / f"{way}.log")
            pooler.finish()
        for node in nodes:
            node.discard()


def main():
    """Runs it in all ways; fails if more tests fail with standbys or the cache than without, or a change was taken for a read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--schedule", type=Path)
    parser.add_argument("--ways", default="node,auto", help=f"of node, auto, published, {', '.join(RULES)} (node,auto)")
    options = parser.parse_args()
    folder = scratch_folder("regress")
    folder.chmod(0o755)
    print(f"the results are in {folder}", flush=True)
    certificates = Certificates(folder / "files")
    found = {way: run(way, options, certificates, folder) for way in options.ways.split(",")}
    worse = False
    for way, (failed, misrouted) in found.items():
        base = "published" if way == "cache-wal" else "node"
        if way == base or base not in found or way == "published":
            continue
        more = failed - found[base][0]
        print(f"only with {way}, not with {base}: {' '.join(sorted(more)) or 'none'}; misrouted: {misrouted}")
        worse |= bool(more or misrouted)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()

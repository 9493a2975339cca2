"""The queries of PostgreSQL's regression suite, each several times through the query cache: every answer must be PostgreSQL's own.

`make cache-replay ARGS="--suite postgresql-15.18/src/test/regress"` (run.py says how the suite is made). The suite runs first, without pgweir, and
leaves its tables behind. What keeps a database from being followed is removed then (casts, operators and checks of domains that call functions), all
tables are published, and each query of the suite's files is sent directly and through pgweir, by the simple and the extended protocol, with values in
text and in binary. A query whose direct answers differ is left out.
"""

import argparse
import collections
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.cluster import Cluster, DISTRIBUTION
from harness.machine import eventually, scratch_folder
from harness.pooler import Pooler
from harness.tls import Certificates
from regress.run import RULES, prepared, suite

UNFOLLOWED = [
    "select 'drop cast (' || castsource::regtype || ' as ' || casttarget::regtype || ')' from pg_cast join pg_proc p on p.oid = castfunc "
    "join pg_language l on l.oid = prolang where pg_cast.oid >= 16384 and lanname not in ('c', 'internal')",
    "select 'drop operator family ' || opfnamespace::regnamespace || '.' || quote_ident(opfname) || ' using ' || amname || ' cascade' "
    "from pg_opfamily join pg_am on pg_am.oid = opfmethod where pg_opfamily.oid >= 16384",
    "select 'drop operator ' || oid::regoperator || ' cascade' from pg_operator where oid >= 16384 and oprcode <> 0",
    "select 'alter domain ' || contypid::regtype || ' drop constraint ' || quote_ident(conname) from pg_constraint where contypid >= 16384",
]
"""What makes the statements that remove what keeps a database from being followed."""
QUERY = re.compile(r"(?i)(select|with|table|values)\b")
LEFT_OUT = re.compile(r"(?i)\binto\b|pg_sleep|lo_|setval|nextval|currval|pg_terminate|pg_backend|set_config|pg_notify|advisory|explain|report_guc|work_mem|pg_temp")
"""Queries that make something, wait, end sessions, or tell of their session."""
TOKEN = re.compile(
    r"(?s)--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$|;|\\[^\n]*|[^-/'\"$;\\eE]+|.",
)
WAYS = {"simple": None, "text": 0, "binary": 1}
"""The protocols, with the format of results."""


def queries(text):
    """The queries among the statements of a file for psql."""
    found, current = [], ""
    for token in TOKEN.finditer(text):
        part = token.group()
        if part.startswith(("--", "/*")):
            current += " "
        elif part.startswith("\\"):
            current = ""
        elif part == ";":
            found.append(current.strip())
            current = ""
        else:
            current += part
    # psql puts its variables in.
    is_whole = lambda one: QUERY.match(one) and not LEFT_OUT.search(one) and not re.search(r"(?<![:\w]):['\"a-z]", one)  # noqa: E731
    return [one for one in found if is_whole(one)]


def ask(connection, text, way):
    """The answer to a query, in a form that can be compared: the order of rows does not count."""
    result = connection.pgconn.exec_(text.encode()) if WAYS[way] is None else connection.pgconn.exec_params(text.encode(), [], result_format=WAYS[way])
    if result.error_message:
        return "error", result.error_field(ord("C"))
    columns = [(result.fname(at), result.ftype(at), result.fmod(at), result.fformat(at)) for at in range(result.nfields)]
    rows = [tuple(result.get_value(row, at) for at in range(result.nfields)) for row in range(result.ntuples)]
    return columns, sorted(rows, key=repr), result.command_status


def replay(server, pooler, options):
    """Sends all queries; returns those whose answers differed."""
    counts, wrong = collections.Counter(), []
    row = lambda: next(row for row in pooler.show("CACHE") if row["database"] == "regression")  # noqa: E731
    direct = server.connect("regression")
    direct.execute("set statement_timeout = '3s'")
    for way in WAYS:
        before, seen = int(row()["hits"]), set()
        for path in sorted((options.suite / "sql").glob("*.sql")):
            with pooler.connect(database="regression", user="postgres") as through:
                through.execute("set statement_timeout = '3s'")
                for text in queries(path.read_text(errors="replace")):
                    if text in seen:
                        continue
                    seen.add(text)
                    expected = ask(direct, text, way)
                    if ask(direct, text, way) != expected:
                        counts["left out"] += 1
                        continue
                    counts["queries"] += 1
                    answers = [ask(through, text, way) for _ in range(options.times)]
                    if any(answer != expected for answer in answers) and ask(direct, text, way) == expected:
                        wrong.append((path.name, way, text))
        print(f"{way}: {int(row()['hits']) - before} hits", flush=True)
    shown = row()
    print(f"{counts['queries']} queries, {counts['left out']} left out; compared: {shown['verified']}, wrong: {shown['wrong']}", flush=True)
    if options.verify == 0 and int(shown["hits"]) < counts["queries"] / 10 or int(shown["wrong"]):
        wrong.append(("", "", f"too few hits, or wrong ones: {shown}"))
    return wrong


def main():
    """Fails if an answer is not PostgreSQL's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--times", type=int, default=5, help="how often each query is sent: the third time its answer may be kept")
    parser.add_argument("--verify", type=int, default=0, help="query_cache_verify")
    options = parser.parse_args()
    folder = scratch_folder("replay")
    folder.chmod(0o755)
    server, pooler = Cluster(DISTRIBUTION, Certificates(folder / "files")), None
    try:
        prepared(server)
        failed, ran = suite(options.suite, server.port, folder / "suite", options.suite / "parallel_schedule")
        print(f"{ran} tests ran, {len(failed)} failed: {' '.join(sorted(failed))}", flush=True)
        with server.connect("regression") as admin:
            for made in UNFOLLOWED:
                for (statement,) in admin.execute(made).fetchall():
                    admin.execute(statement)
            admin.execute("create publication pgweir_cache for all tables")
        settings = {"query_cache_user": "u_repl", "query_cache_ddl_ms": 60_000, "query_cache_max_answer": 1_000_000, "query_cache_verify": options.verify}
        places = {"regression": f"host=127.0.0.1 port={server.port}"}
        pooler = Pooler(places, ini_tail=RULES["cache-wal"], pool_mode="transaction", query_cache="on", max_prepared_statements=200, **settings)
        with pooler.connect(database="regression", user="postgres") as client:
            client.execute("select 1")
        eventually(lambda: [row["follow_state"] for row in pooler.show("CACHE")] == ["following"], "changes are followed")
        wrong = replay(server, pooler, options)
        for path, way, text in wrong:
            print(f"differs: {path} {way}: {text[:500]}")
        sys.exit(1 if wrong else 0)
    finally:
        if pooler:
            pooler.finish()
        server.discard()


if __name__ == "__main__":
    main()

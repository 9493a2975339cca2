"""Tools that watch PgBouncer watch pgweir, as PgBouncer 1.25 and 1.26.

pgBadger and Netdata's collector are run. Datadog's check and CloudNativePG's exporter are in no package registry: their statements are sent,
Datadog's with its driver (psycopg2, a DictCursor, autocommit), and the columns that they read are read in their way.
"""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

from drivers import toolchains
from harness.machine import CACHE, TESTS, scratch_folder
from harness.monitoring import program
from harness.pooler import kind
from harness.wire import Closed, Raw

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer has its own version only")

each_version = pytest.mark.parametrize("version", ["1.25", "1.26"])

MONITORING = CACHE / "monitoring" / "usr"


@contextmanager
def watched(pooled, version):
    """A pooler with a client in a transaction, which has run three statements."""
    pooler = pooled(compatible_with=version, stats_period=1)
    with pooler.raw() as session:
        for statement in ("select 1", "begin", "select 2"):
            session.query(statement)
        yield pooler


# -- pgBadger ---------------------------------------------------------------------------------------------------------


def pgbadger(log):
    """What pgBadger reads in a log, as it writes it in JSON. It finds out by itself that the log is PgBouncer's."""
    brought = subprocess.run([TESTS / "monitoring" / "pgbadger.sh"], capture_output=True, text=True)
    if brought.returncode != 0:
        pytest.skip(f"pgBadger is not to be had: {brought.stderr[-200:]}")
    perl = [str(MONITORING / "share" / "perl5"), *map(str, (MONITORING / "lib" / "x86_64-linux-gnu" / "perl5").glob("*"))]
    folder = scratch_folder("badger")
    try:
        written = folder / "report.json"
        command = ["perl", MONITORING / "bin" / "pgbadger", "--quiet", "--extension", "json", "--outfile", written, log]
        environment = {"PATH": "/usr/bin:/bin", "PERL5LIB": ":".join(perl)}
        ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120)
        assert ran.returncode == 0 and not ran.stderr, ran.stderr
        return json.loads(written.read_text())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@each_version
def test_pgbadger(pooled, version):
    """It counts logins, sessions and errors by user, database and host. With 1.25 it reads the statistics line, too; it does not know 1.26's."""
    pooler = pooled(compatible_with=version, stats_period=1, auth_type="md5")
    for _ in range(12):  # pgBadger wants ten lines of clients and servers before it says which program wrote them
        with pooler.raw(password="pw-of-alice") as session:
            assert session.value("select 1") == "1"
            session.terminate()
    for _ in range(2):
        with pytest.raises(Closed), Raw(pooler.address) as session:
            session.login("alice", "app", "wrong")
    pooler.logged(r"(?s)stats: [1-9].*\Z")
    pooler.logged(r"(?s)login failed.*login failed.*stats: .*\n\Z")
    lines = pooler.log()
    read = pgbadger(pooler.log_path)
    logins = read["pgb_connection_info"]
    assert (logins["count"], logins["user"], logins["database"], logins["host"]) == (14, {"alice": 14}, {"app": 14}, {"127.0.0.1": 14})
    assert read["pgb_session_info"]["database"]["app"]["count"] == 14
    [(text, error)] = read["pgb_error_info"].items()
    assert (text, error["count"]) == ("WARNING:  pooler error: password authentication failed", 2)
    assert set(error["user"]) == {"alice"} and set(error["db"]) == {"app"} and set(error["remote"]) == {"127.0.0.1"}
    if version == "1.25":
        assert read["pgb_overall_stat"]["queries_number"] >= lines.count(" LOG stats: ") > 0
        peak = read["pgb_overall_stat"]["peak"].values()
        for figure in ("t_req", "t_inbytes", "t_outbytes"):
            assert sum(second[figure] for second in peak) > 0, figure


# -- Netdata ----------------------------------------------------------------------------------------------------------


@each_version
def test_netdata(pooled, version):
    """The collector finds the version, the limit of clients, and the figures of each database; it keeps its connection between two rounds."""
    toolchains.need("go")
    collector = toolchains.once("netdata", lambda target: toolchains.run(
        "go", "build", "-mod=readonly", "-o", str(target / "collector"), ".", folder=toolchains.HERE / "netdata"
    ))  # fmt: skip
    with watched(pooled, version) as pooler:
        url = f"postgres://stats:pw-of-stats@127.0.0.1:{pooler.port}/pgbouncer?sslmode=disable"
        ran = subprocess.run([collector / "collector", url], capture_output=True, text=True, timeout=60, env={"PATH": os.environ["PATH"]})
        assert ran.returncode == 0, ran.stderr
        said = json.loads(ran.stdout)
        app = {name.removeprefix("db_app_"): value for name, value in said.items() if name.startswith("db_app_")}
        assert (app["cl_active"], app["cl_waiting"], app["sv_active"], app["sv_idle"], app["maxwait"]) == (1, 0, 1, 0, 0)
        assert app["total_query_count"] == 3 and app["total_xact_count"] == 1
        assert app["total_received"] > 0 and app["total_sent"] > 0 and app["total_query_time"] > 0
        assert {"avg_xact_time", "avg_query_time", "total_wait_time", "sv_used", "sv_tested", "sv_login", "sv_conns_utilization"} <= set(app)
        assert said["cl_conns_utilization"] == 0  # of 500
        assert "error" not in ran.stderr.lower(), ran.stderr
        logins = pooler.log().count("db=pgbouncer user=stats")
        assert logins == 1, pooler.log()


# -- Datadog ----------------------------------------------------------------------------------------------------------

#: The statements of Datadog's check and the columns that it makes metrics or tags of. It leaves out what a version of PgBouncer does not have
#: (`total_requests`, `avg_req` and `avg_query` are older than 1.8).
DATADOG = {
    "SHOW STATS": "database total_xact_count total_query_count total_received total_sent total_query_time total_xact_time total_wait_time "
    "avg_xact_count avg_query_count avg_wait_time avg_recv avg_sent avg_xact_time avg_query_time",
    "SHOW POOLS": "database user cl_active cl_waiting sv_active sv_idle sv_used sv_tested sv_login maxwait maxwait_us",
    "SHOW DATABASES": "name pool_size max_connections current_connections",
    "SHOW CONFIG": "key value",
    "SHOW CLIENTS": "database user state connect_time request_time wait wait_us",
    "SHOW SERVERS": "database user state connect_time request_time",
    "SHOW VERSION;": "version",
}

ASK = """
import json, sys, psycopg2, psycopg2.extras
console = psycopg2.connect(sys.argv[1])
console.set_isolation_level(psycopg2.extensions.ISOLATION_LEVEL_AUTOCOMMIT)
said = {}
with console.cursor(cursor_factory=psycopg2.extras.DictCursor) as cursor:
    for statement in sys.argv[2:]:
        cursor.execute(statement)
        said[statement] = [dict(row) for row in cursor]
print(json.dumps({"rows": said, "notices": console.notices}, default=float))
"""

#: Columns that are tags or timestamps. Datadog makes a number of every other one.
TEXTS = {"database", "user", "name", "state", "key", "value", "version", "connect_time", "request_time"}


@each_version
def test_datadog(pooled, version):
    """Each column that it reads is there, as a number or in its form of a time; the version is the first thing that looks like one."""
    program("prometheus")  # brings psycopg2, too
    with watched(pooled, version) as pooler:
        python = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(MONITORING / "lib" / "python3" / "dist-packages")}
        command = ["/usr/bin/python3", "-c", ASK, pooler.dsn("pgbouncer", "stats", password="pw-of-stats"), *DATADOG]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=python)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert not said["notices"]
    for statement, columns in DATADOG.items():
        assert said["rows"][statement], statement
        for row in said["rows"][statement]:
            for column in columns.split():
                assert column in TEXTS or isinstance(row[column], int | float), (statement, column, row[column])
                if column.endswith("_time") and statement in ("SHOW CLIENTS", "SHOW SERVERS"):
                    time.strptime(" ".join(row[column].split(" ")[:2]), "%Y-%m-%d %H:%M:%S")

    def row(statement, **where):
        [found] = [row for row in said["rows"][statement] if all(row[name] == value for name, value in where.items())]
        return found

    assert row("SHOW STATS", database="app")["total_query_count"] == 3
    assert row("SHOW POOLS", database="app")["sv_active"] == 1
    assert row("SHOW DATABASES", name="app")["current_connections"] == 1
    assert float(row("SHOW CONFIG", key="max_client_conn")["value"]) == 500
    assert row("SHOW CLIENTS", database="app")["state"] == row("SHOW SERVERS", database="app")["state"] == "active"
    assert row("SHOW VERSION;")["version"] == f"PgBouncer {version}.{'2' if version == '1.25' else '1'}"


# -- CloudNativePG ----------------------------------------------------------------------------------------------------

#: How CloudNativePG's exporter reads a row of a table with so many columns: t a text, i an integer, n an integer or NULL.
BY_NUMBER = {"POOLS": {17: "tt" + 13 * "i" + "tn"}, "STATS": {23: "t" + 22 * "i"}, "LISTS": {2: "ti"}}

#: The lines of SHOW LISTS that it knows.
LISTS = "databases users peers pools peer_pools free_clients used_clients login_clients free_servers used_servers"
LISTS += " dns_names dns_zones dns_queries dns_pending"


@each_version
def test_cloudnativepgs_scan(pooled, version):
    """It chooses a list of variables by the number of columns. SHOW STATS of 1.26 has more than it knows, so 1.25 is the default."""
    with watched(pooled, version) as pooler, pooler.console() as console:
        for table, forms in BY_NUMBER.items():
            answer = console.query(f"SHOW {table};")
            if (table, version) == ("STATS", "1.26"):
                assert len(answer.columns) == 25
                continue
            assert answer.rows
            for row in answer.rows:
                for value, form in zip(row, forms[len(answer.columns)], strict=True):
                    assert (value is None and form == "n") or (value is not None and (form == "t" or value.isdecimal())), (table, row)
        assert [name for name, _ in console.query("SHOW LISTS;").rows] == LISTS.split()

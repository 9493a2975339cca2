"""What exporters written for PgBouncer ask of the console, and one that is run: Debian's prometheus-pgbouncer-exporter.

As a whole that one is no measure: it reads a column (`total_requests`) that PgBouncer has not had since 1.8, and another
(`reserve_pool`) that is called `reserve_pool_size` since 1.24. Its four collectors are run one by one.
"""

import json
import subprocess

import pytest

from harness.machine import CACHE
from harness.monitoring import program

NUMBERS = {20, 23, 1700}
"""int8, int4 and numeric."""


@pytest.mark.needs("current console columns")
def test_what_pgbouncer_exporter_asks_for(pooled):
    """The statements of prometheus-community's pgbouncer_exporter: names and types of the columns that it reads by name."""
    pooler = pooled(ignore_startup_parameters="extra_float_digits")
    needed = {
        "VERSION": "version",
        "LISTS": "list items#",
        "CONFIG": "key value default changeable",
        "CLIENTS": "database user application_name state",
        "DATABASES": "name host port# database force_user pool_size# reserve_pool_size# pool_mode max_connections# current_connections# paused# disabled#",
        "STATS_TOTALS": "database query_count# query_time# bytes_received# bytes_sent# wait_time# xact_count# xact_time# client_parse_count# "
        "server_parse_count# bind_count# server_assignment_count#",
        "POOLS": "database user cl_active# cl_active_cancel_req# cl_waiting# cl_waiting_cancel_req# sv_active# sv_active_cancel# "
        "sv_being_canceled# sv_idle# sv_used# sv_tested# sv_login# maxwait#",
    }
    with pooler.raw() as client, pooler.raw("pgbouncer", "stats", password="pw-of-stats", extra_float_digits="2") as console:
        client.query("select 1")
        assert not console.query("SHOW STATS").errors
        for topic, columns in needed.items():
            answer = console.query(f"SHOW {topic}")
            types = dict(answer.of("T")[0].columns())
            for column in columns.split():
                name = column.rstrip("#")
                assert types[name] in (NUMBERS if column.endswith("#") else {25}), (topic, name)
            assert answer.rows
        assert len(console.query("SHOW VERSION").columns) == 1 and len(console.query("SHOW CONFIG").columns) == 4
        assert "reserve_pool" not in console.query("SHOW DATABASES").columns  # with both names the scrape has duplicates


COLLECTORS = """
import json, sys, psycopg2
from prometheus_pgbouncer_exporter import collectors
console = psycopg2.connect(sys.argv[1])
console.set_session(autocommit=True)
said = {}
for name in ("Lists", "Pools", "Databases", "Stats"):
    kind = getattr(collectors, name + "Collector")
    more = {} if name == "Lists" else {"databases": None}
    try:
        metrics = list(kind(connection=console, **more).collect())
        said[name] = [(one.name, one.labels, one.value) for metric in metrics for one in metric.samples]
    except KeyError as missing:
        said[name] = missing.args[0]
print(json.dumps(said))
"""


def test_debians_exporter(pooled):
    """Its collectors find what they look for, except in columns that PgBouncer of today does not have either."""
    program("prometheus")  # brings the exporter, too
    pooler = pooled()
    with pooler.raw() as client:
        client.query("begin")
        client.query("select 1")
        ran = subprocess.run(
            ["/usr/bin/python3", "-c", COLLECTORS, pooler.dsn("pgbouncer", "stats", password="pw-of-stats")],
            capture_output=True, text=True, timeout=60,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CACHE / "monitoring" / "usr" / "lib" / "python3" / "dist-packages")},
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    lists = {name.removeprefix("pgbouncer_"): value for name, _, value in said["Lists"]}
    assert {"databases", "users", "pools", "free_clients", "used_clients", "login_clients", "free_servers", "used_servers"} <= set(lists)
    assert {"dns_names", "dns_zones", "dns_queries", "dns_pending"} <= set(lists)
    assert lists["databases"] == 4 and lists["used_clients"] >= 1 and lists["used_servers"] == 1
    pools = {(name, labels["database"], labels["user"]): value for name, labels, value in said["Pools"]}
    assert pools["pgbouncer_active_clients", "app", "alice"] == 1
    assert pools["pgbouncer_waiting_clients", "app", "alice"] == 0
    assert said["Stats"] == "total_requests"
    assert said["Databases"] == "reserve_pool" or any(name == "pgbouncer_pool_size" for name, _, _ in said["Databases"])

"""`compatible_with`: version, columns, statistics line and tracked parameters are those of one version of PgBouncer."""

import os
import subprocess

import psycopg
import pytest

from blackbox.test_console_columns import LOGINS, TABLES, columns
from harness.pooler import binary, kind

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer has its own version only")

#: What each version reports. The statistics line of 1.25 is the one that pgBadger 13.2 reads.
RELEASES = {"1.25": "1.25.2", "1.26": "1.26.1"}
LINE = (
    r"LOG stats: \d+ xacts/s, \d+ queries/s, \d+ client parses/s, \d+ server parses/s, \d+ binds/s, "
    r"{}in \d+ B/s, out \d+ B/s, xact \d+ us, query \d+ us, wait \d+ us\n"
)
LINES = {"1.25": LINE.format(""), "1.26": LINE.format(r"\d+ client logins/s, ")}


def version(*arguments, **variables):
    """The first line of --version."""
    done = subprocess.run([binary(), *arguments], capture_output=True, text=True, check=True, env={**os.environ, **variables})
    return done.stdout.splitlines()[0]


@pytest.mark.parametrize("chosen", RELEASES)
def test_all_that_tools_read_moves_together(pooled, chosen):
    """SHOW VERSION, server_version, --version of the file, the columns and the statistics line are of the same version."""
    pooler = pooled(compatible_with=chosen, stats_period=1)
    release = RELEASES[chosen]
    assert pooler.show("VERSION") == [{"version": f"PgBouncer {release}"}]
    assert version("--version", pooler.ini) == version(pooler.ini, "-V") == f"PgBouncer {release}"
    with pooler.raw() as session:
        session.value("select 1")
    with pooler.console() as console:
        assert console.parameters["server_version"] == f"{release}/bouncer"
        for table in ("STATS", "STATS_TOTALS", "STATS_AVERAGES", "POOLS", "CLIENTS"):
            names = [name for name, _ in columns(TABLES[table])]
            for before, name in LOGINS.get(table, []) if chosen == "1.26" else []:
                names.insert(names.index(before) + 1, name)
            answer = console.query(f"SHOW {table}")
            assert answer.columns == names
            assert {len(row) for row in answer.rows} == {len(names)}
        rows = [name for name, _ in console.query("SHOW TOTALS").rows]
        assert [name for name in rows if "login" in name] == (["total_client_login_count", "avg_client_login_count"] if chosen == "1.26" else [])
        extended = console.query("SHOW STATS_EXTENDED")
        assert {row[0]: row[extended.columns.index("total_client_login_count")] for row in extended.rows}["app"] == "1"
    pooler.logged(LINES[chosen], timeout_s=15)
    pooler.logged(rf"process up: pgweir \S+ \(compatible with PgBouncer {release}\)")


def test_the_extended_protocol_knows_the_columns_of_the_version(pooled):
    """A driver that describes SHOW STATS is told of 25 columns, and gets as many values."""
    pooler = pooled(compatible_with="1.26")
    with pooler.connect("pgbouncer", "admin", password="pw-of-admin") as console:
        cursor = console.execute("SHOW STATS", binary=True)
        assert len(cursor.description) == len(cursor.fetchone()) == 25


def test_the_version_without_a_file_is_that_of_the_variables():
    """--version names no file: the variables say which version it is. A text that is no version changes nothing."""
    assert version("--version") == "PgBouncer 1.25.2"
    assert version("--version", PGWEIR_COMPATIBLE_WITH="1.26") == "PgBouncer 1.26.1"
    assert version("--version", "--no-overlay", PGWEIR_COMPATIBLE_WITH="1.26") == "PgBouncer 1.25.2"
    assert version("--version", PGWEIR_COMPATIBLE_WITH="7") == "PgBouncer 1.25.2"
    assert version("--version", "/nonexistent/pgbouncer.ini") == "PgBouncer 1.25.2"


def test_version_text(pooled):
    """`version_text=pgweir`: SHOW VERSION and --version begin with pgweir; drivers are still told PgBouncer's version."""
    pooler = pooled(version_text="pgweir", compatible_with="1.26")
    [row] = pooler.show("VERSION")
    assert row["version"].startswith("pgweir ") and row["version"].endswith(" (compatible with PgBouncer 1.26.1)")
    assert version("--version", pooler.ini) == row["version"]
    with pooler.console() as console:
        assert console.parameters["server_version"] == "1.26.1/bouncer"


@pytest.mark.parametrize("chosen", RELEASES)
def test_tracked_parameters_follow_the_version(poolers, pg18, chosen):
    """With session_state=pgbouncer, 1.26 keeps for each client what PostgreSQL 18 reports; with 1.25 the next client finds it on the server."""
    pooler = poolers({"app": pg18.at()}, default_pool_size=1, compatible_with=chosen, session_state="pgbouncer", server_reset_query="")
    values = {"search_path": "pg_catalog", "default_transaction_read_only": "on", "scram_iterations": "5000"}
    with pooler.raw() as one, pooler.raw() as other:
        for name, value in values.items():
            plain = other.value(f"show {name}")
            one.query(f"set {name} = '{value}'")
            assert other.value(f"show {name}") == (plain if chosen == "1.26" else value)
            assert one.value(f"show {name}") == value


@pytest.mark.parametrize("chosen", RELEASES)
def test_ignored_startup_parameters(pooled, chosen):
    """1.26 drops an ignored parameter from the startup packet although it is tracked, apart from application_name. SET stays tracked."""
    ignored = {"default_transaction_read_only": "on", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Tokyo", "DateStyle": "German, DMY"}
    pooler = pooled(
        compatible_with=chosen, session_state="pgbouncer", default_pool_size=1, server_reset_query="", track_extra_parameters=", ".join(ignored),
        ignore_startup_parameters=", ".join([*ignored, "application_name"]),
    )  # fmt: skip
    with pooler.raw(application_name="mine", **ignored) as one, pooler.raw() as other:
        plain = {name: other.value(f"show {name}") for name in ignored}
        assert {name: one.value(f"show {name}") for name in ignored} == (plain if chosen == "1.26" else ignored)
        assert one.value("show application_name") == "mine"
        for name, value in ignored.items():
            one.query(f"set {name} = '{value}'")
        assert {name: other.value(f"show {name}") for name in ignored} == plain
        assert {name: one.value(f"show {name}") for name in ignored} == ignored


@pytest.mark.parametrize("tracked", ["1.26", "extra"])
def test_a_parameter_that_postgres_does_not_report(pooled, pg, tracked):
    """PostgreSQL 17 does not report search_path. Sessions that are preserved have their own value; the others are refused one at login."""
    assert int(pg.major) < 18
    options = {"compatible_with": "1.26"} if tracked == "1.26" else {"track_extra_parameters": "IntervalStyle,search_path"}
    lines = {"kept": pg.at("app", session_state="preserve")}
    pooler = pooled(databases=lines, default_pool_size=1, session_state="pgbouncer", **options)
    with pooler.raw("kept") as one, pooler.raw("kept") as other, pooler.raw("kept", search_path="pg_catalog") as begun:
        one.query("set search_path = 'a b', public")
        for _ in range(2):
            assert one.value("show search_path") == '"a b", public'
            assert other.value("show search_path") == '"$user", public'
            assert begun.value("show search_path") == "pg_catalog"
        begun.query("set search_path = public")
        begun.query("reset search_path")
        other.query("select 1")
        assert begun.value("show search_path") == "pg_catalog"
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter: search_path"):
        psycopg.connect(host=str(pooler.folder), port=pooler.port, user="alice", dbname="app", options="-c search_path=pg_catalog")

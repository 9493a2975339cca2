"""SHOW's tables, column by column: tools read them by position, so a table that PgBouncer has, has exactly PgBouncer's columns."""

import os
import re
import shutil
import subprocess

import pytest

from harness.machine import REPOSITORY, as_service, eventually, free_port, give, scratch_folder
from harness.pooler import kind
from harness.wire import Raw

TEXT, INT4, INT8, NUMERIC, BYTEA = 25, 23, 20, 1700, 17

SOCKET = (
    "type user database replication state addr port# local_addr local_port# connect_time request_time wait# wait_us# close_needed# ptr link "
    "remote_pid# tls application_name prepared_statements# id##"
)
BUFFERS = " recv_pos# pkt_pos# pkt_remain# send_pos# send_remain# pkt_avail# send_avail#"
TOTAL = "server_assignment_count! xact_count! query_count! bytes_received! bytes_sent! xact_time! query_time! wait_time! "

#: PgBouncer 1.25's tables. A name alone is a text column, # is int4, ## is int8, ! is numeric, * is bytea.
TABLES = {
    "ACTIVE_SOCKETS": SOCKET + BUFFERS,
    "CLIENTS": SOCKET,
    "CONFIG": "key value default changeable",
    "DATABASES": "name host port# database force_user pool_size# min_pool_size# reserve_pool_size# server_lifetime# pool_mode load_balance_hosts "
    "max_connections# current_connections# max_client_connections# current_client_connections# paused# disabled#",
    "DNS_HOSTS": "hostname ttl## addrs",
    "DNS_ZONES": "zonename serial## count#",
    "FDS": "fd# task user database addr port# cancel## link# client_encoding std_strings datestyle timezone password scram_client_key* scram_server_key*",
    "LISTS": "list items#",
    "MEM": "name size# used# free# memtotal#",
    "PEERS": "peer_id# host port# pool_size#",
    "PEER_POOLS": "peer_id# cl_active_cancel_req# cl_waiting_cancel_req# sv_active_cancel# sv_login#",
    "POOLS": "database user cl_active# cl_waiting# cl_active_cancel_req# cl_waiting_cancel_req# sv_active# sv_active_cancel# sv_being_canceled# sv_idle# "
    "sv_used# sv_tested# sv_login# maxwait# maxwait_us# pool_mode load_balance_hosts",
    "SERVERS": SOCKET,
    "SOCKETS": SOCKET + BUFFERS,
    "STATE": "key value",
    "STATS": "database total_server_assignment_count! total_xact_count! total_query_count! total_received! total_sent! total_xact_time! "
    "total_query_time! total_wait_time! total_client_parse_count! total_server_parse_count! total_bind_count! avg_server_assignment_count! "
    "avg_xact_count! avg_query_count! avg_recv! avg_sent! avg_xact_time! avg_query_time! avg_wait_time! avg_client_parse_count! "
    "avg_server_parse_count! avg_bind_count!",
    "STATS_AVERAGES": "database " + TOTAL + "avg_client_parse_count! avg_server_parse_count! avg_bind_count!",
    "STATS_TOTALS": "database " + TOTAL + "client_parse_count! server_parse_count! bind_count!",
    "TOTALS": "name value!",
    "USERS": "name pool_size reserve_pool_size pool_mode max_user_connections# current_connections# max_user_client_connections# "
    "current_client_connections#",
    "VERSION": "version",
}

#: The columns of PgBouncer 1.26 that 1.25 does not have, and after which columns they come.
LOGINS = {
    "STATS": [("total_bind_count", "total_client_login_count"), ("avg_bind_count", "avg_client_login_count")],
    "STATS_TOTALS": [("bind_count", "client_login_count")],
    "STATS_AVERAGES": [("avg_bind_count", "avg_client_login_count")],
}

#: What pgweir adds, each in a table of its own, after PgBouncer's columns.
ADDED = {
    "CLIENTS": "multiplexed# pinned pinned_since transaction_us## statement route route_by",
    "SERVERS": "multiplexed# pinned pinned_since transaction_us## statement",
    "POOLS": "sv_short_target# sv_short# cl_multiplexed# total_multiplexed## total_requeued## total_multiplex_violations## total_target_changes## "
    "sv_pinned# total_session_replays## total_session_audits## total_session_remembered## total_pins## total_session_checks## "
    "total_session_differences## connect_failure",
    "STATS": "total_client_login_count! avg_client_login_count!",
}

MARKS = {"": TEXT, "#": INT4, "##": INT8, "!": NUMERIC, "*": BYTEA}

#: Columns that had another name in Debian's PgBouncer 1.18.
RENAMED = {"POOLS": {"cl_cancel_req": None}, "DATABASES": {"reserve_pool": "reserve_pool_size"}}


def columns(text):
    """The (name, type) of each column."""
    return [(word.rstrip("#!*"), MARKS[word[len(word.rstrip("#!*")) :]]) for word in text.split()]


@pytest.mark.needs("current console columns")
@pytest.mark.parametrize("what", TABLES)
def test_a_table_has_exactly_pgbouncers_columns(pooled, what):
    """Names, order and types, none missing and none more, with as many values in each row."""
    pooler = pooled()
    with pooler.raw() as session, pooler.console() as console:
        session.value("select 1")
        answer = console.query(f"SHOW {what}")
        assert answer.of("T")[0].columns() == columns(TABLES[what])
        assert {len(row) for row in answer.rows} <= {len(columns(TABLES[what]))}
        assert answer.commands == ["SHOW"] and answer.status == "I"


@pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer has no such tables")
@pytest.mark.parametrize("what", ADDED)
def test_what_pgweir_adds_has_a_table_of_its_own(pooled, what):
    """SHOW <table>_EXTENDED: the same rows, PgBouncer's columns first. SHOW HELP lists it."""
    pooler = pooled()
    with pooler.raw() as session, pooler.console() as console:
        session.value("select 1")
        answer = console.query(f"SHOW {what}_EXTENDED")
        assert answer.of("T")[0].columns() == columns(TABLES[what]) + columns(ADDED[what])
        width = len(columns(TABLES[what]))
        plain = console.query(f"SHOW {what}").rows
        assert [row[:2] for row in plain] == [row[:2] for row in answer.rows] and len(plain) > 0
        assert {len(row) for row in answer.rows} == {width + len(columns(ADDED[what]))}
        told = console.query("SHOW HELP").of("N")[0].fields()["D"]
        assert f"{what}_EXTENDED" in told


def test_every_column_is_explained():
    """docs/operate/console.md has a section for each table, which names its columns in their order."""
    text = (REPOSITORY / "docs" / "operate" / "console.md").read_text()
    sections = {}
    for heading, section in re.findall(r"^### (SHOW .*?)$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL):
        for table in heading.split(", "):
            sections[table.removeprefix("SHOW ")] = re.findall(r"`(\w+)`", section)
    for table, listed in [*TABLES.items(), *((f"{table}_EXTENDED", listed) for table, listed in ADDED.items())]:
        beginning = TABLES["CLIENTS"] + " " if table in ("SOCKETS", "ACTIVE_SOCKETS") else ""
        told = iter(sections[table])
        missing = [name for name, _ in columns(listed.removeprefix(beginning.strip())) if not any(name == known for known in told)]
        assert not missing, (table, missing)


@pytest.fixture
def debians(pg):
    """A connection to the console of Debian's PgBouncer, or of the one that $PGBOUNCER names; the pooler under test plays no part."""
    program = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("Debian's pgbouncer is not installed")
    folder, port = scratch_folder("pgb"), free_port()
    ini = folder / "pgbouncer.ini"
    ini.write_text(
        f"[databases]\napp = {pg.at('app')}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\nadmin_users = admin\nlogfile = {folder}/log\n"
    )
    give(folder), give(ini)
    process = subprocess.Popen(
        as_service(program, "--quiet", str(ini), signal_name="KILL"), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )
    try:
        eventually(lambda: _listens(port), "Debian's pgbouncer listens")
        console = Raw(("127.0.0.1", port))
        console.login(user="admin", database="pgbouncer")
        yield console
        console.socket.close()
    finally:
        process.terminate()
        process.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port):
    try:
        Raw(("127.0.0.1", port)).socket.close()
    except OSError:
        return False
    return True


def test_the_lists_above_are_pgbouncers(debians):
    """The real one has these columns in this order and of these types; the later releases have put further ones between them. Since 1.25 there
    are no others. Documented: `id` is int4 there."""
    release = tuple(int(number) for number in debians.parameters["server_version"].split("/")[0].split(".")[:2])
    differences = {}
    for what, text in TABLES.items():
        answer = debians.query(f"SHOW {what}")
        if answer.errors:
            # These came after 1.18; FDS is gone since 1.26.
            assert what in ("PEERS", "PEER_POOLS", "STATE") or (what == "FDS" and release >= (1, 26)), what
            continue
        renamed = RENAMED.get(what, {})
        old = [(renamed.get(name, name), INT8 if name == "id" else oid) for name, oid in answer.of("T")[0].columns()]
        old = [column for column in old if column[0] is not None]
        new = columns(text)
        for before, name in LOGINS.get(what, []) if release >= (1, 26) else []:
            new.insert([known for known, _ in new].index(before) + 1, (name, NUMERIC))
        if release >= (1, 25):
            assert old == new, what
        later = iter(new)
        missing = [column for column in old if not any(column == new for new in later)]
        if missing:
            differences[what] = missing
    assert not differences


@pytest.mark.needs("current console columns")
def test_dblink_reads_show_pools(pooled, pg):
    """Users of dblink and pgbouncer_fdw declare the columns: PostgreSQL refuses an answer that has another number of them."""
    pooler = pooled()
    names = {TEXT: "text", INT4: "int", INT8: "bigint", NUMERIC: "numeric"}
    pg.sql("create extension if not exists dblink")
    try:
        with pooler.raw() as session:
            session.value("select 1")
            for what in ("POOLS", "STATS", "CLIENTS", "DATABASES"):
                declared = ", ".join(f'"{name}" {names[oid]}' for name, oid in columns(TABLES[what]))
                key = "name" if what == "DATABASES" else "database"
                where = f"host=127.0.0.1 port={pooler.port} dbname=pgbouncer user=admin password=pw-of-admin"
                rows = pg.sql(f"select {key} from dblink('{where}', 'show {what}') as t({declared}) where {key} = 'app'")
                assert [tuple(row)[0] for row in rows] == ["app"], what
    finally:
        pg.sql("drop extension dblink")


@pytest.mark.needs("current console columns")
def test_a_scan_that_is_chosen_by_the_number_of_columns(pooled):
    """An operator's exporter reads SHOW POOLS by position: 17 and 16 columns are those of today, any other number is an old PgBouncer."""
    pooler = pooled()
    with pooler.raw() as session, pooler.console() as console:
        session.query("begin")
        answer = console.query("SHOW POOLS")
        [row] = [row for row in answer.rows if row[0] == "app"]
        assert len(row) == 17
        database, user, *numbers, mode, balance = row
        assert (database, user, mode, balance) == ("app", "alice", "transaction", None)
        assert [int(number) for number in numbers] == [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]

"""The console: what SHOW shows, and which users may see it. Its tables' columns are in test_console_columns.py."""

import datetime
import subprocess

import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import binary, kind
from harness.wire import Closed, message, query

@pytest.mark.parametrize("what", ["POOLS", "CLIENTS", "SERVERS", "DATABASES", "USERS", "STATS", "LISTS", "CONFIG", "VERSION", "MEM"])
def test_every_show_works_in_any_case(pooled, what):
    """Lower case, upper case, with a semicolon, with SELECT instead of SHOW."""
    pooler = pooled()
    with pooler.console() as console:
        wanted = console.query(f"SHOW {what}").columns
        for text in (f"show {what.lower()}", f"SHOW {what};", f"  show   {what} ; ", f"select {what}"):
            assert console.query(text).columns == wanted, text


def test_version(pooled):
    """One row; the parameter server_version at login ends in /bouncer, which drivers parse."""
    pooler = pooled()
    with pooler.console() as console:
        assert len(console.query("SHOW VERSION").rows) == 1
        assert console.parameters["server_version"].endswith("/bouncer")
        assert console.parameters["client_encoding"] in ("UTF8", "UTF-8")
        assert console.parameters["standard_conforming_strings"] == "on"


def test_the_version_is_that_of_the_command_line(pooled):
    """SHOW VERSION answers with the first line of --version."""
    shown = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout
    assert pooled().show("VERSION") == [{"version": shown.splitlines()[0]}]


@pytest.mark.needs("client logins in SHOW STATS")
def test_logins_are_counted(pooled):
    """Every login counts for its database, the console's for its own."""
    pooler = pooled()
    for _ in range(3):
        with pooler.raw() as session:
            session.value("select 1")
    with pooler.console() as console:
        answer = console.query("SHOW STATS_EXTENDED")
        logins = {row[0]: row[answer.columns.index("total_client_login_count")] for row in answer.rows}
        assert logins == {"app": "3", "pgbouncer": "1"}


def test_pools_count_clients_and_servers(pooled):
    """Active, waiting and idle ones are counted where they belong."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw():
        one.query("begin")
        pool = pooler.pool()
        assert (pool["cl_active"], pool["cl_waiting"], pool["sv_active"], pool["sv_idle"]) == (3, 0, 1, 0)
        two.send(query("select 1"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "one waits")
        one.query("commit")
        two.until("Z")
        pool = pooler.pool()
        assert (pool["cl_active"], pool["cl_waiting"], pool["sv_active"]) == (3, 0, 0)
        assert pool["sv_idle"] + pool["sv_used"] == 1
        assert pool["pool_mode"] == "transaction"


def test_maxwait(pooled):
    """The first waiter's time in the queue, in whole seconds and the rest in microseconds."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("begin")
        two.send(query("select 1"))
        eventually(lambda: pooler.pool()["maxwait"] >= 1, "a second of waiting is shown")
        one.query("commit")
        two.until("Z")
        assert pooler.pool()["maxwait"] == 0


def test_clients(pooled):
    """A row per client with its address, state and link."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw(application_name="shown") as session:
        session.query("begin")
        rows = pooler.show("CLIENTS", database="app")
        assert len(rows) == 1
        row, port = rows[0], session.socket.getsockname()[1]
        assert (row["type"], row["user"], row["state"], row["addr"], row["port"]) == ("C", "alice", "active", "127.0.0.1", str(port))
        assert (row["local_addr"], row["local_port"], row["application_name"]) == ("127.0.0.1", str(pooler.port), "shown")
        server = pooler.servers(database="app")[0]
        assert row["link"] == server["ptr"] and server["link"] == row["ptr"]
        assert server["type"] == "S" and server["state"] == "active"
        session.query("commit")
        assert pooler.servers(database="app")[0]["state"] in ("idle", "used")


def test_rows_come_by_pool(pooled):
    """SHOW CLIENTS, SERVERS and SOCKETS go from pool to pool, by database and user, clients before servers."""
    pooler = pooled()
    with pooler.raw("app2", "bob") as one, pooler.raw("app", "bob") as two, pooler.raw("app", "alice") as three, pooler.console() as console:
        for session in (one, two, three):
            session.query("begin")
            session.query("select 1")
        for what in ("CLIENTS", "SERVERS", "SOCKETS"):
            answer = console.query(f"SHOW {what}")
            rows = [dict(zip(answer.columns, row)) for row in answer.rows]
            places = [(row["database"], row["user"], row["type"]) for row in rows]
            assert places == sorted(places) and len(places) >= 3, what


def test_a_waiting_client_is_shown(pooled):
    """state = waiting, wait grows."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("begin")
        two.send(query("select 1"))
        eventually(lambda: [r for r in pooler.show("CLIENTS", state="waiting") if int(r["wait"]) + int(r["wait_us"]) > 0], "it is shown")
        one.query("commit")


def test_unix_clients(pooled):
    """Clients over the unix socket: addr is `unix`, port the pooler's."""
    pooler = pooled()
    with pooler.raw(unix=True) as session:
        session.value("select 1")
        row = pooler.show("CLIENTS", database="app")[0]
        assert (row["addr"], row["port"]) == ("unix", str(pooler.port))


def test_remote_pid_is_the_backend(pooled):
    """SHOW SERVERS.remote_pid is the backend's pid in PostgreSQL."""
    pooler = pooled()
    with pooler.raw() as session:
        pid = session.value("select pg_backend_pid()")
        assert pooler.servers()[0]["remote_pid"] == pid


def test_databases(pooled, pg):
    """The lines of [databases] with effective limits, and the console's own."""
    pooler = pooled(databases={"own": pg.at("app", pool_size=3, user="bob", max_db_connections=9)}, default_pool_size=7)
    rows = {row["name"]: row for row in pooler.show("DATABASES")}
    assert {"app", "app2", "app3", "own", "pgbouncer"} <= set(rows)
    own, app = rows["own"], rows["app"]
    assert (own["host"], own["port"], own["database"], own["force_user"]) == ("127.0.0.1", str(pg.port), "app", "bob")
    assert (own["pool_size"], own["max_connections"], app["pool_size"], app["force_user"]) == ("3", "9", "7", None)
    assert (own["paused"], own["disabled"]) == ("0", "0")


def test_config(pooled):
    """Every setting with its value, default and whether it can be changed."""
    pooler = pooled(default_pool_size=13, query_timeout=1.5)
    rows = {row["key"]: row for row in pooler.show("CONFIG")}
    assert rows["default_pool_size"]["value"] == "13" and rows["default_pool_size"]["default"] == "20"
    assert rows["default_pool_size"]["changeable"] == "yes" and rows["listen_port"]["changeable"] == "no"
    assert rows["query_timeout"]["value"] == "1.5"
    for name in ("max_client_conn", "pool_mode", "server_reset_query", "server_lifetime", "auth_type", "client_tls_sslmode", "pkt_buf"):
        assert name in rows


def test_stats_count(pooled):
    """Transactions, queries, bytes and times grow by what was done."""
    pooler = pooled()

    def totals():
        row = next(iter(pooler.show("STATS_TOTALS", database="app")), None)
        return {k: int(v) for k, v in row.items() if k != "database"} if row else None

    with pooler.raw() as session:
        session.value("select 1")
        before = totals()
        for _ in range(5):
            session.query("select pg_sleep(0.01)")
        session.query("begin")
        session.query("select 1")
        session.query("select repeat('x', 10000)")
        session.query("commit")
        after = totals()
    assert after["xact_count"] - before["xact_count"] == 6
    assert after["query_count"] - before["query_count"] == 9
    assert after["bytes_sent"] - before["bytes_sent"] > 10_000
    assert 100 < after["bytes_received"] - before["bytes_received"] < 2000
    assert after["query_time"] - before["query_time"] >= 50_000
    assert after["xact_time"] - before["xact_time"] >= 50_000


def test_wait_time_is_counted(pooled):
    """Time in the queue appears as wait_time."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("begin")
        two.send(query("select 1"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "one waits")
        one.query("select pg_sleep(0.5)")
        one.query("commit")
        two.until("Z")
    assert int(pooler.show("STATS_TOTALS", database="app")[0]["wait_time"]) >= 500_000


def test_lists(pooled):
    """Names and numbers of what there is."""
    pooler = pooled()
    with pooler.raw() as session:
        session.value("select 1")
        items = {row["list"]: int(row["items"]) for row in pooler.show("LISTS")}
    for name in ("databases", "users", "pools", "free_clients", "used_clients", "login_clients", "free_servers", "used_servers"):
        assert name in items
    assert items["databases"] >= 4 and items["used_clients"] >= 2 and items["used_servers"] + items["free_servers"] >= 1


@pytest.mark.needs("state command")
def test_state(pooled):
    """active, paused and suspended with yes or no."""
    pooler = pooled()
    assert {r["key"]: r["value"] for r in pooler.show("STATE")} == {"active": "yes", "paused": "no", "suspended": "no"}
    pooler.admin("PAUSE")
    assert {r["key"]: r["value"] for r in pooler.show("STATE")}["paused"] == "yes"
    pooler.admin("RESUME")


def test_help(pooled):
    """SHOW HELP is a notice with the list of commands as its detail."""
    pooler = pooled()
    with pooler.console() as console:
        answer = console.query("SHOW HELP")
        notice = answer.of("N")[0].fields()
        assert "Console usage" in notice["M"]
        for word in ("SHOW", "PAUSE", "RESUME", "RELOAD", "KILL", "RECONNECT", "SHUTDOWN", "DISABLE", "ENABLE"):
            assert word in notice["D"]
        assert answer.commands == ["SHOW"]


def test_unknown_commands(pooled):
    """An error with 08P01, and the console stays open."""
    pooler = pooled()
    with pooler.console() as console:
        for text in ("select 1", "SHOW nonsense", "drop table x", "", ";", "SHOW", "x" * 1000, "PAUSE a b c", "SHOW POOLS; SHOW CLIENTS"):
            answer = console.query(text)
            if text in ("", ";", "select 1", "SHOW"):
                assert answer.messages[-1].tag == "Z", text
                continue
            assert answer.error["S"] == "ERROR" and answer.error["C"] in ("08P01", "42601"), (text, answer.messages)
        assert console.query("SHOW VERSION").rows


def test_driver_start_up_queries(pooled):
    """SET and SHOW of the parameters that drivers ask for at connect."""
    pooler = pooled()
    with pooler.console() as console:
        for name, value in (("client_encoding", "UTF-8"), ("standard_conforming_strings", "on"), ("datestyle", "ISO"), ("timezone", "GMT")):
            answer = console.query(f"SHOW {name}")
            assert answer.rows == [[value]] and answer.columns[0].lower() == name
        answer = console.query("SET client_encoding = 'UTF8'")
        assert not answer.errors


@pytest.mark.parametrize("what", [message("d", b"x"), message("F", b"x"), message("p", b"x")])
def test_messages_that_have_no_place_here(pooled, what):
    """Neither Query nor extended protocol: an error that says so, and the end; other console clients go on."""
    pooler = pooled()
    with pooler.console() as other, pooler.console() as console:
        console.socket.settimeout(5)
        console.send(what)
        assert "unsupported packet type for admin console" in console.until_closed().errors[0]["M"]
        assert other.query("SHOW VERSION").rows


def test_stats_users_may_look(pooled):
    """stats_users: every SHOW except FDS, and no command."""
    pooler = pooled()
    for what in (
        "POOLS",
        "CLIENTS",
        "SERVERS",
        "DATABASES",
        "USERS",
        "STATS",
        "STATS_TOTALS",
        "STATS_AVERAGES",
        "TOTALS",
        "LISTS",
        "CONFIG",
        "VERSION",
        "MEM",
        "HELP",
    ):
        with pooler.console("stats") as console:
            assert not console.query(f"SHOW {what}").errors, what


COMMANDS = [
    "RELOAD", "PAUSE", "PAUSE app", "RESUME", "RESUME app", "DISABLE app", "ENABLE app", "RECONNECT", "RECONNECT app", "KILL", "KILL app",
    "KILL_CLIENT 1", "SUSPEND", "SHUTDOWN", "SHUTDOWN WAIT_FOR_SERVERS", "SHUTDOWN WAIT_FOR_CLIENTS", "WAIT_CLOSE", "WAIT_CLOSE app",
    "SET default_pool_size = 1", "SHOW FDS", "DISABLE", "ENABLE", "KILL_CLIENT", "KILL_CLIENT x",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_stats_users_may_not_act(pooled, command):
    """Every command of the console is refused to stats_users, and has no effect (CVE-2026-6667)."""
    if command.startswith("KILL_CLIENT") and kind() == "pgbouncer":
        pytest.skip("unknown to old PgBouncer, unchecked in later ones")
    pooler = pooled()
    with pooler.raw() as session, pooler.console("stats") as console:
        answer = console.query(command)
        assert answer.errors and answer.error["S"] == "ERROR", answer.messages
        if "WAIT_FOR" not in command:
            assert "admin access needed" in answer.error["M"]
            assert kind() == "pgbouncer" or answer.error["H"] == "This command is for the users in admin_users."
        assert session.value("select 1") == "1"
        assert pooler.show("CONFIG", key="default_pool_size")[0]["value"] == "20"


def test_other_users_are_refused(pooled):
    """A user in neither list is refused, after authentication, with FATAL."""
    pooler = pooled()
    for user in ("alice", "bob"):
        with pytest.raises(Closed) as refused:
            pooler.raw("pgbouncer", user)
        assert "not allowed" in refused.value.error["M"]


def test_the_owner_over_the_unix_socket(pooled):
    """The user that runs the pooler may log in to its console as `pgbouncer` over the unix socket without a password."""
    import subprocess

    from harness.machine import ACCOUNT, as_service

    pooler = pooled(auth_type="scram-sha-256")
    command = ["psql", "-h", str(pooler.folder), "-p", str(pooler.port), "-U", "pgbouncer", "-d", "pgbouncer", "-Atc", "SHOW VERSION"]
    own = subprocess.run(as_service(*command), capture_output=True, text=True, cwd="/", env={"PATH": "/usr/bin:/bin", "PGCONNECT_TIMEOUT": "5"})
    assert own.returncode == 0 and own.stdout, own.stderr
    if ACCOUNT is not None:
        other = subprocess.run(command, capture_output=True, text=True, cwd="/", env={"PATH": "/usr/bin:/bin", "PGCONNECT_TIMEOUT": "5"})
        assert other.returncode != 0, "another account came in without a password"


def test_psql_reads_the_console(pooled):
    """psql with all its start-up habits."""
    import subprocess

    pooler = pooled()
    command = ["psql", "-X", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "admin", "-d", "pgbouncer"]
    for what in ("SHOW POOLS", "SHOW CLIENTS", "SHOW SERVERS", "SHOW DATABASES", "SHOW STATS", "SHOW CONFIG", "SHOW LISTS", "SHOW MEM"):
        done = subprocess.run([*command, "-c", what], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0 and "row" in done.stdout, (what, done.stderr)


def test_psycopg_reads_the_console(pooled):
    """psycopg 3 in autocommit with client-side binding, as monitoring scripts do."""
    pooler = pooled()
    with pooler.connect("pgbouncer", "admin", password="pw-of-admin", cursor_factory=psycopg.ClientCursor) as console:
        rows = console.execute("SHOW DATABASES").fetchall()
        assert any(row[0] == "app" for row in rows)


@pytest.mark.needs("console named pgweir")
def test_the_console_under_our_own_name(pooled):
    """The database `pgweir` is the console too."""
    pooler = pooled()
    with pooler.console(database="pgweir") as console:
        assert console.query("SHOW VERSION").rows


def test_a_hundred_consoles(pooled):
    """Many console clients at once, not counted by max_client_conn."""
    pooler = pooled(max_client_conn=2)
    consoles = [pooler.console() for _ in range(100)]
    for console in consoles:
        console.send(query("SHOW POOLS"))
    for console in consoles:
        assert console.until("Z").rows is not None
        console.hang_up()


def test_pipelined_commands(pooled):
    """Several commands in one write are answered one after another."""
    pooler = pooled()
    with pooler.console() as console:
        console.send(query("SHOW VERSION") + query("SHOW LISTS") + query("nonsense") + query("SHOW VERSION"))
        assert console.until("Z").columns == ["version"]
        assert console.until("Z").columns == ["list", "items"]
        assert console.until("Z").errors
        assert console.until("Z").columns == ["version"]


@pytest.mark.needs("console commands in pieces")
def test_a_command_byte_by_byte(pooled):
    """The console reads commands that come in pieces."""
    pooler = pooled()
    with pooler.console() as console:
        console.send_slowly(query("SHOW VERSION"))
        assert console.until("Z").rows


def test_names_that_need_quotes(pooled, pg):
    """Database names with dots and dashes are written in double quotes."""
    pooler = pooled(databases={"my-app.one": pg.at("app")})
    pooler.admin('PAUSE "my-app.one"')
    assert pooler.show("DATABASES", name="my-app.one")[0]["paused"] == "1"
    pooler.admin('RESUME "my-app.one"')
    assert pooler.show("DATABASES", name="my-app.one")[0]["paused"] == "0"


@pytest.mark.needs("console named pgweir")
def test_a_database_that_is_called_pgweir(pooled, pg):
    """A configured database wins over the console's second name."""
    pooler = pooled(databases={"pgweir": pg.at("app")})
    with pooler.raw("pgweir") as session:
        assert session.value("select current_database()") == "app"
    assert pooler.show("DATABASES", name="pgweir")


def test_times_are_local(pooled):
    """connect_time is local time, with the zone's name."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", "Asia/Tokyo")
        pooler = pooled()
    with pooler.raw() as session:
        session.query("select 1")
        (shown,) = pooler.show("CLIENTS", database="app")
    moment, zone = shown["connect_time"].rsplit(" ", 1)
    there = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=9))).replace(tzinfo=None)
    assert zone == "JST" and abs(there - datetime.datetime.fromisoformat(moment)) < datetime.timedelta(minutes=5)

"""The console's commands: what they do to the clients and servers they name, and to no other ones."""

import time

import pytest

from harness.machine import eventually
from harness.wire import Closed, query


def refused(pooler, command):
    with pooler.console() as console:
        answer = console.query(command)
        assert answer.error["S"] == "ERROR", answer.messages
        return answer.error["M"]


def test_pause_and_resume(pooled, pg):
    """PAUSE waits for open transactions, closes the servers, keeps clients waiting; RESUME lets them go on."""
    pooler = pooled()
    with pooler.raw() as inside, pooler.raw() as outside, pooler.console() as console:
        inside.query("begin")
        outside.value("select 1")
        console.send(query("PAUSE"))
        assert console.quiet(0.3), "PAUSE must wait for the open transaction"
        assert inside.query("select 1").status == "T"
        inside.query("commit")
        assert console.until("Z").commands == ["PAUSE"]
        eventually(lambda: not pg.backends("app"), "all servers are closed")
        outside.send(query("select 'after'"))
        assert outside.quiet(0.3)
        assert console.query("RESUME").commands == ["RESUME"]
        assert outside.until("Z").rows == [["after"]]


def test_pause_of_one_database(pooled, pg):
    """PAUSE db stops that database only."""
    pooler = pooled()
    with pooler.raw("app") as one, pooler.raw("app2") as two:
        one.value("select 1")
        pooler.admin("PAUSE app")
        assert pooler.show("DATABASES", name="app")[0]["paused"] == "1"
        one.send(query("select 'app'"))
        assert two.value("select 'app2'") == "app2"
        assert one.quiet(0.2)
        pooler.admin("RESUME app")
        assert one.until("Z").rows == [["app"]]


def test_pause_in_session_mode_waits_for_clients(pooled):
    """In session mode a server is free when its client has left."""
    pooler = pooled(pool_mode="session")
    with pooler.raw() as session, pooler.console() as console:
        session.value("select 1")
        console.send(query("PAUSE"))
        assert console.quiet(0.3)
        session.terminate()
        assert console.until("Z").commands == ["PAUSE"]
        assert console.query("RESUME").commands == ["RESUME"]


def test_new_clients_during_pause_wait(pooled):
    """A client that comes during PAUSE is let in or waits, and is served after RESUME."""
    pooler = pooled()
    with pooler.raw() as first:
        first.value("select 1")
    pooler.admin("PAUSE")
    with pooler.raw() as late:
        late.send(query("select 'late'"))
        assert late.quiet(0.3)
        pooler.admin("RESUME")
        assert late.until("Z").rows == [["late"]]


def test_pause_twice_and_resume_without_pause(pooled):
    """The errors' texts."""
    pooler = pooled()
    assert "not paused" in refused(pooler, "RESUME")
    assert "not paused" in refused(pooler, "RESUME app")
    pooler.admin("PAUSE")
    assert "already suspended/paused" in refused(pooler, "PAUSE")
    pooler.admin("RESUME")
    assert "no such database: nowhere" in refused(pooler, "PAUSE nowhere")
    assert "cannot pause admin db: pgbouncer" in refused(pooler, "PAUSE pgbouncer")


def test_the_console_is_no_database_to_command(pooled):
    """The error of a command that names the console instead of a database; ENABLE and DISABLE have the same one."""
    pooler = pooled()
    for command, text in {
        "PAUSE": "cannot pause admin db: pgbouncer",
        "RESUME": "database pgbouncer is not paused",
        "DISABLE": "cannot disable admin db: pgbouncer",
        "ENABLE": "cannot disable admin db: pgbouncer",
        "KILL": "cannot kill admin db: pgbouncer",
        "RECONNECT": "cannot reconnect admin db: pgbouncer",
        "WAIT_CLOSE": "cannot wait in admin db: pgbouncer",
    }.items():
        assert refused(pooler, f"{command} pgbouncer") == text
        assert refused(pooler, f"{command} nowhere") == "no such database: nowhere"


def test_disable_and_enable(pooled):
    """DISABLE refuses new clients of a database after they have logged in; those inside go on; ENABLE lets new ones in."""
    pooler = pooled()
    with pooler.raw() as inside:
        pooler.admin("DISABLE app")
        assert pooler.show("DATABASES", name="app")[0]["disabled"] == "1"
        with pytest.raises(Closed) as closed:
            pooler.raw()
        assert "disabled" in closed.value.error["M"] or "does not allow connections" in closed.value.error["M"]
        with pooler.raw("app2") as other:
            assert other.value("select 1") == "1"
        assert inside.value("select 1") == "1"
        pooler.admin("ENABLE app")
        with pooler.raw() as again:
            assert again.value("select 1") == "1"
    assert "a database is required" in refused(pooler, "DISABLE")
    assert "cannot disable admin db" in refused(pooler, "DISABLE pgbouncer")


def test_reconnect(pooled, pg):
    """RECONNECT replaces every server when it is free, without a client noticing."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("begin")
        held, idle = one.value("select pg_backend_pid()"), two.value("select pg_backend_pid()")
        pooler.admin("RECONNECT")
        assert one.value("select pg_backend_pid()") == held
        assert two.value("select pg_backend_pid()") != idle
        one.query("commit")
        eventually(lambda: int(held) not in [b[0] for b in pg.backends("app")], "the held server is closed after its transaction")
        assert one.value("select 1") == "1"


def test_reconnect_of_one_database(pooled):
    """RECONNECT db leaves other databases alone."""
    pooler = pooled()
    with pooler.raw("app") as one, pooler.raw("app2") as two:
        first, second = one.value("select pg_backend_pid()"), two.value("select pg_backend_pid()")
        pooler.admin("RECONNECT app")
        assert one.value("select pg_backend_pid()") != first
        assert two.value("select pg_backend_pid()") == second


def test_wait_close(pooled):
    """WAIT_CLOSE answers when the servers that RECONNECT marked are gone."""
    pooler = pooled()
    with pooler.raw() as session, pooler.console() as console:
        session.query("begin")
        pooler.admin("RECONNECT")
        console.send(query("WAIT_CLOSE"))
        assert console.quiet(0.4)
        session.query("commit")
        assert console.until("Z").commands == ["WAIT_CLOSE"]
        assert console.query("WAIT_CLOSE app").commands == ["WAIT_CLOSE"], "nothing to wait for"


def test_kill(pooled, pg):
    """KILL db drops its clients and servers at once and leaves it paused; other databases are untouched."""
    pooler = pooled()
    with pooler.raw("app") as victim, pooler.raw("app2") as other:
        victim.query("begin")
        other.value("select 1")
        pooler.admin("KILL app")
        assert victim.until_closed().errors[-1]["S"] == "FATAL"
        assert other.value("select 1") == "1"
        eventually(lambda: not pg.backends("app"), "its servers are gone")
        assert pooler.show("DATABASES", name="app")[0]["paused"] == "1"
        pooler.admin("RESUME app")
        with pooler.raw("app") as again:
            assert again.value("select 1") == "1"
    assert "cannot kill admin db" in refused(pooler, "KILL pgbouncer")
    assert "no such database" in refused(pooler, "KILL nowhere")


@pytest.mark.needs("kill client")
def test_kill_client(pooled):
    """KILL_CLIENT id closes that one; its neighbour on the same pool goes on."""
    pooler = pooled()
    with pooler.raw(application_name="victim") as victim, pooler.raw() as other:
        other.value("select 1")
        number = pooler.show("CLIENTS", application_name="victim")[0]["id"]
        assert not pooler.admin(f"KILL_CLIENT {number}")
        assert "admin forced disconnect" in victim.until_closed().errors[-1]["M"]
        assert other.value("select 1") == "1"
    assert "client not found" in refused(pooler, "KILL_CLIENT 99999999")
    assert "invalid client pointer" in refused(pooler, "KILL_CLIENT abc")


@pytest.mark.needs("kill client")
def test_kill_client_inside_a_transaction(pooled, pg):
    """The killed client's transaction is rolled back and its server not reused."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw(application_name="victim") as victim, pooler.raw() as other:
        victim.query("begin")
        pid = victim.value("select pg_backend_pid()")
        victim.query("insert into scratch values (70, 1)")
        number = pooler.show("CLIENTS", application_name="victim")[0]["id"]
        pooler.admin(f"KILL_CLIENT {number}")
        victim.until_closed()
        assert other.value("select count(*) from scratch where who = 70") == "0"
        assert other.value("select pg_backend_pid()") != pid


def test_reload_adds_changes_and_removes_databases(pooled, pg):
    """RELOAD: a new database works, a removed one ends its clients, a changed one leads elsewhere, other databases are left alone."""
    pooler = pooled(databases={"gone": pg.at("app"), "moved": pg.at("app")})
    with pooler.raw("gone") as gone, pooler.raw("moved") as moved, pooler.raw("app2") as other:
        gone.value("select 1")
        pid = other.value("select pg_backend_pid()")
        assert moved.value("select current_database()") == "app"
        del pooler.databases["gone"]
        pooler.databases["moved"] = pg.at("app3")
        pooler.databases["fresh"] = pg.at("app2")
        pooler.write_ini()
        pooler.reload()
        assert "database removed" in gone.until_closed().errors[-1]["M"]
        assert moved.value("select current_database()") == "app3"
        assert other.value("select pg_backend_pid()") == pid
        with pooler.raw("fresh") as fresh:
            assert fresh.value("select current_database()") == "app2"
        with pytest.raises(Closed):
            pooler.raw("gone")


@pytest.mark.needs("failed RELOAD reported")
def test_reload_of_a_broken_ini(pooled):
    """A file that does not parse: RELOAD says so, everything goes on with what was there."""
    pooler = pooled()
    good = pooler.ini.read_text()
    with pooler.raw() as session:
        session.value("select 1")
        for broken in ("[databases]\napp = host=\n", "[pgbouncer]\nno_such_setting = 1\n", "nonsense\n", "[pgbouncer]\npool_mode = sometimes\n"):
            pooler.ini.write_text(broken)
            with pooler.console() as console:
                answer = console.query("RELOAD")
                assert answer.error["C"] in ("F0000", "08P01"), answer.messages
            assert session.value("select 1") == "1"
        pooler.ini.write_text(good)
        pooler.reload()
        assert session.value("select 1") == "1"


def test_set(pooled):
    """SET changes a setting at once, RELOAD takes the file's value back."""
    pooler = pooled(default_pool_size=5)
    for command in ("SET default_pool_size = 3", "SET default_pool_size = '3'", "set default_pool_size to 3"):
        pooler.admin(command)
        assert pooler.show("CONFIG", key="default_pool_size")[0]["value"] == "3"
        pooler.reload()
        assert pooler.show("CONFIG", key="default_pool_size")[0]["value"] == "5"
    for command in ("SET no_such_setting = 1", "SET pool_mode = sometimes", "SET query_timeout = -5"):
        with pooler.console() as console:
            assert console.query(command).errors, command


def test_set_takes_effect(pooled, pg):
    """A pool size set by SET counts for the next statement."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.query("begin")
        two.send(query("begin"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the second waits")
        pooler.admin("SET default_pool_size = 2")
        assert two.until("Z").status == "T"


def test_shutdown(pooled, pg):
    """SHUTDOWN ends everything at once, without an answer; exit code 0."""
    pooler = pooled()
    with pooler.raw() as session, pooler.console() as console:
        session.query("begin")
        console.send(query("SHUTDOWN"))
        assert not console.until_closed().of("C")
        assert pooler.wait_exit() == 0 or pooler.process.returncode == 1
        session.until_closed()
    eventually(lambda: not pg.backends("app"), "its servers are gone")


@pytest.mark.needs("shutdown waits for clients")
def test_shutdown_wait_for_servers(pooled):
    """SHUTDOWN WAIT_FOR_SERVERS: the open transaction may finish; waiting clients are told; then it ends with 0."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as inside, pooler.raw() as waiting:
        inside.query("begin")
        waiting.send(query("select 1"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "one waits")
        pooler.admin("SHUTDOWN WAIT_FOR_SERVERS")
        assert "shutting down" in waiting.until_closed().errors[-1]["M"]
        assert inside.query("select 1").status == "T"
        assert pooler.process.poll() is None
        inside.query("commit")
        assert pooler.wait_exit() == 0


@pytest.mark.needs("shutdown waits for clients")
def test_shutdown_wait_for_clients(pooled):
    """SHUTDOWN WAIT_FOR_CLIENTS: connected clients go on, new ones are not let in, the last one to leave ends it with 0."""
    pooler = pooled()
    with pooler.raw() as session:
        session.value("select 1")
        pooler.admin("SHUTDOWN WAIT_FOR_CLIENTS")
        with pytest.raises((OSError, Closed)):
            pooler.raw()
        for _ in range(3):
            assert session.value("select 1") == "1"
            time.sleep(0.1)
        assert pooler.process.poll() is None
        session.terminate()
        assert pooler.wait_exit() == 0


def test_a_console_that_leaves_during_pause(pooled):
    """The pause stays when its console has gone; another console can resume."""
    pooler = pooled()
    with pooler.raw() as session:
        session.query("begin")
        console = pooler.console()
        console.send(query("PAUSE"))
        assert console.quiet(0.2)
        console.hang_up()
        assert session.query("commit").status == "I"
        with pooler.console() as other:
            other.query("RESUME")
        assert session.value("select 1") == "1"

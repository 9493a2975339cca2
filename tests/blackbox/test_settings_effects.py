"""Settings that no other file is about: that each does what it says. Which test stands for which setting is listed in settings-tests.txt."""

import os
import re
import shutil
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from harness import wire
from harness.machine import eventually, give
from harness.wire import Raw

DEV_LOG = Path("/dev/log")


def test_conffile(pooled):
    """SET conffile: the next RELOAD reads that file."""
    pooler = pooled(default_pool_size=5)
    other = pooler.folder / "other.ini"
    other.write_text(pooler.ini.read_text().replace("default_pool_size = 5", "default_pool_size = 9"))
    give(other)
    pooler.admin(f"SET conffile = '{other}'")
    pooler.reload()
    assert pooler.show("CONFIG", key="default_pool_size")[0]["value"] == "9"


def test_logfile(pooled):
    """logfile changed by SET or RELOAD: lines go to the new file from then on."""
    pooler = pooled()
    for name, change in (("second", lambda path: pooler.admin(f"SET logfile = '{path}'")), ("third", None)):
        path = pooler.folder / name
        if change:
            change(path)
            pooler.admin("SHOW VERSION")
        else:
            pooler.write_ini(logfile=path)
            pooler.reload()
        pooler.admin("RECONNECT")
        eventually(lambda: path.exists() and "RECONNECT command issued" in path.read_text(), f"lines in {name}")


def test_log_stats(pooled):
    """log_stats = 0: no line of totals."""
    silent, speaking = pooled(stats_period=1, log_stats=0), pooled(stats_period=1)
    speaking.logged(r"LOG stats: \d+ xacts/s", timeout_s=15)
    speaking.logged(r"(?s)LOG stats: .*LOG stats: ", timeout_s=15)
    assert "LOG stats:" not in silent.log()


def test_verbose(pooled):
    """verbose = 1 adds DEBUG lines, at a start, by SET and by RELOAD."""
    quiet, loud = pooled(), pooled(verbose=1)
    assert "DEBUG" not in quiet.log() and "DEBUG" in loud.log()
    quiet.write_ini(verbose=1)
    quiet.reload()
    assert quiet.show("CONFIG", key="verbose")[0]["value"] == "1"


def test_job_name_is_a_name(pooled):
    """job_name is shown, and changes nothing."""
    pooler = pooled(job_name="poolie")
    assert pooler.show("CONFIG", key="job_name")[0]["value"] == "poolie"


@pytest.mark.skipif(os.geteuid() != 0 or DEV_LOG.exists(), reason="needs to make /dev/log, which only root can and a machine with a logger has")
def test_syslog(pooled):
    """syslog, syslog_ident and syslog_facility: the messages alone, with the priority of their level; nothing below LOG."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as logger:
        try:
            logger.bind(str(DEV_LOG))
        except FileExistsError:
            pytest.skip("another test is using /dev/log")
        try:
            DEV_LOG.chmod(0o666)
            logger.settimeout(10)
            pooler = pooled(syslog=1, syslog_ident="poolie", syslog_facility="local2", verbose=1)
            lines = []

            def until(pattern):
                while not any(re.search(pattern, line) for line in lines):
                    lines.append(logger.recv(10_000).decode())

            until(rf"^<150>poolie\[{pooler.pid}\]: .*process up: ")
            with pooler.console() as console:
                console.query("nonsense")
            until(r"^<148>poolie\[\d+\]: C-0x[0-9a-f]+: pgbouncer/admin@\S+ pooler error: invalid command 'nonsense'")
            assert any(line.startswith("<147>") for line in lines)
            assert not any("DEBUG" in line or re.search(r"\d\d:\d\d:\d\d\.\d{3}", line) for line in lines)
            assert "process up" in pooler.log()  # the file has them too
            pooler.write_ini(syslog=0)
            pooler.reload()
            pooler.admin("RECONNECT")
            pooler.logged("RECONNECT command issued")
            logger.setblocking(False)
            with pytest.raises(BlockingIOError):
                while "RECONNECT" not in logger.recv(10_000).decode():
                    pass
        finally:
            DEV_LOG.unlink()


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss")
def test_listen_backlog(pooled):
    """listen_backlog is the length of the listening socket's queue."""
    pooler = pooled(listen_backlog=37)
    shown = subprocess.run(["ss", "-Hltn", f"sport = :{pooler.port}"], capture_output=True, text=True).stdout
    assert shown.split()[2] == "37", shown


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a group that the test may give away")
def test_unix_socket_group(pooled):
    """unix_socket_group is the socket file's group, by number or name. The process must be a member of it."""
    import grp
    import pwd

    service = pwd.getpwnam("postgres")
    name = grp.getgrgid(service.pw_gid).gr_name
    for value in (name, str(service.pw_gid)):
        pooler = pooled(unix_socket_group=value, unix_socket_mode="0770")
        found = eventually(lambda: os.path.exists(pooler.unix_address) and os.stat(pooler.unix_address), "the socket file")
        assert found.st_gid == service.pw_gid and stat.S_IMODE(found.st_mode) == 0o770


@pytest.mark.needs("parallel connects")
def test_max_parallel_connects(pooled, pg):
    """max_parallel_connects = 1: servers are opened one after the other, as PgBouncer does."""
    pooler = pooled(databases={"slow": pg.at("app", connect_query="'select pg_sleep(0.1)'")}, max_parallel_connects=1, default_pool_size=4)
    sessions = [pooler.raw("slow") for _ in range(4)]
    for session in sessions:
        session.send(wire.query("select pg_sleep(1)"))
    most = 0
    while any(row["cl_waiting"] != "0" for row in pooler.show("POOLS", database="slow")):
        most = max(most, int(pooler.pool("slow")["sv_login"]))
        time.sleep(0.01)
    assert most <= 1
    for session in sessions:
        assert session.until().rows
        session.hang_up()


@pytest.mark.needs("login notice")
def test_login_notify_message(pooled):
    """A notice right after login, before the first ReadyForQuery."""
    pooler = pooled(login_notify_message="maintenance tonight")
    with Raw(pooler.address) as session:
        answer = session.login("alice", "app")
        assert answer.notices == ["maintenance tonight"]
    pooler.admin("SET login_notify_message = ''")
    with Raw(pooler.address) as session:
        assert not session.login("alice", "app").notices


@pytest.mark.needs("scram iterations")
def test_scram_iterations(pooled):
    """Clients whose password is stored in plain are asked for so many iterations."""
    pooler = pooled(auth_type="scram-sha-256", scram_iterations=1234)
    with Raw(pooler.address) as session:
        session.send(wire.startup({"user": "alice", "database": "app"}))
        assert session.receive().tag == "R"
        first = b"n,,n=,r=abcdefghijkl"
        session.send(wire.message("p", wire.cstr("SCRAM-SHA-256") + len(first).to_bytes(4, "big") + first))
        assert b",i=1234" in session.receive().body


@pytest.mark.needs("pool idle timeout")
def test_pool_idle_timeout(pooled):
    """A pool without clients and servers is forgotten after pool_idle_timeout."""
    pooler = pooled(pool_idle_timeout=1, server_idle_timeout=1)
    with pooler.raw() as session:
        session.query("select 1")
    assert pooler.show("POOLS", database="app")
    eventually(lambda: not pooler.show("POOLS", database="app"), "the pool is gone", timeout_s=15)
    pooler.logged("cleaning up idle pool")


def test_admin_users(pooled):
    """Users in admin_users may act; a reload takes the right away and gives it to another user."""
    pooler = pooled(admin_users="admin, alice")
    with pooler.raw("pgbouncer", "alice") as console:
        assert console.query("RECONNECT").commands == ["RECONNECT"]
    pooler.write_ini(admin_users="admin", stats_users="alice")
    pooler.reload()
    with pooler.raw("pgbouncer", "alice") as console:
        assert console.query("RECONNECT").error["M"] == "admin access needed"


def test_auth_file(pooled):
    """auth_file may change by reload, in its contents and in its name."""
    pooler = pooled(auth_type="md5", userlist={"admin": "pw-of-admin", "alice": "old"})
    pooler.write_userlist({"admin": "pw-of-admin", "alice": "new"})
    pooler.reload()
    pooler.raw(password="new").hang_up()
    other = pooler.folder / "other.txt"
    other.write_text('"admin" "pw-of-admin"\n"alice" "third"\n')
    give(other)
    pooler.write_ini(auth_file=other)
    pooler.reload()
    pooler.raw(password="third").hang_up()


@pytest.mark.needs("user timeouts")
@pytest.mark.parametrize("where", ["database", "user"])
def test_query_wait_timeout_of_a_part(pooled, pg, where):
    """query_wait_timeout in a [databases] or a [users] line."""
    databases = {"part": pg.at("app", **({"query_wait_timeout": 1} if where == "database" else {}))}
    users = {"alice": "query_wait_timeout=1"} if where == "user" else {}
    pooler = pooled(databases=databases, users=users, default_pool_size=1, query_wait_timeout=60)
    with pooler.raw("part") as holder, pooler.raw("part") as waiter:
        holder.query("begin")
        waiter.send(wire.query("select 1"))
        assert waiter.until_closed().errors[-1]["M"] == "query_wait_timeout"


def test_load_balance_hosts(pooled, pg):
    """load_balance_hosts=disable stays on a host until a connection to it fails."""
    line = f"host=127.0.0.1,localhost port={pg.port} dbname=app"
    pooler = pooled(databases={"rr": line, "stay": line + " load_balance_hosts=disable"}, default_pool_size=4)
    hosts = {}
    for database in ("rr", "stay"):
        sessions = [pooler.raw(database) for _ in range(4)]
        for session in sessions:
            session.query("begin")
        hosts[database] = {row["addr"] for row in pooler.servers(database=database)}
        for session in sessions:
            session.hang_up()
    assert len(hosts["stay"]) == 1
    assert hosts["rr"] >= hosts["stay"]


def test_max_user_settings_of_reserve(pooled):
    """reserve_pool_size in a [users] line counts for that user's pools."""
    pooler = pooled(users={"alice": "reserve_pool_size=1"}, default_pool_size=1, reserve_pool_timeout=1)
    with pooler.raw() as first, pooler.raw() as second:
        first.query("begin")
        assert second.query("select 1").rows  # by the reserve, after a second
    with pooler.raw(user="bob") as first, pooler.raw(user="bob") as second:
        first.query("begin")
        second.send(wire.query("select 1"))
        assert second.quiet(1.8)


def test_server_lifetime_of_a_database(pooled, pg):
    """server_lifetime in a [databases] line: that database's servers are replaced, those of other databases stay."""
    pooler = pooled(databases={"short": pg.at("app", server_lifetime=1)})
    with pooler.raw("short") as short, pooler.raw("app2") as long:
        first = short.value("select pg_backend_pid()"), long.value("select pg_backend_pid()")
        eventually(lambda: short.value("select pg_backend_pid()") != first[0], "a new server", timeout_s=15)
        assert long.value("select pg_backend_pid()") == first[1]

"""Throw-away PostgreSQL clusters of several major versions.

A cluster is made once per major version with initdb, filled with the roles and databases below, and kept as a template in
`.cache`; a test session copies the template and starts the copy. Durability is off: nothing here outlives the session.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from .machine import CACHE, TESTS, as_service, eventually, free_port, give, processes_of, reachable, run_as_service, scratch_folder


def _distribution():
    folders = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parts[-3] for path in folders), key=int, default="15")


DISTRIBUTION = _distribution()
"""The major version that the distribution's packages bring (Debian 12: 15); the one most tests use."""

TEMPLATE_REVISION = "6"
"""Part of the template's name: raise it when the roles, databases or settings below change."""

BESIDE = "beside the pooler"
"""The application_name of connections that do not pass through the pooler, so that they are never counted as its servers."""

PASSWORDS = {
    name: f"pw-of-{name}"
    for name in ("alice", "bob", "carol", "u_md5", "u_scram", "u_plain", "u_ssl", "u_nossl", "u_cert", "u_repl", "u_gone", "poolauth")
}
"""Every role of the clusters that may log in, with its password. `u_gone` exists at login time only in the files of poolers."""

SETTINGS = """
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = 100
shared_buffers = 32MB
max_wal_size = 512MB
wal_level = logical
max_wal_senders = 10
max_replication_slots = 10
max_prepared_transactions = 10
autovacuum = off
log_connections = off
timezone = 'Etc/UTC'
lc_messages = 'C'
"""

# What each role must do to get in is the subject of the server-side authentication tests.
HBA = """
local   all          postgres                 trust
local   all          u_scram                  scram-sha-256
local   all          all                      trust
host    all          u_md5      127.0.0.1/32  md5
host    all          u_scram    127.0.0.1/32  scram-sha-256
host    all          u_plain    127.0.0.1/32  password
hostssl all          u_ssl      127.0.0.1/32  scram-sha-256
host    all          u_ssl      127.0.0.1/32  reject
hostnossl all        u_nossl    127.0.0.1/32  trust
host    all          u_nossl    127.0.0.1/32  reject
hostssl all          u_cert     127.0.0.1/32  cert
host    all          u_cert     127.0.0.1/32  reject
host    replication  all        127.0.0.1/32  trust
host    all          all        127.0.0.1/32  trust
"""

OBJECTS = """
create table kv (id int primary key, v text);
insert into kv select g, 'value ' || g from generate_series(1, 1000) g;
grant all on kv to public;
create table scratch (who int, n int);
grant all on scratch to public;
create function say(text) returns void language plpgsql as 'begin raise notice ''%'', $1; end';
"""


def program(major, name):
    """The path of a server program of this major version, or None when it is not installed."""
    if major == DISTRIBUTION:
        path = Path(f"/usr/lib/postgresql/{major}/bin/{name}")
    else:
        path = TESTS / "pg" / "node_modules" / f"pg{major}" / "native" / "bin" / name
    return path if path.exists() else None


# What a test leaves behind that changes how statements of other tests run: they share the server.
SHARED_STATE = """
    select 'publication ' || pubname from pg_publication
    union all select 'event trigger ' || evtname from pg_event_trigger
    union all select 'replication slot ' || slot_name from pg_replication_slots where not temporary
    union all select 'setting ' || name || ' = ' || setting from pg_file_settings where sourcefile like '%postgresql.auto.conf'
    union all select 'settings ' || setconfig::text || ' of database ' || setdatabase || ', role ' || setrole from pg_db_role_setting
    union all select 'domain ' || contypid::regtype || ' with a check' from pg_constraint where contypid >= 16384
    union all select 'operator ' || oid::regoperator from pg_operator where oid >= 16384
    union all select 'cast ' || castsource::regtype || ' as ' || casttarget::regtype from pg_cast where oid >= 16384
    union all select 'operator family ' || opfname from pg_opfamily where oid >= 16384
    union all select 'role ' || rolname || ' (superuser ' || rolsuper || ', limit ' || rolconnlimit || ')' from pg_roles
    order by 1"""


class Cluster:
    """A running server. `port` on 127.0.0.1, a unix socket in `folder`, superuser `postgres` without a password."""

    def __init__(self, major, certificates, follows=None):
        """`follows`: the cluster whose standby this one is. It must be as new: both begin as the same stopped copy."""
        self.major = major
        self.folder = scratch_folder(f"pg{major}")
        bin_folder = reachable(program(major, "postgres").parent.parent, self.folder) / "bin"
        self.postgres, self.initdb = bin_folder / "postgres", bin_folder / "initdb"
        self.port = free_port()
        self.data = self.folder / "data"
        self.log_path = self.folder / "server.log"
        self._process = None
        shutil.copytree(self._template(), self.data, symlinks=True)
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"ssl = on\nssl_cert_file = '{certificates.crt('server')}'\n")
            conf.write(f"ssl_key_file = '{certificates.key('server')}'\nssl_ca_file = '{certificates.crt('ca')}'\n")
        if follows:
            self._become_standby(follows)
        give(self.data)
        self.start()

    def _become_standby(self, primary):
        """Has the server follow this one when it starts the next time."""
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=u_repl application_name={self.folder.name}'\n")
            conf.write("wal_retrieve_retry_interval = 200ms\n")
        (self.data / "standby.signal").touch()
        give(self.data)

    def follow(self, primary):
        """Makes the stopped server a standby of this one, and starts it."""
        self._become_standby(primary)
        self.start()

    def promote(self):
        """Makes this standby a primary, and waits until it is one."""
        assert self.sql("select pg_promote()") == [(True,)]

    def postmaster(self):
        """The process id of the server's first process."""
        return self._process.pid

    def in_recovery(self):
        """Whether it is a standby."""
        return self.sql("select pg_is_in_recovery()") == [(True,)]

    def _template(self):
        version = run_as_service(self.postgres, "--version").split()[2]
        templates = CACHE / "pg-templates"
        templates.mkdir(parents=True, exist_ok=True)
        template = templates / f"{version}-r{TEMPLATE_REVISION}"
        with open(templates / f"{version}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self._make_template(template)
        return template

    def _make_template(self, template):
        run_as_service(
            self.initdb, "-D", self.data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(SETTINGS)
            if int(self.major) > 12:
                # Nothing is archived: what a standby has not got yet must still be there after a checkpoint.
                conf.write("wal_keep_size = 256MB\n")
        (self.data / "pg_hba.conf").write_text(HBA)
        # Lines for TLS connections are an error to a server that has TLS off; the copies have it on.
        (self.data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
        self.start()
        with self.connect("postgres") as connection:
            for name, password in PASSWORDS.items():
                how = "md5" if name == "u_md5" else "scram-sha-256"
                connection.execute(f"set password_encryption = '{how}'")
                extra = "replication" if name == "u_repl" else ""
                connection.execute(f"create role {name} login {extra} password '{password}'")
            # Before version 14 there is no such role; auth_query is tested on later ones.
            if int(self.major) >= 14:
                connection.execute("grant pg_read_all_data to poolauth")
            for database in ("app", "app2", "app3"):
                connection.execute(f"create database {database}")
                connection.execute(f"grant all on database {database} to public")
        for database in ("app", "app2", "app3"):
            with self.connect(database) as connection:
                connection.execute("grant all on schema public to public")
                connection.execute(OBJECTS)
        self.stop()
        (self.data / "pg_hba.conf").write_text(HBA)
        shutil.move(self.data, template)

    def start(self):
        """Starts the server and waits until it takes connections."""
        self.launch()
        eventually(self._ready, f"PostgreSQL {self.major} is up: {self.log_path}", timeout_s=30)

    def launch(self):
        """Starts the server, and does not wait."""
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                as_service(
                    self.postgres, "-D", self.data, "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder), signal_name="QUIT"
                ),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/",
            )  # fmt: skip

    def _ready(self):
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL {self.major} did not start:\n{self.log_path.read_text()}")
        connection = self._beside()
        if connection:
            connection.close()
        return connection is not None

    def _beside(self):
        try:
            return self.connect("postgres")
        except psycopg.OperationalError:
            return None

    def stop(self, how=signal.SIGINT):
        """Stops the server; SIGINT ends its sessions, SIGQUIT drops them as a crash would."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)

    def discard(self):
        """Stops the server and removes everything it wrote."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def frozen(self, whole=False):
        """While this lasts the server's listening process answers nothing: new connections hang. `whole`: none of its processes runs, as
        on a machine that hangs; what was sent to them meanwhile they read when it is over."""
        stopped = []
        try:
            # The listening process first: it starts no other one then.
            self._signal(self._process.pid, signal.SIGSTOP, stopped)
            for pid in processes_of(self._process.pid)[1:] if whole else []:
                self._signal(pid, signal.SIGSTOP, stopped)
            yield
        finally:
            for pid in reversed(stopped):
                self._signal(pid, signal.SIGCONT, [])

    @staticmethod
    def _signal(pid, number, reached):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(pid)

    def connect(self, database="app", user="postgres", **options):
        """A connection that does not pass through the pooler."""
        options = {"host": str(self.folder), "port": self.port, "application_name": BESIDE, "connect_timeout": 10, **options}
        return psycopg.connect(dbname=database, user=user, autocommit=True, **options)

    def sql(self, statement, parameters=None, database="app"):
        """Runs one statement as superuser, past the pooler, and returns its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def configured(self, **settings):
        """While this lasts these settings of the server are different (only such as a reload can change)."""

        before = {name: self.sql(f"select current_setting('{name}')") for name in settings}

        def reload(wanted):
            self.sql("select pg_reload_conf()")
            for name, value in wanted.items():
                eventually(lambda: self.sql(f"select current_setting('{name}')") == value, f"{name} is {value}")  # noqa: B023

        for name, value in settings.items():
            self.sql(f"alter system set {name} = '{value}'")
        try:
            reload({name: [(value,)] for name, value in settings.items()})
            yield
        finally:
            for name in settings:
                self.sql(f"alter system reset {name}")
            reload(before)

    def backends(self, database=None, user=None):
        """The server's client connections except our own of `connect`: list of (pid, application_name, state, query)."""
        return self.sql(
            "select pid, application_name, state, query from pg_stat_activity where backend_type in ('client backend', 'walsender')"
            " and application_name <> %(b)s and (%(d)s::text is null or datname = %(d)s) and (%(u)s::text is null or usename = %(u)s)"
            " order by backend_start",
            {"b": BESIDE, "d": database, "u": user},
        )

    def running(self, text):
        """The client connections that run a statement with this text in it now."""
        return [backend for backend in self.backends() if backend[2] == "active" and text in backend[3]]

    def when_running(self, text, action):
        """Calls `action` once, from another thread, as soon as a statement with this text runs; returns the thread."""

        def wait():
            eventually(lambda: self.running(text), f"'{text}' runs", timeout_s=20)
            action()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def end_all_backends(self):
        """Ends every client connection and waits until they are gone: each test starts with a quiet server."""
        with eventually(self._beside, f"PostgreSQL {self.major} takes connections", timeout_s=30) as connection:

            def none_left():
                left = connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where backend_type in ('client backend', 'walsender') and pid <> pg_backend_pid()"
                ).fetchall()
                return not left

            eventually(none_left, "all sessions of the cluster have ended")

    def shared_state(self):
        """What is not a table of some test, and changes how statements of all tests run."""
        return {line for (line,) in self.sql(SHARED_STATE)}

    def at(self, dbname="app", **more):
        """The right-hand side of a [databases] line that leads to this cluster over TCP."""
        words = {"host": "127.0.0.1", "port": self.port, "dbname": dbname, **more}
        return " ".join(f"{key}={quoted(value)}" for key, value in words.items())

    def log(self):
        """All that the server has logged."""
        return self.log_path.read_text(errors="replace")


def quoted(value):
    """A value of a connection string in the ini dialect: quoted when it holds blanks or quotes."""
    value = str(value)
    return value if re.fullmatch(r"[^\s']+", value) else "'" + value.replace("'", "''") + "'"

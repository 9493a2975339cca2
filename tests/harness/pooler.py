"""The pooler under test: writes its ini, starts it, talks to its console, and sees to it that it did not crash."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg

from .cluster import PASSWORDS
from .machine import REPOSITORY, as_service, eventually, free_port, give, reachable, scratch_folder
from .wire import Raw

CRASH = re.compile(r"panicked at|assertion .*failed|stack overflow|SIGSEGV|@\S+\.c:\d+ in function")
"""What a crash looks like in a log: Rust's panic message, or PgBouncer's fatal()."""


def binary():
    """The pooler's path: $POOLER, else the release build of this repository."""
    return Path(os.environ.get("POOLER") or REPOSITORY / "target" / "release" / "pgweir").resolve()


def kind():
    """`pgweir` or `pgbouncer`: $POOLER_KIND, else read off the path."""
    return os.environ.get("POOLER_KIND") or ("pgbouncer" if "pgbouncer" in binary().name else "pgweir")


def version():
    """(major, minor) of the pooler."""
    shown = subprocess.run([binary(), "-V"], capture_output=True, text=True).stdout
    numbers = re.search(r"(\d+)\.(\d+)", shown)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


class Pooler:
    """A pooler process with its own folder, ports and log. Settings are those of [pgbouncer], given by name."""

    def __init__(self, databases, users=None, userlist=None, start=True, arguments=(), limits=(), sandbox=None, ini_tail="", **settings):
        self.folder = scratch_folder("pool")
        self.port = free_port()
        self.ini = self.folder / "pooler.ini"
        self.log_path = self.folder / "pooler.log"
        self.stderr_path = self.folder / "stderr.txt"
        self.userlist_path = self.folder / "userlist.txt"
        self.databases = dict(databases)
        self.users = dict(users or {})
        self.ini_tail = ini_tail
        self.arguments = list(arguments) or ["--quiet"]
        self.limits = list(limits)
        self.sandbox = sandbox
        self.process = None
        self.expect_exit = False
        self.started_s = time.monotonic()
        self.settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": str(self.folder),
            "logfile": str(self.log_path),
            "auth_type": "trust",
            "auth_file": str(self.userlist_path),
            "admin_users": "admin",
            "stats_users": "stats",
            "pool_mode": "transaction",
            "max_client_conn": 500,
            **settings,
        }
        self.write_userlist(PASSWORDS | {"postgres": "", "admin": "pw-of-admin", "stats": "pw-of-stats"} if userlist is None else userlist)
        self.write_ini()
        if start:
            self.start()

    def write_userlist(self, entries):
        """Writes auth_file from user name to stored secret."""
        lines = ('"{}" "{}"\n'.format(name.replace('"', '""'), secret.replace('"', '""')) for name, secret in entries.items())
        self.userlist_path.write_text("".join(lines))
        self.userlist_path.chmod(0o640)
        give(self.userlist_path)

    def write_ini(self, **changes):
        """Writes the ini file again, with these settings changed (None removes one)."""
        self.settings.update(changes)
        lines = ["[databases]", *(f"{name} = {where}" for name, where in self.databases.items())]
        if self.users:
            lines += ["[users]", *(f"{name} = {how}" for name, how in self.users.items())]
        lines += ["[pgbouncer]", *(f"{k} = {v}" for k, v in self.settings.items() if v is not None)]
        self.ini.write_text("\n".join(lines) + "\n" + self.ini_tail)
        give(self.ini)

    def command(self, *arguments):
        """The command line that starts the pooler."""
        return [*self.limits, str(reachable(binary(), self.folder)), *arguments]

    def start(self, wait=True):
        """Starts the process and waits until it listens."""
        self.started_s = time.monotonic()
        stderr = open(self.stderr_path, "ab")
        self.process = subprocess.Popen(
            as_service(*self.command(*self.arguments, str(self.ini)), signal_name="KILL"),
            stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, cwd=self.folder,
            env=os.environ | {"RUST_BACKTRACE": "1"}, preexec_fn=self.sandbox,
        )  # fmt: skip
        if wait:
            eventually(self._listening, f"the pooler listens on {self.port}", timeout_s=15)

    def _listening(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the pooler ended with {self.process.returncode}:\n{self.output()}")
        try:
            Raw(self.address if self.settings["listen_addr"] else self.unix_address).socket.close()
        except OSError:
            return False
        # The unix socket is opened after the TCP sockets; if that fails, the pooler goes on without it.
        wanted = self.settings["unix_socket_dir"] == str(self.folder) and time.monotonic() < self.started_s + 2
        return self._listens_on_unix() or not wanted

    def _listens_on_unix(self):
        lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
        return any(words[3] == "00010000" and words[-1] == self.unix_address for words in lines if len(words) > 7)

    @property
    def address(self):
        """Its TCP address."""
        return ("127.0.0.1", self.port)

    @property
    def unix_address(self):
        """The path of its unix socket."""
        return f"{self.folder}/.s.PGSQL.{self.port}"

    @property
    def pid(self):
        """Its process id."""
        return self.process.pid

    def connect(self, database="app", user="alice", **options):
        """A psycopg connection through the pooler, in autocommit."""
        options.setdefault("password", PASSWORDS.get(user))
        options = {"connect_timeout": 20, "autocommit": True, "sslmode": "disable", "gssencmode": "disable", **options}
        options.setdefault("host", "127.0.0.1")
        return psycopg.connect(port=self.port, dbname=database, user=user, **options)

    def dsn(self, database="app", user="alice", **more):
        """A libpq connection string through the pooler."""
        words = {"host": "127.0.0.1", "port": self.port, "dbname": database, "user": user, "password": PASSWORDS.get(user, ""), **more}
        return " ".join(f"{k}='{v}'" for k, v in words.items())

    def raw(self, database="app", user="alice", password=None, login=True, unix=False, timeout_s=20, **startup):
        """A raw protocol connection through the pooler, logged in unless told otherwise."""
        connection = Raw(self.unix_address if unix else self.address, timeout_s)
        if login:
            connection.login(user, database, password or PASSWORDS.get(user), **startup)
        return connection

    def console(self, user="admin", database="pgbouncer"):
        """A raw connection to the console."""
        return self.raw(database, user, password=f"pw-of-{user}")

    def admin(self, command, user="admin"):
        """Runs one console command; returns its rows as dictionaries. An error fails the test."""
        with self.console(user) as console:
            answer = console.query(command)
        assert not answer.errors, f"{command}: {answer.errors}"
        return [dict(zip(answer.columns, row)) for row in answer.rows] if answer.of("T") else []

    def show(self, what, **where):
        """Rows of SHOW `what` whose columns have these values."""
        return [row for row in self.admin(f"SHOW {what}") if all(row[k] == str(v) for k, v in where.items())]

    def pool(self, database="app", user="alice"):
        """The row of SHOW POOLS for this pool, numbers as numbers; zeros when the pool does not exist yet."""
        rows = self.show("POOLS", database=database, user=user)
        if not rows:
            return dict.fromkeys(("cl_active", "cl_waiting", "sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login", "maxwait"), 0)
        return {k: int(v) if v is not None and v.lstrip("-").isdigit() else v for k, v in rows[0].items()}

    def servers(self, **where):
        """Rows of SHOW SERVERS."""
        return self.show("SERVERS", **where)

    def log(self):
        """The log file's text."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def output(self):
        """Everything it said: log file and standard error."""
        return self.log() + (self.stderr_path.read_text(errors="replace") if self.stderr_path.exists() else "")

    def logged(self, pattern, timeout_s=10):
        """Waits until the log has a line that matches, and returns the match."""
        return eventually(lambda: re.search(pattern, self.log()), f"the log has /{pattern}/:\n{self.log()[-3000:]}", timeout_s)

    def signal(self, number):
        """Sends a signal."""
        self.process.send_signal(number)

    def reload(self):
        """Has the ini read again and waits until the console confirms it."""
        self.admin("RELOAD")

    def wait_exit(self, timeout_s=20):
        """Waits for the process to end by itself and returns its exit code."""
        self.expect_exit = True
        return self.process.wait(timeout=timeout_s)

    def resident_kib(self):
        """Its resident memory now."""
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[1])

    def limit(self, **limits):
        """Sets timeouts now that the pool has a server: a first client's login waits for one, and that time would count."""
        with self.raw() as client:
            assert client.value("select 1") == "1"
        for name, value in limits.items():
            self.admin(f"SET {name} = {value}")

    def open_files(self):
        """How many file descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def at_once(self, port):
        """A function that returns how many connections to a server's port certainly existed at one moment since its last call.

        Those that were there at both calls were there in between, all of them. What PostgreSQL shows is no such proof: a
        backend is still listed for a while after its connection was closed.
        """
        before = set()

        def look():
            nonlocal before
            now = self._connections_to(port)
            both, before = now & before, now
            return len(both)

        return look

    def _connections_to(self, port):
        own = set()
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                own.add(os.readlink(f"/proc/{self.pid}/fd/{name}"))
            except FileNotFoundError:
                continue  # closed meanwhile
        lines = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        sockets = (line.split() for line in lines)
        return {s[1] for s in sockets if s[2].endswith(f":{port:04X}") and s[3] == "01" and f"socket:[{s[9]}]" in own}

    def alive(self):
        """Whether it still runs and still answers a new client."""
        return self.process.poll() is None and bool(self.admin("SHOW VERSION"))

    def finish(self):
        """Stops it, removes its folder, and returns what was wrong with it (a list of texts)."""
        faults = []
        if self.process is not None:
            died = self.process.poll()
            if died is not None and not self.expect_exit:
                faults.append(f"the pooler ended by itself with code {died}")
            if died is None:
                self.signal(signal.SIGQUIT if kind() == "pgweir" else signal.SIGTERM)
                try:
                    code = self.process.wait(timeout=10)
                    if code < 0 or (code != 0 and kind() == "pgweir"):
                        faults.append(f"the pooler ended with code {code} when it was told to stop")
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
                    faults.append("the pooler did not stop within 10 s and had to be killed")
        crash = CRASH.search(self.output())
        if crash and not self.expect_exit:
            faults.append(f"the pooler's log shows a crash: {crash[0]}")
        if faults:
            faults.append(f"last of its log:\n{self.output()[-4000:]}")
        shutil.rmtree(self.folder, ignore_errors=True)
        return faults

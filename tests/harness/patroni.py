"""Clusters that Patroni runs, and the etcd it keeps their state in. Real ones: the Python package and Debian's etcd."""

import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest
import yaml

from .cluster import BESIDE, DISTRIBUTION, Cluster, program
from .machine import accepts, as_service, eventually, free_port, give, reachable, run_as_service, scratch_folder

API_PASSWORD = "pw-of-the-api"
"""What Patroni wants of a client that has its user `switcher`, before it switches over."""


def needed():
    """Skips the test where Patroni or etcd cannot be had."""
    if not shutil.which("etcd") or not shutil.which("etcdctl"):
        pytest.skip("etcd is not installed (tests/setup.sh installs it)")


class Etcd:
    """One etcd server on loopback. With `tls` (certificates) and `wants_certificate` clients need one; `secure()` gives it users."""

    def __init__(self, tls=None, wants_certificate=False):
        needed()
        self.wants_certificate = wants_certificate
        self.folder = scratch_folder("etcd")
        self.port, self.peer_port = free_port(), free_port()
        self.tls = tls
        self.process = None
        self.login = []
        self.start()

    @property
    def url(self):
        """As `etcd_endpoints` has it."""
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"

    def start(self):
        """Starts it and waits until it serves."""
        peers = f"http://127.0.0.1:{self.peer_port}"
        words = ["--data-dir", self.folder / "data", "--listen-client-urls", self.url.replace("localhost", "127.0.0.1"), "--advertise-client-urls", self.url]
        words += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
        if self.tls:
            words += ["--cert-file", self.tls.crt("server"), "--key-file", self.tls.key("server")]
        if self.wants_certificate:
            words += ["--client-cert-auth", "--trusted-ca-file", self.tls.crt("ca")]
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                as_service("etcd", *map(str, words), signal_name="KILL"), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/"
            )
        eventually(lambda: accepts(self.port) and self.ctl("endpoint", "health", check=False).returncode == 0, "etcd serves", timeout_s=20)

    def ctl(self, *words, check=True):
        """Runs etcdctl."""
        command = ["etcdctl", "--endpoints", self.url, *self.login]
        if self.tls:
            command += ["--cacert", self.tls.crt("ca"), "--cert", self.tls.crt("alice"), "--key", self.tls.key("alice")]
        done = subprocess.run([*map(str, command), *words], capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
        assert not check or done.returncode == 0, done.stderr
        return done

    def secure(self, password):
        """Gives it users: `root`, with this password, and `reader`, with the same, which may read Patroni's keys."""
        self.ctl("user", "add", f"root:{password}")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("role", "add", "reads")
        self.ctl("role", "grant-permission", "--prefix=true", "reads", "read", "/service/")
        self.ctl("user", "add", f"reader:{password}")
        self.ctl("user", "grant-role", "reader", "reads")
        self.ctl("auth", "enable")
        self.login = ["--user", f"root:{password}"]

    def get(self, key):
        """The value of a key, or an empty text."""
        return self.ctl("get", "--print-value-only", key).stdout.strip()

    def stop(self, how=signal.SIGTERM):
        """Ends it."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=30)

    def freeze(self, frozen=True):
        """It answers nothing any more, or again."""
        self.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def discard(self):
        """Ends it and removes what it wrote."""
        self.freeze(False)
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class Member:
    """A PostgreSQL server with its agent. Nothing but the agent starts or stops the server."""

    def __init__(self, patroni, name, template):
        self.name, self.folder = name, scratch_folder("patroni")
        self.port, self.api_port = free_port(), free_port()
        self.data, self.log_path = self.folder / "data", self.folder / "patroni.log"
        shutil.copytree(template, self.data, symlinks=True)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.process = None
        conf = self.folder / "patroni.yml"
        conf.write_text(yaml.safe_dump(patroni.configuration(self)))
        give(self.folder)
        self.data.chmod(0o700)
        self.command = [*patroni.program, str(conf)]

    @property
    def api(self):
        """The address of its agent."""
        return f"http://127.0.0.1:{self.api_port}"

    def start(self):
        """Starts the agent, which starts the server."""
        with open(self.log_path, "ab") as log:
            # The agent's end is to end the server, too.
            self.process = subprocess.Popen(
                as_service(*self.command, signal_name="TERM"), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/"
            )

    def ask(self, path):
        """Status and JSON of a page of its agent; (0, None) if it does not answer."""
        try:
            with urllib.request.urlopen(self.api + path, timeout=2) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, None
        except (OSError, ValueError):
            return 0, None

    def leads(self):
        """Its agent says that its node is the primary."""
        return self.ask("/primary")[0] == 200

    def is_synchronous(self):
        """Its agent knows that COMMIT waits for it: only such a standby may be promoted."""
        return self.ask("/synchronous")[0] == 200

    def follows(self):
        """It is a standby that streams."""
        status, said = self.ask("/replica")
        return status == 200 and said.get("replication_state") == "streaming"

    def sql(self, statement, database="app"):
        """Runs one statement as superuser, past the pooler, and returns its rows."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, dbname=database, user="postgres", autocommit=True, application_name=BESIDE, connect_timeout=10
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def postmaster(self):
        """The server's process id, or None."""
        try:
            return int((self.data / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def signal(self, how):
        """Sends the agent a signal."""
        self.process.send_signal(how)

    def discard(self):
        """Ends the agent and the server, at once, and removes what they wrote."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=30)
        pid = self.postmaster()
        if pid:
            subprocess.run(as_service("kill", "-QUIT", str(pid)), stderr=subprocess.DEVNULL)
            eventually(lambda: not accepts(self.port), "the server has ended", timeout_s=20)
        shutil.rmtree(self.folder, ignore_errors=True)


class Patroni:
    """A cluster with the scope `main`, run by Patroni: `members` m1, m2, ..., of which m1 leads at the beginning.

    `parameters` are further ones of PostgreSQL, `dcs` further words of Patroni's configuration for the whole cluster.
    """

    def __init__(self, certificates, etcd, count=2, parameters=None, dcs=None):
        needed()
        self.etcd, self.parameters, self.dcs = etcd, parameters or {}, dcs or {}
        self.folder = scratch_folder("patronictl")
        packages = reachable(Path(yaml.__file__).parent.parent, self.folder)
        self.program = ["env", f"PYTHONPATH={packages}", "python3", "-m", "patroni"]
        # All begin as the same stopped copy, as a base backup would be.
        seed = Cluster(DISTRIBUTION, certificates)
        seed.sql("create role checker login password 'pw-of-checker' in role pg_read_all_stats")
        seed.sql("create table changes (who text, n int)")
        seed.sql("grant all on changes to public")
        seed.sql("alter role u_repl superuser")
        seed.sql("create database bench owner alice")
        bench = ["pgbench", "-i", "-q", "-s", "5", "-h", "127.0.0.1", "-p", str(seed.port), "-U", "alice", "bench"]
        subprocess.run(bench, check=True, capture_output=True)
        seed.sql("checkpoint")
        seed.stop()
        with open(seed.data / "postgresql.conf", "a") as conf:
            conf.write("wal_log_hints = on\nmax_connections = 200\nfull_page_writes = on\n")
        self.members = [Member(self, f"m{n}", seed.data) for n in range(1, count + 1)]
        seed.discard()
        self.members[0].start()
        eventually(self.members[0].leads, "the first node leads", timeout_s=60)
        for member in self.members[1:]:
            member.start()
        eventually(lambda: all(member.follows() for member in self.members[1:]), "the others follow", timeout_s=60)

    def configuration(self, member):
        """patroni.yml of a member."""
        bin_dir = str(program(DISTRIBUTION, "postgres").parent)
        etcd = {"hosts": [f"localhost:{self.etcd.port}"], "protocol": "https" if self.etcd.tls else "http"}
        if self.etcd.tls:
            tls = self.etcd.tls
            etcd |= {"cacert": str(tls.crt("ca")), "cert": str(tls.crt("alice")), "key": str(tls.key("alice"))}
        if self.etcd.login:
            etcd["username"], etcd["password"] = self.etcd.login[1].split(":")
        return {
            "scope": "main",
            "name": member.name,
            "restapi": {
                "listen": f"127.0.0.1:{member.api_port}",
                "connect_address": f"127.0.0.1:{member.api_port}",
                "authentication": {"username": "switcher", "password": API_PASSWORD},
            },
            "etcd3": etcd,
            "bootstrap": {
                "dcs": {
                    "ttl": 20, "loop_wait": 1, "retry_timeout": 3, "maximum_lag_on_failover": 16777216, "primary_start_timeout": 0,
                    "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": {"max_connections": 200, "max_prepared_transactions": 10, "wal_log_hints": "on", **self.parameters}},
                    **self.dcs,
                }
            },
            "postgresql": {
                "listen": f"127.0.0.1:{member.port}",
                "connect_address": f"127.0.0.1:{member.port}",
                "data_dir": str(member.data),
                "bin_dir": bin_dir,
                "pgpass": str(member.folder / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": ""},
                    "replication": {"username": "u_repl", "password": "pw-of-u_repl"},
                    "rewind": {"username": "u_repl", "password": "pw-of-u_repl"},
                },
                "parameters": {"unix_socket_directories": str(member.folder), "wal_keep_size": "256MB", "hot_standby": "on"},
            },
        }  # fmt: skip

    @property
    def leader(self):
        """The member that leads, or None."""
        return next((member for member in self.members if member.leads()), None)

    @property
    def others(self):
        """The members that do not lead."""
        leader = self.leader
        return [member for member in self.members if member is not leader]

    def settled(self):
        """One leads, the others stream from it. Returns the leader."""
        leader = self.leader
        return leader if leader and all(member.follows() for member in self.members if member is not leader) else None

    def ctl(self, *words):
        """Runs patronictl to its end."""
        conf = self.members[0].folder / "patroni.yml"
        return run_as_service(*self.program[:3], "-c", "from patroni.ctl import ctl; ctl()", "-c", conf, *words)

    def switch_over(self, to):
        """`patronictl switchover`, without questions."""
        return self.ctl("switchover", "main", "--leader", self.leader.name, "--candidate", to.name, "--force")

    def discard(self):
        """Ends everything and removes what it wrote."""
        for member in self.members:
            member.discard()
        shutil.rmtree(self.folder, ignore_errors=True)

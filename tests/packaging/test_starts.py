"""The starts of PgBouncer's images, taken in pgweir's image as each operator or article writes them: pgbench, the health check, the end."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import psycopg
import pytest
import yaml
from harness.cluster import DISTRIBUTION, PASSWORDS, Cluster
from harness.link import Link
from harness.machine import REPOSITORY, dies_with_us, eventually, free_port
from harness.pooler import kind
from test_image import image, one  # noqa: F401  (a fixture)
from test_packages import debian, pgbench, run  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.skipif(kind() == "pgbouncer", reason="the image is pgweir's"), pytest.mark.timeout(600)]

#: What PgBouncer 1.25 writes ahead of each line; operators' log readers split it so: time, [pid], LEVEL, text.
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \[\d+\] [A-Z]+ .+")


class Pod:
    """A container of the image: its command, user, variables and mounted files, and the process once it was started."""

    def __init__(self, machine):
        self.machine = machine
        self.port = free_port()
        self.user = one("USER")
        #: The folders that can be written if the root file system is read-only; None: it is not.
        self.writable = None
        self.process = None
        self.log = machine.path("/container.log")
        self.variables = {}

    def mount(self, name, text, mode=0o644):
        """A file that root owns and the container's user can read."""
        path = self.machine.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def words(self, *command):
        """The command line that runs a command as the container's user in its environment."""
        pairs = (f"{key}={value}" for key, value in self.variables.items())
        return [*dies_with_us("KILL"), *self.machine.command("env", "-i", "PATH=/usr/bin:/bin", *pairs, *command, user=self.user, writable=self.writable)]

    def start(self, *command, **variables):
        """Starts the container; without a command, by that of the image. Returns when its health check succeeds."""
        self.variables = dict(pair.split("=", 1) for pair in one("ENV").split()) | variables
        if not command:
            # Tests run side by side on one machine: the dashboard has a port of its own.
            self.variables.setdefault("PGWEIR_HTTP_LISTEN", f"127.0.0.1:{free_port()}")
        command = command or (*json.loads(one("ENTRYPOINT")), *json.loads(one("CMD")))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.words(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def healthy():
            assert self.process.poll() is None, self.said()
            return subprocess.run(self.words("pgweir-health", str(self.port)), capture_output=True).returncode == 0

        eventually(healthy, "it is healthy")
        return self

    def said(self):
        """The log up to now."""
        return self.log.read_text()

    def psql(self, database, user, text, password, host="127.0.0.1"):
        """What psql answers."""
        command = ["psql", "-X", "-At", "-h", host, "-p", str(self.port), "-U", user, "-d", database, "-c", text]
        return run(*command, env=os.environ | {"PGPASSWORD": password}).strip()

    def connect(self, database="bench", user="alice", **options):
        """A connection of psycopg; `sslmode` and what else is given says how."""
        return psycopg.connect(host="127.0.0.1", port=self.port, dbname=database, user=user, password=PASSWORDS[user], **options)

    def serves(self, secret=PASSWORDS["alice"]):
        """pgbench as alice, with no transaction that fails; no password is in the log."""
        pgbench(self.port, "-c", "4", "-t", "20")
        assert secret not in self.said()

    def pid(self):
        """The pooler's own process: the pod's command replaces its shells one after another."""
        return self.process.pid


@pytest.fixture
def pod(image, bench):  # noqa: F811
    """A container that was not started yet, in front of a PostgreSQL with pgbench's tables."""
    box = Pod(image)
    yield box
    if box.process and box.process.poll() is None:
        box.process.kill()
        box.process.wait()


def test_edoburu(pod, pg):
    """DB_*, AUTH_QUERY as DB_USER, passwords for the console, a mounted list of users, a pool's size."""
    pod.mount("/etc/pgbouncer/userlist.txt", '"ops" "hunter3"\n')
    pod.start(
        LISTEN_PORT=pod.port, LISTEN_ADDR="127.0.0.1", DB_HOST="127.0.0.1", DB_PORT=pg.port, DB_USER="postgres", DB_PASSWORD="", DB_NAME="bench",
        AUTH_TYPE="scram-sha-256", AUTH_QUERY="SELECT usename, passwd FROM pg_shadow WHERE usename=$1", ADMIN_USERS="ops", STATS_USERS="watch",
        STATS_PASSWORDS="hunter4", POOL_SIZE="3", TIMEZONE="UTC", POOL_MODE="transaction",
    )  # fmt: skip
    pod.serves()
    # Health checks of compose files and charts run in the container.
    run(*pod.words("pg_isready", "-h", "127.0.0.1", "-p", pod.port, "-d", "bench"))
    asked = pod.words("env", f"PGPASSWORD={PASSWORDS['alice']}", "psql", "-Atqh", "127.0.0.1", "-p", pod.port, "-U", "alice", "bench", "-c", "select 7")
    assert run(*asked) == "7\n"
    assert "|3|" in pod.psql("pgbouncer", "ops", "SHOW DATABASES", "hunter3")
    assert pod.psql("pgbouncer", "watch", "SHOW VERSION", "hunter4").startswith("PgBouncer ")
    assert pod.psql("bench", "alice", "show timezone", PASSWORDS["alice"]) == "UTC"


def test_bitnami_by_variables(pod, pg):
    """POSTGRESQL_*, PGBOUNCER_* and PGBOUNCER_DSN_0, as user 1001 of group 0."""
    pod.user = "1001:0"
    pod.start(
        POSTGRESQL_HOST="127.0.0.1", POSTGRESQL_PORT=pg.port, POSTGRESQL_USERNAME="alice", POSTGRESQL_PASSWORD=PASSWORDS["alice"],
        POSTGRESQL_DATABASE="app", PGBOUNCER_DATABASE="app", PGBOUNCER_PORT=pod.port, PGBOUNCER_BIND_ADDRESS="127.0.0.1",
        PGBOUNCER_POOL_MODE="transaction", PGBOUNCER_AUTH_TYPE="scram-sha-256",
        PGBOUNCER_DSN_0=f"bench=host=127.0.0.1 port={pg.port} dbname=bench",
    )  # fmt: skip
    pod.serves()
    assert pod.psql("app", "alice", "select current_database()", PASSWORDS["alice"]) == "app"


def test_bitnami_by_mounted_files(pod, pg):
    """The file and the list of users where the image has them, with variables beside them and a script that is not run."""
    pod.user = "1001:0"
    folder = "/bitnami/pgbouncer/conf"
    pod.mount(f"{folder}/userlist.txt", f'"alice" "{PASSWORDS["alice"]}"\n')
    pod.mount(
        f"{folder}/pgbouncer.ini",
        f"[databases]\nbench = host=127.0.0.1 port={pg.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {pod.port}\nauth_type = md5\n"
        f"auth_file = {folder}/userlist.txt\nunix_socket_dir =\npool_mode = transaction\n",
    )
    pod.mount("/docker-entrypoint-initdb.d/init.sh", "#!/bin/sh\nexit 1\n", 0o755)
    pod.start(POSTGRESQL_HOST="elsewhere")
    pod.serves()
    assert f"configuration file {folder}/pgbouncer.ini" in pod.said()
    assert "/docker-entrypoint-initdb.d has files, and pgweir runs no scripts" in pod.said()
    assert "these variables have no effect: POSTGRESQL_HOST" in pod.said()


def lookup(pg, schema, function, user):
    """The function that an operator makes in the database: it tells secrets to the pooler's user alone."""
    with pg.connect("bench", "postgres") as server:
        server.execute(f"create schema if not exists {schema}")
        server.execute(
            f"create or replace function {schema}.{function}(in i_username text, out uname text, out phash text) returns record language sql "
            "security definer set search_path = pg_catalog as $$ select usename::text, passwd from pg_shadow where usename = i_username $$"
        )
        server.execute(f"grant usage on schema {schema} to {user}")


def zalando(pod, pg, **variables):
    """Starts the pooler as the operator does; addresses are those of this machine."""
    lookup(pg, "pooler", "user_lookup", "bob")
    pod.user, pod.writable = "100:101", ["/tmp"]
    pod.start(
        CONNECTION_POOLER_PORT=pod.port, CONNECTION_POOLER_MODE="transaction", CONNECTION_POOLER_DEFAULT_SIZE="4", CONNECTION_POOLER_MIN_SIZE="1",
        CONNECTION_POOLER_RESERVE_SIZE="2", CONNECTION_POOLER_MAX_CLIENT_CONN="50", CONNECTION_POOLER_MAX_DB_CONN="5", PGHOST="127.0.0.1",
        PGPORT=pg.port, PGUSER="bob", PGPASSWORD=PASSWORDS["bob"], PGSCHEMA="pooler", PGWEIR_LISTEN_ADDR="127.0.0.1",
        **variables,
    )  # fmt: skip


def test_zalandos_operator(pod, pg):
    """No file, user 100:101, which the image does not know, a root file system that is read-only; TLS with a certificate of its own."""
    zalando(pod, pg)
    pod.serves(PASSWORDS["bob"])
    # As in the operator's own image, clients must use TLS.
    with pod.connect(sslmode="require") as client:
        assert client.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match="SSL required"):
        pod.connect(sslmode="disable")
    assert "no certificate is mounted: a self-signed one was made" in pod.said()
    made = pod.machine.path("/tmp/pgweir-100")
    assert {path.name for path in pod.machine.path("/tmp").iterdir()} == {"pgweir-100"}
    assert (made / "client.key").stat().st_mode & 0o777 == 0o600
    run("openssl", "x509", "-noout", "-checkend", "31536000", "-in", made / "client.crt")


def test_zalandos_operator_with_a_mounted_certificate(pod, pg, certificates):
    """/tls, where the operator mounts the Secret that it was told of: clients can verify it, and none is made."""
    for name, kind in (("tls.crt", "crt"), ("tls.key", "key")):
        pod.mount(f"/tls/{name}", Path(getattr(certificates, kind)("pooler")).read_text())
    pod.mount("/tls/ca.crt", Path(certificates.crt("ca")).read_text())
    zalando(
        pod, pg, CONNECTION_POOLER_CLIENT_TLS_CRT="/tls/tls.crt", CONNECTION_POOLER_CLIENT_TLS_KEY="/tls/tls.key",
        CONNECTION_POOLER_CLIENT_CA_FILE="/tls/ca.crt",
    )  # fmt: skip
    pod.serves(PASSWORDS["bob"])
    with pod.connect(sslmode="verify-full", sslrootcert=certificates.crt("ca")) as client:
        assert client.pgconn.ssl_in_use
    assert not pod.machine.path("/tmp/pgweir-100/client.crt").exists()


#: What CloudNativePG's rules let in: the pooler's own user on the console by peer, all others by a password.
POOLER_HBA = "local pgbouncer pgbouncer peer\nhost all all 0.0.0.0/0 md5\nhost all all ::/0 md5\n"


def cloudnativepg(pod, pg):
    """The files of CloudNativePG, with the addresses of this machine, and the command with which it starts them."""
    lookup(pg, "public", "user_search", "bob")
    folder = scratch_of_cloudnativepg(pod)
    pod.mount(f"{folder}/users.txt", f'"bob" "{PASSWORDS["bob"]}"\n')
    pod.mount(
        f"{folder}/pgbouncer.ini",
        f"[databases]\n* = host=127.0.0.1 port={pg.port}\n\n[pgbouncer]\npool_mode = transaction\nauth_user = bob\nauth_dbname = bench\n"
        "auth_query = SELECT uname, phash FROM public.user_search($1)\n"
        f"auth_hba_file = {folder}/pg_hba.conf\nauth_type = hba\nauth_file = {folder}/users.txt\nadmin_users = pgbouncer\n"
        "ignore_startup_parameters = extra_float_digits,options\nlog_stats = 0\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {pod.port}\nunix_socket_dir = /controller/run\n",
    )
    return ("/usr/bin/pgbouncer", f"{folder}/pgbouncer.ini")


def scratch_of_cloudnativepg(pod):
    """Its user, its emptyDir with fsGroup, which alone can be written, and its rules. Returns the folder of its files."""
    pod.user, pod.writable = "998:996", ["/controller"]
    scratch = pod.machine.path("/controller/run")
    scratch.mkdir(parents=True)
    scratch.chmod(0o2777)
    pod.mount("/controller/configs/pg_hba.conf", POOLER_HBA)
    return "/controller/configs"


def console(pod, text):
    """A command on the console, as `kubectl exec` runs psql: the container's variables lead to its socket, and peer asks for no password."""
    where = [f"{name}={value}" for name, value in {"PGUSER": "pgbouncer", "PGDATABASE": "pgbouncer", "PGHOST": "/controller/run"}.items()]
    return run(*pod.words("env", *where, f"PGPORT={pod.port}", "psql", "-X", "-At", "-c", text))


def test_cloudnativepg(pod, pg):
    """Its file under its user, completed by a mounted conf.d: peer on the console, PAUSE and RESUME, the lines of the log."""
    command = cloudnativepg(pod, pg)
    pod.mount("/etc/pgweir/conf.d/10-pool.ini", "[pgweir]\ndefault_pool_size = 7\n")
    pod.start(*command)
    pod.serves()
    assert "default_pool_size|7|" in console(pod, "SHOW CONFIG")
    assert all(LINE.fullmatch(line) for line in pod.said().splitlines()), pod.said()
    console(pod, "PAUSE")
    assert "paused|yes" in console(pod, "SHOW STATE")
    console(pod, "RESUME")
    assert "paused|no" in console(pod, "SHOW STATE")
    pod.serves()


def test_cloudnativepg_ends_with_sigint(pod, pg):
    """SIGINT, with which it ends a pooler: the open transaction is committed, no new client comes in, the exit code is 0."""
    pod.start(*cloudnativepg(pod, pg))
    options = {"host": "127.0.0.1", "port": pod.port, "dbname": "bench", "user": "alice", "password": PASSWORDS["alice"], "sslmode": "disable"}
    with psycopg.connect(**options) as client:
        client.execute("create temp table kept (n int) on commit drop")
        os.kill(pod.pid(), signal.SIGINT)
        eventually(lambda: "got SIGINT, shutting down" in pod.said(), "it has heard the signal")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(**options)
        client.execute("insert into kept values (1)")
        client.commit()
    assert pod.process.wait(60) == 0, pod.said()


@pytest.fixture
def pair(certificates):
    """A primary and a standby as CloudNativePG sets them up, at one port of 127.0.0.1 and 127.0.0.2: all connections with TLS, the pooler's user by
    its certificate alone."""
    pooler, port = "cnpg_pooler_pgbouncer", free_port()
    rules = f"local all all trust\nhostssl replication all all trust\nhostssl all {pooler} all cert\nhostssl all all all scram-sha-256\n"
    primary = Cluster(DISTRIBUTION, certificates)
    primary.sql(f"create role {pooler} login", database="postgres")
    primary.sql(
        "create function public.user_search(uname text) returns table (usename name, passwd text) language sql security definer as "
        "'select usename, passwd from pg_catalog.pg_shadow where usename = $1'", database="postgres",
    )  # fmt: skip
    primary.sql("create database bench owner alice", database="postgres")
    run("pgbench", "-i", "-q", "-s", "1", "-h", primary.folder, "-p", primary.port, "-U", "alice", "bench")
    both = [primary, Cluster(DISTRIBUTION, certificates, follows=primary)]
    for server in both:
        (server.data / "pg_hba.conf").write_text(rules)
        server.sql("select pg_reload_conf()", database="postgres")
    relays = [Link(server.port, f"127.0.0.{number}", port) for number, server in enumerate(both, 1)]
    yield port, *both
    for one in (*relays, *reversed(both)):
        one.close() if isinstance(one, Link) else one.discard()


def test_cloudnativepg_with_standbys(pod, pair, certificates):
    """Its generated file as it is, for a user with a certificate; the mounted conf.d makes a cluster of a headless Service's addresses, and reads go
    to the standby."""
    port, primary, standby = pair
    folder, web = scratch_of_cloudnativepg(pod), free_port()
    # The Secrets that it mounts, by their names in the file.
    certificates.leaf("cnpg_pooler_pgbouncer", "ca", "cnpg_pooler_pgbouncer", "DNS:cnpg_pooler_pgbouncer")
    secrets = {"authUser/tls": "cnpg_pooler_pgbouncer", "client-tls/tls": "pooler", "server-tls/ca": "ca", "client-ca/ca": "ca"}
    for name, leaf in secrets.items():
        pod.mount(f"{folder}/{name}.crt", Path(certificates.crt(leaf)).read_text())
        if name.endswith("/tls"):
            pod.mount(f"{folder}/{name}.key", Path(certificates.key(leaf)).read_text())
    ini = pod.mount(
        f"{folder}/pgbouncer.ini",
        "\n[databases]\n* = host=shop-rw\n\n[pgbouncer]\npool_mode = transaction\nauth_user = cnpg_pooler_pgbouncer\n"
        "auth_query = SELECT usename, passwd FROM public.user_search($1)\nauth_dbname = postgres\n\n"
        f"admin_users = pgbouncer\nauth_hba_file = {folder}/pg_hba.conf\nauth_type = hba\n"
        f"client_tls_ca_file = {folder}/client-ca/ca.crt\nclient_tls_cert_file = {folder}/client-tls/tls.crt\n"
        f"client_tls_key_file = {folder}/client-tls/tls.key\nclient_tls_sslmode = prefer\n"
        "ignore_startup_parameters = extra_float_digits,options\nlisten_addr = *\nlisten_port = 5432\nlog_stats = 0\n"
        f"server_tls_ca_file = {folder}/server-tls/ca.crt\nserver_tls_cert_file = {folder}/authUser/tls.crt\n"
        f"server_tls_key_file = {folder}/authUser/tls.key\nserver_tls_sslmode = verify-ca\nunix_socket_dir = /controller/run\n",
    )
    written = ini.read_text()
    # The ConfigMap of deploy/kubernetes/cloudnativepg-pooler.yaml; ports are the test's, and its clients come to 127.0.0.1.
    (overlay,) = (one["data"] for one in manifests("cloudnativepg-pooler.yaml") if one["kind"] == "ConfigMap")
    for name, text in overlay.items():
        text = text.replace("http_listen = 0.0.0.0:9128", f"http_listen = 127.0.0.1:{web}").replace("host=shop-nodes", f"host=shop-nodes port={port}")
        pod.mount(f"/etc/pgweir/conf.d/{name}", text)
    pod.mount("/etc/pgweir/conf.d/90-test.ini", f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {pod.port}\n")
    pod.mount("/etc/hosts", "127.0.0.1 localhost\n127.0.0.1 shop-nodes\n127.0.0.2 shop-nodes\n")
    pod.start("/usr/bin/pgbouncer", f"{folder}/pgbouncer.ini")

    def states():
        rows = [line.split("|") for line in console(pod, "SHOW NODES").splitlines()]
        return {(row[1], row[5]) for row in rows}

    eventually(lambda: {("127.0.0.1", "primary"), ("127.0.0.2", "standby")} <= states(), "both nodes are known")
    pod.serves()
    with pod.connect(autocommit=True, sslmode="verify-full", sslrootcert=certificates.crt("ca")) as client:
        client.execute("create table noted (n int)")
        client.execute("insert into noted values (7)")

        def read():
            assert client.execute("select count(*) from noted").fetchone() == (1,)
            return standby.backends("bench", "alice")

        eventually(read, "a read goes to the standby")
    for server in (primary, standby):
        by_certificate = "select distinct ssl, client_dn from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'cnpg_pooler_pgbouncer'"
        assert server.sql(by_certificate, database="postgres") == [(True, "/CN=cnpg_pooler_pgbouncer")]
    with urllib.request.urlopen(f"http://127.0.0.1:{web}/readyz") as answer:
        assert answer.status == 200
    assert ini.read_text() == written
    assert all(LINE.fullmatch(line) for line in pod.said().splitlines()), pod.said()


def manifests(name):
    """The documents of a manifest in deploy/kubernetes."""
    return list(yaml.safe_load_all((REPOSITORY / "deploy" / "kubernetes" / name).read_text()))


def test_crunchys_operator(pod, pg, certificates):
    """Its file, which includes one that is empty, and its read-only file system; the command of the container beside it reloads the process by its
    name."""
    lookup(pg, "pgbouncer", "get_auth", "bob")
    # The command signals all processes of this name that its user may signal: no other test's.
    pod.user, pod.writable = f"{30000 + os.getpid() % 10000}:2", []
    folder = "/etc/pgbouncer"
    pod.mount(f"{folder}/pgbouncer.ini", "")
    pod.mount(f"{folder}/~postgres-operator/users.txt", f'"bob" "{PASSWORDS["bob"]}"\n')
    [patch] = manifests("patches/crunchy.yaml")
    settings = patch["spec"]["proxy"]["pgBouncer"]["config"]["global"]
    assert settings["http_listen"] == "0.0.0.0:9127"
    web = free_port()
    lines = "".join(f"{name} = {value}\n" for name, value in {**settings, "http_listen": f"127.0.0.1:{web}"}.items())
    crt, key = certificates.crt, certificates.key
    secrets = {"frontend-ca.crt": crt("ca"), "frontend-tls.crt": crt("pooler"), "frontend-tls.key": key("pooler"), "backend-ca.crt": crt("ca")}
    for name, source in secrets.items():
        pod.mount(f"{folder}/~postgres-operator/{name}", Path(source).read_text())
    ini = (
        "# Generated by postgres-operator. DO NOT EDIT.\n# Your changes will not be saved.\n\n[pgbouncer]\n"
        f"%include {folder}/pgbouncer.ini\n\n[pgbouncer]\nauth_file = {folder}/~postgres-operator/users.txt\n"
        "auth_query = SELECT uname, phash from pgbouncer.get_auth($1)\nauth_user = bob\n"
        f"client_tls_ca_file = {folder}/~postgres-operator/frontend-ca.crt\nclient_tls_cert_file = {folder}/~postgres-operator/frontend-tls.crt\n"
        f"client_tls_key_file = {folder}/~postgres-operator/frontend-tls.key\nclient_tls_sslmode = require\n"
        f"conffile = {folder}/~postgres-operator.ini\nignore_startup_parameters = extra_float_digits\nlisten_addr = *\nlisten_port = {pod.port}\n"
        f"server_tls_ca_file = {folder}/~postgres-operator/backend-ca.crt\nserver_tls_sslmode = verify-full\nunix_socket_dir =\n{lines}\n"
        f"[databases]\n* = host=localhost port={pg.port}\n"
    )
    pod.mount("/etc/hosts", "127.0.0.1 localhost\n")
    path = pod.mount(f"{folder}/~postgres-operator.ini", ini)
    pod.start("pgbouncer", f"{folder}/~postgres-operator.ini")
    pod.serves()
    with urllib.request.urlopen(f"http://127.0.0.1:{web}/healthz") as answer:
        assert answer.status == 200

    def served():
        try:
            with pod.connect("named") as client:
                return client.execute("select current_database()").fetchone() == ("bench",)
        except psycopg.OperationalError:
            return False

    assert not served(), "PostgreSQL has no such database"
    # The operator changes a file, and the container beside the pooler runs this.
    path.write_text(ini + f"named = host=localhost port={pg.port} dbname=bench\n")
    run(*pod.words("bash", "-ceu", "pkill -HUP --exact pgbouncer"))
    eventually(lambda: "got SIGHUP" in pod.said(), "it reads its file again")
    eventually(served, "the new line counts")


def test_the_name_of_the_process_stays_after_an_online_restart(pod, pg):
    """`pkill --exact pgbouncer` finds the process that was started by this name, and the one that takes over from it."""
    command = cloudnativepg(pod, pg)
    pod.start(*command)

    def name(pid):
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()

    assert name(pod.pid()) == "pgbouncer"
    old = pod.process
    pod.start(command[0], "-R", command[1])
    old.wait(60)
    assert name(pod.pid()) == "pgbouncer"
    pod.serves()


#: The services of widely read articles, image name apart, each with PostgreSQL under the name that is replaced here.
COMPOSE = {
    "url": {
        "DATABASE_URL": "postgres://alice:{secret}@{host}:{port}/bench", "POOL_MODE": "transaction", "MAX_CLIENT_CONN": "200",
        "DEFAULT_POOL_SIZE": "10",
    },
    "parts": {
        "DB_HOST": "{host}", "DB_PORT": "{port}", "DB_USER": "alice", "DB_PASSWORD": "{secret}", "DB_NAME": "bench", "AUTH_TYPE": "scram-sha-256",
    },
    "pools": {
        "DB_HOST": "{host}", "DB_PORT": "{port}", "DB_USER": "alice", "DB_PASSWORD": "{secret}", "POOL_MODE": "transaction", "ADMIN_USERS": "alice",
        "MAX_CLIENT_CONN": "1000", "DEFAULT_POOL_SIZE": "20", "MIN_POOL_SIZE": "2", "RESERVE_POOL_SIZE": "5", "SERVER_RESET_QUERY": "DISCARD ALL",
        "IGNORE_STARTUP_PARAMETERS": "extra_float_digits",
    },
    "bitnami": {
        "POSTGRESQL_HOST": "{host}", "POSTGRESQL_PORT": "{port}", "POSTGRESQL_USERNAME": "alice", "POSTGRESQL_PASSWORD": "{secret}",
        "POSTGRESQL_DATABASE": "bench", "PGBOUNCER_DATABASE": "bench", "PGBOUNCER_POOL_MODE": "transaction", "PGBOUNCER_MAX_CLIENT_CONN": "200",
    },
    "own": {"DATABASE_URL": "postgres://alice:{secret}@{host}:{port}/bench", "PGWEIR_POOL_MODE": "transaction", "PGWEIR_MULTIPLEX_DEPTH": "2"},
}  # fmt: skip


@pytest.mark.parametrize("article", COMPOSE)
def test_the_environment_of_a_compose_file(pod, pg, article):
    """The variables as they stand; only addresses and ports are those of the test."""
    values = {"host": "127.0.0.1", "port": pg.port, "secret": PASSWORDS["alice"]}
    variables = {name: text.format(**values) for name, text in COMPOSE[article].items()}
    pod.start(PGWEIR_LISTEN_PORT=pod.port, PGWEIR_LISTEN_ADDR="127.0.0.1", **variables)
    pod.serves()
    assert "WARNING" not in pod.said() or article == "own", pod.said()

"""`pgweir node`: a standby becomes a node of a cluster, a node is made again, a node is removed. With real copies, under load."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import psycopg
import pytest

from harness.cluster import DISTRIBUTION, HBA, PASSWORDS, program
from harness.link import Link
from harness.machine import CACHE, as_service, eventually, free_port, give, reachable, run_as_service, scratch_folder
from harness.pooler import binary, kind
from test_clusters import node_states, nodes  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such command")

ROLE = "u_repl"


def tools(major):
    """The directory of pg_basebackup and its like: the distribution's, or what tests/pg/tools.sh has brought."""
    folder = program(DISTRIBUTION, "postgres").parent if major == DISTRIBUTION else CACHE / "pg-tools" / major / "bin"
    if not (folder / "pg_basebackup").exists():
        pytest.skip(f"there is no pg_basebackup of PostgreSQL {major} (tests/pg/tools.sh installs it)")
    return folder


class Machine:
    """The machine that a node is to run on: a directory, a port, PostgreSQL's programs."""

    def __init__(self, major=DISTRIBUTION):
        self.folder = scratch_folder("node")
        self.data = self.folder / "data"
        self.port = free_port()
        self.bindir = reachable(tools(major).parent, self.folder) / "bin"
        self.program = reachable(binary(), self.folder)

    def words(self, verb, node, *more):
        """The command line. The servers listen on loopback, and have their sockets in the machine's directory."""
        own = []
        if verb != "remove":
            own = ["--data", self.data, "--bindir", self.bindir, "--set=listen_addresses=127.0.0.1"]
            own += [f"--set=unix_socket_directories={self.folder}", "--checkpoint=fast"]
        return [str(word) for word in [self.program, "node", verb, f"main.{node}", "--user", ROLE, *own, *more]]

    def begin(self, verb, node, *more, **options):
        """Starts the command."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": "/"}
        return subprocess.Popen(as_service(*self.words(verb, node, *more)), **pipes, **options)

    def run(self, verb, node, *more, code=0, patience_s=600, **options):
        """Runs the command; gives what it said."""
        process = self.begin(verb, node, *more, **options)
        out, err = process.communicate(timeout=patience_s)
        assert process.returncode == code, f"{verb}: {process.returncode}\n{out}{err}"
        return out + err

    def sql(self, statement):
        """Runs a statement on the server here."""
        with psycopg.connect(host=str(self.folder), port=self.port, user="postgres", dbname="app", autocommit=True) as session:
            return session.execute(statement).fetchall()

    def stop(self):
        """Stops the server, if it runs."""
        if (self.data / "postmaster.pid").exists():
            with contextlib.suppress(RuntimeError):
                run_as_service(self.bindir / "pg_ctl", "stop", "-D", self.data, "-m", "immediate", "-w")

    def discard(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def machines():
    """A function that makes machines."""
    made = []

    def make(*words):
        made.append(Machine(*words))
        return made[-1]

    yield make
    for machine in made:
        machine.discard()


@pytest.fixture
def link():
    """A function that makes links to a port."""
    made = []

    def make(port):
        made.append(Link(port))
        return made[-1]

    yield make
    for one in made:
        one.close()


def prepare(primary, *standbys):
    """Gives the role of standbys its rights, and lets standbys be copied and rewound."""
    primary.sql(f"grant pg_monitor to {ROLE}")
    for server in (primary, *standbys):
        server.sql("alter system set full_page_writes = 'on'")
        server.sql("select pg_reload_conf()")
    return primary


def ini(cluster, **extra):
    """The sections of a cluster that also has these nodes, at these ports."""
    text = cluster.ini(nodes=[f"m{n}" for n in range(1, len(cluster.all) + 1)] + list(extra), warm_up_ms=200)
    lines = "".join(f"{name} = host=127.0.0.1 port={port}\n" for name, port in extra.items())
    return text.replace("[nodes]\n", "[nodes]\n" + lines)


def slots(server):
    return [name for (name,) in server.sql("select slot_name from pg_replication_slots where not temporary order by 1")]


@contextlib.contextmanager
def load(pooler):
    """While this lasts, two clients change and read rows through the pooler; none of them sees an error."""
    stop, faults, done = threading.Event(), [], []

    def client(number):
        try:
            with pooler.connect(autocommit=True) as session:
                while not stop.is_set():
                    session.execute("insert into changes values ('load', %s)", [number])
                    session.execute("select count(*) from kv")
                    done.append(1)
        except psycopg.Error as error:
            faults.append(error)

    threads = [threading.Thread(target=client, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: done or faults, "the load has begun")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults and len(done) > 1, faults


def test_a_node_is_added_under_load_and_removed(nodes, poolers, machines):  # noqa: F811
    """The new node streams, takes reads and was no client's business; passwords are seen nowhere. Each command can be repeated."""
    one, machine = nodes(1), machines()
    primary = prepare(one.primary)
    asks = f"host all {ROLE} 127.0.0.1/32 scram-sha-256\nhost replication {ROLE} 127.0.0.1/32 scram-sha-256\n"
    (primary.data / "pg_hba.conf").write_text(asks + HBA)
    primary.sql("select pg_reload_conf()")
    passwords = machine.folder / "pgpass"
    passwords.write_text(f"*:*:*:{ROLE}:{PASSWORDS[ROLE]}\n")
    passwords.chmod(0o600)
    give(passwords)
    pooler = poolers({"app": "cluster=main route=standby"}, ini_tail=ini(one, m2=machine.port))
    writer = poolers({"app": primary.at()})
    own = {"env": os.environ | {"PGPASSFILE": str(passwords), "PGPASSWORD": "not this one"}}
    with load(writer):
        said = machine.run("add", "m2", "-c", pooler.ini, **own)
    # A step that takes long says how far it is.
    steps = list(dict.fromkeys(line.split()[0] for line in said.splitlines()))
    assert steps == ["cluster", "checks", "slot", "copy", "settings", "start", "stream", "attach"]
    assert node_states(pooler)["m2"] == "standby" and int(pooler.show("NODES", node="m2")[0]["share"]) >= 1000
    assert slots(primary) == ["pgweir_m2"]
    with pooler.raw() as session:
        assert int(session.value("select inet_server_port()")) == machine.port
    seen = said + (machine.data / "postgresql.auto.conf").read_text()
    assert PASSWORDS[ROLE] not in seen and "passfile" in seen
    again = machine.run("add", "m2", "-c", pooler.ini, **own)
    assert "it goes on with it" in again and "runs already" in again

    assert "still streams" in machine.run("remove", "m2", "-c", pooler.ini, code=3, **own)
    assert pooler.show("NODES", node="m2")[0]["switch"] == "detached"
    machine.stop()
    assert "pgweir_m2 is dropped" in machine.run("remove", "m2", "-c", pooler.ini, **own)
    assert slots(primary) == []
    assert "is not there" in machine.run("remove", "m2", "-c", pooler.ini, **own)


@pytest.mark.parametrize("major", ["14", DISTRIBUTION, "16", "17", "18"])
def test_a_standby_is_the_source(nodes, poolers, machines, major):  # noqa: F811
    """A standby that streams is copied, and the new node streams from the primary. Without a pooler that runs, the file has the nodes."""
    machine = machines(major)
    two = nodes(2, major=major)
    prepare(two.primary)
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(two, m3=machine.port), start=False)
    # The standby's next restart point is then one with full pages.
    two.primary.sql("checkpoint")
    said = machine.run("add", "m3", "-c", pooler.ini)
    assert "the source is m2" in said and "ATTACH NODE main.m3" in said
    assert slots(two.primary) == ["pgweir_m3"] and slots(two.all[1]) == []
    two.primary.sql("insert into changes values ('new', 1)")
    eventually(lambda: machine.sql("select n from changes") == [(1,)], "the new node follows the primary")


class DebianMachine(Machine):
    """A machine on which Debian's tools have made the server: its configuration is in /etc/postgresql, outside of the data directory."""

    def __init__(self):
        super().__init__()
        # Debian's names are the machine's own; another test may make one at the same time.
        self.name = f"pgweir{self.port}"
        self.config = Path("/etc/postgresql") / DISTRIBUTION / self.name
        words = ["--user", "postgres", "--datadir", self.data, "--port", self.port, "--socketdir", self.folder, "--start-conf", "manual"]
        run("pg_createcluster", *words, DISTRIBUTION, self.name)
        (self.config / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
        with open(self.config / "postgresql.conf", "a") as settings:
            # The service account here is not in the group that may read Debian's key.
            settings.write("ssl = off\n")
        # What the page says is to be done before the copy.
        for path in self.data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def state(self):
        """Port, state and data directory, as Debian's list of servers has them."""
        lines = [line.split() for line in run("pg_lsclusters", "-h").splitlines()]
        return next((int(line[2]), line[3], line[5]) for line in lines if line[1] == self.name)

    def discard(self):
        run("pg_dropcluster", "--stop", DISTRIBUTION, self.name)
        super().discard()


def run(*words):
    """Runs a program as root; gives what it said."""
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def debian():
    """A machine with Debian's layout."""
    if os.geteuid() != 0 or not shutil.which("pg_createcluster"):
        pytest.skip("needs root and Debian's postgresql-common")
    machine = DebianMachine()
    yield machine
    machine.discard()


def test_debians_layout(nodes, poolers, debian):  # noqa: F811
    """The configuration in /etc/postgresql is used and not touched, and the server is started by Debian's tools."""
    one = nodes(1)
    primary = prepare(one.primary)
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(one, m2=debian.port))
    files = {path: path.read_bytes() for path in sorted(debian.config.rglob("*")) if path.is_file()}
    # Debian's own postgresql.conf does not have what the primary's says. That is seen before the server fails to start.
    said = debian.run("add", "m2", "-c", pooler.ini, code=3)
    assert "--set=max_prepared_transactions=10" in said, said
    assert debian.state()[1] == "down,recovery"
    said = debian.run("add", "m2", "-c", pooler.ini, "--set=max_prepared_transactions=10")
    assert "it goes on with it" in said and node_states(pooler)["m2"] == "standby", said
    assert debian.state() == (debian.port, "online,recovery", str(debian.data))
    shown = {name: debian.sql(f"show {name}")[0][0] for name in ("config_file", "hba_file", "data_directory")}
    assert shown == {
        "config_file": str(debian.config / "postgresql.conf"),
        "hba_file": str(debian.config / "pg_hba.conf"),
        "data_directory": str(debian.data),
    }
    assert slots(primary) == ["pgweir_m2"]
    assert "runs already" in debian.run("add", "m2", "-c", pooler.ini)
    # Debian's own tools start it again as the same standby.
    run("pg_ctlcluster", DISTRIBUTION, debian.name, "restart")
    primary.sql("insert into changes values ('after', 1)")
    eventually(lambda: debian.sql("select n from changes") == [(1,)], "it follows the primary")
    assert {path: path.read_bytes() for path in files} == files



def test_connections_with_tls(nodes, poolers, machines, certificates):  # noqa: F811
    """The primary takes no other ones. The copy and the standby check its certificate, and a certificate of a stranger is refused."""
    one, machine = nodes(1), machines()
    primary = prepare(one.primary)
    lines = [f"hostssl {what} {ROLE} 127.0.0.1/32 trust\nhostnossl {what} {ROLE} 127.0.0.1/32 reject\n" for what in ("all", "replication")]
    (primary.data / "pg_hba.conf").write_text("".join(lines) + HBA)
    primary.sql("select pg_reload_conf()")
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(one, m2=machine.port))

    def add(mode, ca, code=0):
        # libpq looks for a certificate of the client in the home directory.
        own = {"HOME": str(machine.folder), "PGSSLMODE": mode} | ({"PGSSLROOTCERT": str(certificates.crt(ca))} if ca else {})
        return machine.run("add", "m2", "-c", pooler.ini, code=code, env=os.environ | own)

    assert "pg_hba.conf rejects" in add("disable", None, code=2)
    assert "certificate" in add("verify-full", "stranger", code=2)
    assert slots(primary) == [] and not machine.data.exists()
    add("verify-full", "ca")
    assert primary.sql("select ssl from pg_stat_ssl join pg_stat_replication using (pid)") == [(True,)]
    settings = (machine.data / "postgresql.auto.conf").read_text()
    assert f"sslmode=verify-full sslrootcert={certificates.crt('ca')}" in settings, settings


def test_directories_of_tablespaces_and_of_the_wal(nodes, poolers, machines, link):  # noqa: F811
    """They are where the options say. A copy that breaks leaves them empty, and one that is whole is used again."""
    one, machine = nodes(1), machines()
    primary = prepare(one.primary)
    space = scratch_folder("space")
    try:
        primary.sql(f"create tablespace elsewhere location '{space}'")
        primary.sql("create table placed (n int) tablespace elsewhere")
        primary.sql("insert into placed select generate_series(1, 200000)")
        way = link(primary.port)
        text = ini(one, m2=machine.port).replace(f"m1 = host=127.0.0.1 port={primary.port}", f"m1 = host=127.0.0.1 port={way.port}")
        pooler = poolers({"app": "cluster=main"}, ini_tail=text)
        here, wal = machine.folder / "a space", machine.folder / "wal"
        words = ["-c", pooler.ini, f"--tablespace-mapping={space}={here}", f"--waldir={wal}"]
        way.limit = 3_000_000
        said = machine.run("add", "m2", *words, code=3)
        assert "pg_basebackup failed" in said and slots(primary) == []
        assert not [path for folder in (machine.data, here, wal) if folder.exists() for path in folder.iterdir()]
        way.mend()
        machine.run("add", "m2", *words)
        assert machine.sql("select count(*) from placed") == [(200000,)]
        assert machine.sql("select pg_tablespace_location(oid) from pg_tablespace where spcname = 'elsewhere'") == [(str(here),)]
        assert (machine.data / "pg_wal").resolve() == wal and list(wal.glob("0*"))
        assert node_states(pooler)["m2"] == "standby"
        assert "it goes on with it" in machine.run("add", "m2", *words)
    finally:
        machine.stop()
        primary.stop()
        shutil.rmtree(space)


def test_a_link_that_breaks(nodes, poolers, machines, link):  # noqa: F811
    """A copy whose connection is cut is undone, and so is one that is interrupted. One whose process is killed is removed by the next call, as soon as it has ended."""
    one, machine = nodes(1), machines()
    primary = prepare(one.primary)
    way = link(primary.port)
    text = ini(one, m2=machine.port).replace(f"m1 = host=127.0.0.1 port={primary.port}", f"m1 = host=127.0.0.1 port={way.port}")
    pooler = poolers({"app": "cluster=main"}, ini_tail=text)
    way.limit = 3_000_000
    said = machine.run("add", "m2", "-c", pooler.ini, code=3)
    assert way.reached.is_set() and "pg_basebackup failed" in said and "the half copy" in said and "is dropped" in said
    assert not machine.data.exists() and slots(primary) == []

    way.how = "hold"
    way.reached.clear()
    process = machine.begin("add", "m2", "-c", pooler.ini)
    assert way.reached.wait(120)
    process.terminate()
    said = "".join(process.communicate(timeout=120))
    assert process.returncode == 3 and "interrupted" in said and "is dropped" in said, said
    assert not machine.data.exists() and slots(primary) == []

    way.reached.clear()
    process = machine.begin("add", "m2", "-c", pooler.ini)
    assert way.reached.wait(120)
    eventually(lambda: (machine.data / "base").exists(), "the copy has begun")
    process.kill()
    process.communicate()
    assert "copies to" in machine.run("add", "m2", "-c", pooler.ini, code=1)
    way.mend()

    def added():
        process = machine.begin("add", "m2", "-c", pooler.ini)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0 or "copies to" in err, out + err
        return process.returncode == 0 and out

    assert "had half a copy" in eventually(added, "the killed copy has ended")
    assert node_states(pooler)["m2"] == "standby"


def test_a_write_that_fails(nodes, poolers, machines):  # noqa: F811
    """Files cannot grow, as on a full disk: the copy is undone, and an empty directory that was there stays."""
    one, machine = nodes(1), machines()
    primary = prepare(one.primary)
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(one, m2=machine.port))
    machine.data.mkdir(mode=0o700)
    give(machine.data)
    small = (1_000_000, 1_000_000)
    said = machine.run("add", "m2", "-c", pooler.ini, code=3, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, small))
    assert "pg_basebackup failed" in said and "undone" in said
    assert list(machine.data.iterdir()) == [] and slots(primary) == []


def test_what_is_refused_changes_nothing(nodes, poolers, machines):  # noqa: F811
    """A directory with files, a role without rights, a tablespace without a place, Patroni's agent, another version, a primary."""
    one, machine = nodes(1), machines()
    primary = one.primary
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(one, m2=machine.port))

    def refused(*words, verb="add", node="m2", code=1):
        return machine.run(verb, node, "-c", pooler.ini, *words, code=code)

    assert f'GRANT pg_monitor TO "{ROLE}"' in refused()
    prepare(primary)
    machine.data.mkdir()
    (machine.data / "precious").write_text("mine")
    give(machine.data)
    assert "is not empty" in refused()
    assert (machine.data / "precious").read_text() == "mine"
    (machine.data / "precious").unlink()
    space = scratch_folder("space")
    try:
        primary.sql(f"create tablespace elsewhere location '{space}'")
        assert f"--tablespace-mapping={space}=" in refused()
        primary.sql("drop tablespace elsewhere")
    finally:
        shutil.rmtree(space)
    with primary.connect(application_name="Patroni heartbeat"):
        assert "patronictl reinit" in refused()
    assert "is the primary" in refused(verb="rebuild", node="m1")
    patroni = pooler.folder / "patroni.ini"
    patroni.write_text("[pgbouncer]\nlisten_port = 1\n[clusters]\nmain = discovery=patroni patroni_api=http://127.0.0.1:1 check_user=c\n")
    give(patroni)
    assert "patronictl reinit" in machine.run("add", "m2", "-c", patroni, code=1)
    assert slots(primary) == [] and list(machine.data.iterdir()) == []


def test_another_version_is_refused(nodes, poolers, machines):  # noqa: F811
    machine = machines()
    one = nodes(1, major="18")
    prepare(one.primary)
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(one, m2=machine.port))
    said = machine.run("add", "m2", "-c", pooler.ini, code=1)
    assert "must be of the source's major version, 18" in said and f"version {DISTRIBUTION}" in said
    assert slots(one.primary) == [] and not machine.data.exists()


def test_dry_run_prints_commands(nodes, poolers, machines):  # noqa: F811
    """Nothing is done, and each line can be given to a shell."""
    one, machine = nodes(1), machines()
    primary = prepare(one.primary)
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(one, m2=machine.port))
    said = machine.run("add", "m2", "-c", pooler.ini, "--dry-run")
    for part in ("pg_create_physical_replication_slot", "pg_basebackup", "standby.signal", "pg_ctl start", "attach main.m2 --wait"):
        assert part in said, said
    assert subprocess.run(["sh", "-n"], input=said, text=True).returncode == 0
    assert not machine.data.exists() and slots(primary) == []
    assert node_states(pooler)["m2"] != "standby"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_gigabyte_is_copied_under_load(nodes, poolers, machines):  # noqa: F811
    """Clients that change and read rows meanwhile see no error, and the new node has all of their changes."""
    one, machine = nodes(1), machines()
    primary = prepare(one.primary)
    primary.sql("create table big as select n, md5(n::text) || repeat('x', 950) as text from generate_series(1, 1100000) as n")
    assert primary.sql("select pg_database_size('app') > 1 << 30") == [(True,)]
    pooler = poolers({"app": "cluster=main"}, ini_tail=ini(one, m2=machine.port))
    with load(pooler):
        began_s = time.monotonic()
        said = machine.run("add", "m2", "-c", pooler.ini, patience_s=3000)
        print(f"added under load after {time.monotonic() - began_s:.0f} s\n{said}")
        assert node_states(pooler)["m2"] == "standby"
    [(count,)] = primary.sql("select count(*) from changes")
    assert count > 0
    eventually(lambda: machine.sql("select count(*) from changes") == [(count,)], "the new node has all changes")
    assert machine.sql("select count(*), sum(n) from big") == primary.sql("select count(*), sum(n) from big")


@pytest.mark.parametrize("way", ["rewind", "copy"])
def test_an_old_primary_is_made_again(nodes, poolers, machines, way):  # noqa: F811
    """After a failover the old primary, which went on alone for a while, becomes a standby of the new one: what it had alone is gone."""
    two, machine = nodes(2), machines()
    old, new = two.all
    prepare(old, new)
    if way == "rewind":
        functions = ["pg_ls_dir(text, boolean, boolean)", "pg_stat_file(text, boolean)", "pg_read_binary_file(text)"]
        functions.append("pg_read_binary_file(text, bigint, bigint, boolean)")
        for function in functions:
            old.sql(f"grant execute on function {function} to {ROLE}", database="postgres")
        old.sql(f"grant pg_checkpoint to {ROLE}")
        old.sql("alter system set wal_log_hints = 'on'")
        old.stop()
        old.start()
    old.sql("insert into changes values ('both', 1)")
    eventually(lambda: new.sql("select n from changes") == [(1,)], "the standby has it")
    pooler = poolers({"app": "cluster=main"}, ini_tail=two.ini(warm_up_ms=200))
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    new.promote()
    old.sql("insert into changes values ('alone', 2)")
    new.sql("insert into changes values ('new', 3)")
    eventually(lambda: node_states(pooler)["m2"] == "primary", "the new primary is known")
    machine.data, machine.port = old.data, old.port
    try:
        said = machine.run("rebuild", "m1", "-c", pooler.ini, "--port", str(old.port))
        old._process.wait(timeout=30)
        aside = old.data.with_name("data.old-1")
        if way == "rewind":
            assert "not possible" not in said and not aside.exists(), said
        else:
            assert "without data checksums" in said and aside.exists(), said
        assert "has its whole share" in said
        assert node_states(pooler) == {"m1": "standby", "m2": "primary"}
        assert machine.sql("select n from changes order by n") == [(1,), (3,)]
        assert slots(new) == ["pgweir_m1"]
    finally:
        machine.stop()

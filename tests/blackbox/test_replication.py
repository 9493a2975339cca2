"""Replication connections: a server of their own each, CopyBoth in both directions, nothing reused."""

import struct
import subprocess

import pytest

from harness.cluster import DISTRIBUTION, Cluster, program
from harness.machine import eventually
from harness.wire import Closed, copy_data, message, query, startup

pytestmark = pytest.mark.needs("replication")


@pytest.fixture
def replicated(pooled, pg):
    """A pooler with the databases app and `replication`, which is the name that physical replication clients give."""
    return pooled(databases={"replication": pg.at("app")}, default_pool_size=5)


@pytest.mark.parametrize("mode, database", [("true", "replication"), ("database", "app"), ("on", "app"), ("1", "app")])
def test_identify_system(replicated, pg, mode, database):
    """The first command of every replication client."""
    with replicated.raw(database, "u_repl", replication=mode) as session:
        answer = session.query("IDENTIFY_SYSTEM")
        assert answer.columns == ["systemid", "timeline", "xlogpos", "dbname"]
        assert answer.rows[0][0] == str(pg.sql("select system_identifier from pg_control_system()")[0][0])
        assert answer.rows[0][3] == ("app" if mode == "database" else None)


def test_a_server_of_its_own(replicated, pg):
    """Each replication client has its own walsender, which ends with it and serves no other client."""
    sessions = [replicated.raw("app", "u_repl", replication="database") for _ in range(3)]
    for session in sessions:
        session.query("IDENTIFY_SYSTEM")
    senders = pg.sql("select count(*) from pg_stat_activity where backend_type = 'walsender'")
    assert senders == [(3,)]
    with replicated.raw("app", "u_repl") as plain:
        assert plain.value("select backend_type from pg_stat_activity where pid = pg_backend_pid()") == "client backend"
    sessions[0].terminate()
    sessions[1].hang_up()
    eventually(lambda: pg.sql("select count(*) from pg_stat_activity where backend_type = 'walsender'") == [(1,)], "two walsenders are gone")
    sessions[2].hang_up()


def test_sql_on_a_logical_connection(replicated):
    """A logical replication connection also runs SQL, transactions included, on one and the same server."""
    with replicated.raw("app", "u_repl", replication="database") as session:
        pid = session.value("select pg_backend_pid()")
        assert session.query("begin").status == "T"
        assert session.query("commit").status == "I"
        assert session.value("select pg_backend_pid()") == pid


@pytest.fixture
def publish(pg):
    """Makes the publication `pub` of the tables it is given; it goes with the test.

    As long as one of all tables is there, PostgreSQL refuses DELETE from every table without a primary key.
    """

    def make(tables):
        pg.sql(f"create publication pub for {tables}")

    yield make
    pg.sql("drop publication if exists pub")


def test_logical_streaming(replicated, pg, publish):
    """START_REPLICATION of a logical slot: changes arrive as CopyBoth data, feedback goes back, CopyDone ends it."""
    pg.sql("drop table if exists watched; create table watched (n int primary key); grant all on watched to public")
    publish("table watched")
    with replicated.raw("app", "u_repl", replication="database") as session:
        answer = session.query("CREATE_REPLICATION_SLOT s1 TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        start = answer.rows[0][1]
        session.send(query(f"START_REPLICATION SLOT s1 LOGICAL {start} (proto_version '1', publication_names 'pub')"))
        assert session.until("W").messages[-1].tag == "W"
        pg.sql("insert into watched select generate_series(1, 500)")
        inserts, last = 0, 0
        while inserts < 500:
            body = session.until("d").messages[-1].body
            if body[:1] == b"w":
                last = struct.unpack_from("!q", body, 9)[0]
                inserts += body[25:26] == b"I"
        session.send(copy_data(b"r" + struct.pack("!qqqqb", last, last, last, 0, 1)))
        assert session.until("d").messages[-1].body[:1] in (b"k", b"w")
        session.send(message("c"))
        answer = session.until("Z")
        assert "c" in answer.tags and answer.commands
        assert session.value("select 1") == "1"
    eventually(lambda: pg.sql("select count(*) from pg_replication_slots") == [(0,)], "the temporary slot is gone with its session")


@pytest.fixture(scope="module")
def subscriber(certificates):
    """A second cluster of the same version, which subscribes to tables of the first."""
    cluster = Cluster(DISTRIBUTION, certificates)
    yield cluster
    cluster.discard()


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_a_subscription_through_the_pooler(pooled, pg, subscriber, mode):
    """A subscription of another cluster copies what is there, and then gets what changes, in each pool mode."""
    pooler = pooled(pool_mode=mode)
    for table in ("copied", "filtered"):
        subscriber.sql(f"drop table if exists {table}; create table {table} (n serial primary key, v text)")
        pg.sql(f"drop table if exists {table} cascade; create table {table} (n serial primary key, v text); grant all on {table} to public")
        pg.sql(f"insert into {table} (v) select 'value ' || g from generate_series(1, 5000) g")
    pg.sql("create publication copies for table copied, filtered where (n > 4000)")
    subscriber.sql(f"create subscription copies connection '{pooler.dsn('app', 'u_repl').replace(chr(39), chr(39) * 2)}' publication copies")
    try:
        for table, count in (("copied", 5000), ("filtered", 1000)):
            eventually(lambda: subscriber.sql(f"select count(*) from {table}") == [(count,)], f"{table} is copied", timeout_s=30)  # noqa: B023
        eventually(
            lambda: subscriber.sql("select count(*) from pg_subscription_rel where srsubstate = 'r'") == [(2,)], "both follow", timeout_s=30
        )
        pg.sql("insert into copied (v) values ('later'); update copied set v = 'changed' where n = 17; delete from copied where n = 18")
        pg.sql("insert into filtered (v) values ('later')")
        eventually(
            lambda: subscriber.sql("select n, v from copied where v in ('later', 'changed') or n = 18 order by n") == [(17, "changed"), (5001, "later")],
            "the changes arrive",
        )  # fmt: skip
        eventually(lambda: subscriber.sql("select n from filtered where v = 'later'") == [(5001,)], "those of the other table, too")
        with pooler.raw("app", "u_repl") as plain:
            assert plain.value("select backend_type from pg_stat_activity where pid = pg_backend_pid()") == "client backend"
    finally:
        subscriber.sql("drop subscription copies")
        pg.sql("drop publication copies")
    assert pg.sql("select count(*) from pg_replication_slots where slot_name = 'copies'") == [(0,)]


def test_a_streaming_client_that_vanishes(replicated, pg, publish):
    """A client that hangs up in CopyBoth takes its walsender with it."""
    publish("all tables")
    session = replicated.raw("app", "u_repl", replication="database")
    start = session.query("CREATE_REPLICATION_SLOT s2 TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT").rows[0][1]
    session.send(query(f"START_REPLICATION SLOT s2 LOGICAL {start} (proto_version '1', publication_names 'pub')"))
    session.until("W")
    session.reset()
    eventually(lambda: not pg.backends(user="u_repl"), "the walsender is gone")


def test_physical_streaming(replicated, pg):
    """START_REPLICATION PHYSICAL: WAL arrives."""
    with replicated.raw("replication", "u_repl", replication="true") as session:
        position = session.query("IDENTIFY_SYSTEM").rows[0][2]
        session.send(query(f"START_REPLICATION PHYSICAL {position}"))
        session.until("W")
        pg.sql("insert into scratch select 99, generate_series(1, 1000)")
        received = 0
        while received < 50_000:
            body = session.until("d").messages[-1].body
            received += len(body) - 25 if body[:1] == b"w" else 0


def test_startup_options_reach_the_walsender(replicated):
    """The raw `options` of a replication connection are passed on."""
    with replicated.raw("app", "u_repl", replication="database", options="-c geqo=off -c statement_timeout=12345") as session:
        assert session.value("show statement_timeout") == "12345ms"


def test_reset_of_a_replication_client_goes_back_to_what_it_asked_for(replicated):
    """Its server was started with its own parameters; nothing has to be put back, and nothing waits for that."""
    with replicated.raw("app", "u_repl", replication="database", work_mem="5MB", DateStyle="German") as session:
        session.query("set work_mem = '7MB'; set datestyle = 'ISO'")
        session.query("reset work_mem; reset datestyle")
        assert session.value("show work_mem") == "5MB"
        assert session.value("show datestyle").startswith("German")


def test_replication_is_refused_without_the_right(replicated):
    """A role without REPLICATION: PgBouncer's words, and the server's as detail; plain clients of that role are not touched."""
    with replicated.raw("app", "bob") as plain:
        with pytest.raises(Closed) as refused, replicated.raw("app", "bob", replication="database") as session:
            session.query("IDENTIFY_SYSTEM")
        assert refused.value.error["M"] == "login failed"
        assert "replication" in refused.value.error["D"].lower()
        assert plain.value("select 1") == "1"


def test_it_waits_where_the_pool_is_full(pooled):
    """A replication client is queued like any other; the server that becomes free goes, and makes room for its own."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw("app", "u_repl") as holder:
        assert holder.query("begin").status == "T"
        standby = pooler.raw("app", "u_repl", login=False)
        standby.send(startup({"user": "u_repl", "database": "app", "replication": "database"}))
        eventually(lambda: pooler.pool(user="u_repl")["cl_waiting"] == 1, "it waits")
        holder.query("commit")
        standby.until("Z")
        assert standby.query("IDENTIFY_SYSTEM").rows
        holder.send(query("select 1"))
        eventually(lambda: pooler.pool(user="u_repl")["cl_waiting"] == 1, "now the other waits for the place")
        standby.terminate()
        assert holder.until("Z").rows == [["1"]]


def test_it_does_not_wait_forever(pooled):
    """query_wait_timeout holds for it, too."""
    pooler = pooled(default_pool_size=1)
    pooler.limit(query_wait_timeout=1)
    with pooler.raw("app", "u_repl") as holder:
        holder.query("begin")
        with pytest.raises(Closed) as closed:
            pooler.raw("app", "u_repl", replication="database")
        assert closed.value.error["M"] == "query_wait_timeout"
        holder.query("rollback")
        with pooler.raw("app", "u_repl", replication="database") as standby:
            assert standby.query("IDENTIFY_SYSTEM").rows


def tool(name):
    path = program("15", name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return str(path)


def test_pg_basebackup(replicated, pg, tmp_path):
    """A whole base backup with its WAL through the pooler."""
    target = tmp_path / "backup"
    done = subprocess.run(
        [tool("pg_basebackup"), "-h", "127.0.0.1", "-p", str(replicated.port), "-U", "u_repl", "-D", str(target), "-X", "stream", "-c", "fast"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (target / "PG_VERSION").exists() and (target / "backup_manifest").exists()
    verified = subprocess.run([tool("pg_verifybackup"), str(target)], capture_output=True, text=True, timeout=60)
    assert verified.returncode == 0, verified.stderr


def test_pg_receivewal(replicated, pg, tmp_path):
    """pg_receivewal up to a given position."""
    pg.sql("select pg_switch_wal()")
    pg.sql("insert into scratch select 98, generate_series(1, 1000)")
    end = pg.sql("select pg_current_wal_lsn()::text")[0][0]
    process = subprocess.Popen(
        [tool("pg_receivewal"), "-h", "127.0.0.1", "-p", str(replicated.port), "-U", "u_repl", "-D", str(tmp_path), "-n", "--synchronous", "-E", end],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        eventually(lambda: pg.backends(user="u_repl") or process.poll() is not None, "it is connected")
        for _ in range(20):
            pg.sql("insert into scratch select 98, generate_series(1, 1000)")
            if process.poll() is not None:
                break
        pg.sql("select pg_switch_wal()")
        assert process.wait(timeout=20) == 0, process.stderr.read()
    finally:
        process.kill()
        process.wait()
    assert any(tmp_path.iterdir())


def test_pg_recvlogical(replicated, pg, tmp_path):
    """pg_recvlogical makes a slot, receives changes up to a given position, and drops the slot."""
    base = [tool("pg_recvlogical"), "-h", "127.0.0.1", "-p", str(replicated.port), "-U", "u_repl", "-d", "app", "--slot", "s3"]

    def run(*arguments):
        done = subprocess.run([*base, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    pg.sql("drop table if exists logged; create table logged (n int primary key)")
    run("--create-slot", "--plugin", "test_decoding")
    pg.sql("insert into logged select generate_series(1, 100)")
    end = pg.sql("select pg_current_wal_insert_lsn()::text")[0][0]
    received = tmp_path / "received"
    run("--start", "--file", str(received), "--endpos", end, "--no-loop")
    assert received.read_text().count("INSERT:") == 100
    run("--drop-slot")
    assert pg.sql("select count(*) from pg_replication_slots where slot_name = 's3'") == [(0,)]


def test_replication_beside_ordinary_clients(replicated):
    """Ordinary transactions go on while a replication client streams."""
    with replicated.raw("app", "u_repl", replication="true") as stream, replicated.raw("app", "u_repl") as plain:
        position = stream.query("IDENTIFY_SYSTEM").rows[0][2]
        stream.send(query(f"START_REPLICATION PHYSICAL {position}"))
        stream.until("W")
        for n in range(50):
            assert plain.value(f"select {n}") == str(n)


def test_replication_state_is_shown(replicated):
    """SHOW CLIENTS and SHOW SERVERS tell physical from logical."""
    with replicated.raw("app", "u_repl", replication="true") as one, replicated.raw("app", "u_repl", replication="database") as two:
        one.query("IDENTIFY_SYSTEM")
        two.query("IDENTIFY_SYSTEM")
        assert {row["replication"] for row in replicated.show("CLIENTS", user="u_repl")} == {"physical", "logical"}
        assert {row["replication"] for row in replicated.show("SERVERS", user="u_repl")} == {"physical", "logical"}

"""`pgweir doctor`: what it finds of a running pooler in front of a real PostgreSQL, of a file alone, and what it says when all is well."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.cluster import DISTRIBUTION, PASSWORDS, Cluster
from harness.machine import as_service, eventually, free_port, reachable
from harness.pooler import binary
from harness.wire import query

pytestmark = pytest.mark.needs("pgweir doctor")

#: Nothing of this is worth a finding.
WELL = {"default_pool_size": 5, "idle_transaction_timeout": 60, "query_timeout": 30, "max_client_conn": 50}


def run(*arguments, service=None, environment=None):
    """Runs `pgweir doctor`; as the service account if a pooler's folder is given."""
    command = [binary(), "doctor", *map(str, arguments)]
    if service:
        command = as_service(str(reachable(binary(), service)), *command[1:])
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | (environment or {}))


def findings(*arguments, **how):
    """The exit code, and the findings by code: lists of (severity, text)."""
    done = run("--json", *arguments, **how)
    report = json.loads(done.stdout or "{}")
    found = {}
    for finding in report.get("findings", []):
        assert finding["remedy"], finding
        found.setdefault(finding["code"], []).append((finding["severity"], finding["text"]))
    return done.returncode, found


def test_nothing_is_found_where_all_is_well(pooled, pg):
    """A pooler with limits that fit its server: no errors, no warnings, exit code 0."""
    with pg.configured(statement_timeout="20s", client_connection_check_interval="10s"):
        pooler = pooled(**WELL)
        with pooler.connect() as client:
            client.execute("select 1")
            done = run(pooler.ini, service=pooler.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"console: unix:{pooler.folder}:{pooler.port}; file: {pooler.ini}" in done.stdout
    assert "no errors, no warnings, no notes" in done.stdout


def test_a_pool_at_its_limit_and_clients_that_wait(pooled, pg):
    """With their figures, and what holds the servers: they are idle in transaction."""
    pooler = pooled({"app": pg.at("app", pool_size=2)})
    holders = [pooler.connect() for _ in range(2)]
    for holder in holders:
        holder.execute("begin")
        holder.execute("select 1")
    waiting = pooler.raw()
    waiting.send(query("select 2"))
    eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the third client waits")
    code, found = findings(pooler.ini, service=pooler.folder)
    assert code == 1
    [(severity, text)] = found["pool_at_limit"]
    assert severity == "error" and text.startswith("pool app/alice: 2 of 2 servers are busy and 1 client waits, the longest for "), text
    done = run(pooler.ini, service=pooler.folder)
    assert "2 servers are idle in transaction" in done.stdout, done.stdout
    for holder in holders:
        holder.close()
    waiting.hang_up()


def test_pins_by_reason(pooled, pg):
    """Clients that keep their server are counted by what they keep it for."""
    pooler = pooled({"app": pg.at("app", pool_size=4)}, **WELL)
    clients = [pooler.connect() for _ in range(3)]
    for client in clients[:2]:
        client.execute("create temporary table t (a int)")
    clients[2].execute("select pg_advisory_lock(1)")
    eventually(lambda: sum(bool(row["pinned"]) for row in pooler.show("CLIENTS_EXTENDED", type="C")) == 3, "all keep their servers")
    _, found = findings(pooler.ini, service=pooler.folder)
    told = found["pinned"]
    assert ("note", "database app: 1 client keeps its server between transactions: advisory locks") in told, told
    assert ("warning", "database app: 2 clients keep their servers between transactions: temporary objects") in told, told
    for client in clients:
        client.close()


def test_a_client_that_does_not_read(pooled, pg):
    """Bytes that wait for it for a second are told, with the client that does not read."""
    pooler = pooled(**WELL)
    client = pooler.raw(application_name="sleeper")
    client.send(query("select repeat('x', 1000) from generate_series(1, 100000)"))
    sleeper = {"type": "C", "application_name": "sleeper"}
    eventually(lambda: int(pooler.show("SOCKETS", **sleeper)[0]["send_avail"]) > 16384, "bytes wait for it")
    _, found = findings(pooler.ini, service=pooler.folder)
    [(severity, text)] = found["client_lags"]
    assert severity == "warning" and "the client alice at 127.0.0.1:" in text and ", sleeper does not read" in text, text
    client.hang_up()


def test_logins_to_postgresql_that_fail(pooled, pg):
    """Of the pooler, as its console says, and of the doctor's own try; in PostgreSQL's words, and without the password."""
    pooler = pooled({"wrong": pg.at("app", user="u_scram", password="wr0ng")}, **WELL)
    with pytest.raises(Exception, match="password authentication failed"):
        pooler.connect("wrong")
    code, found = findings(pooler.ini, service=pooler.folder)
    assert code == 1
    [(severity, text)] = found["server_login_failing"]
    assert severity == "error" and text.startswith("pool wrong/u_scram: the last connection to a server failed: "), text
    [(_, text)] = found["server_login_failed"]
    assert text == (
        f'database wrong: a login as u_scram at 127.0.0.1:{pg.port} failed: password authentication failed for user "u_scram" (SQLSTATE 28P01)'
    )
    done = run(pooler.ini, service=pooler.folder)
    assert "wr0ng" not in done.stdout + done.stderr


def test_more_connections_than_postgresql_accepts(pooled, pg):
    """The pools of one server against max_connections less what is reserved; the limit of a role."""
    pooler = pooled({"app2": pg.at("app2", user="bob", pool_size=95), "app3": pg.at("app3", user="carol", pool_size=3)}, **WELL)
    pg.sql("alter role carol connection limit 2")
    try:
        code, found = findings(pooler.ini, service=pooler.folder)
    finally:
        pg.sql("alter role carol connection limit -1")
    assert code == 1
    [(severity, text)] = found["postgres_connections"]
    assert severity == "error" and f"server 127.0.0.1:{pg.port}: the pools may open 103 connections (" in text, text
    assert "app2: 1 pool of 95" in text and "PostgreSQL accepts 97 (max_connections 100 less superuser_reserved_connections 3" in text, text
    [(_, text)] = found["role_connection_limit"]
    assert text == "pool app3/carol may open 3 connections, but the role carol has CONNECTION LIMIT 2"


def test_limits_of_each_postgresql(poolers, pg_other):
    """The settings are read from each version of PostgreSQL, whichever of them it has."""
    pooler = poolers({"app": pg_other.at("app", pool_size=98)}, **WELL)
    with pg_other.configured(statement_timeout="45s"):
        _, found = findings(pooler.ini, service=pooler.folder)
    assert "accepts 97" in found["postgres_connections"][0][1], found
    assert "query_timeout (30 s)" in found["query_timeout_below_statement_timeout"][0][1], found


def test_timeouts_that_neither_side_has(pooled):
    """They are notes: good to know, and no reason for an exit code."""
    code, found = findings(pooled(default_pool_size=5, max_client_conn=50).ini)
    assert code == 0
    assert {"no_idle_transaction_timeout", "no_statement_timeout"} <= set(found), found


def test_what_was_switched_off(pooled, pg):
    """PAUSE and DISABLE of a database, and a reload that was forgotten."""
    pooler = pooled(**WELL)
    pooler.admin("PAUSE app")
    pooler.admin("DISABLE app2")
    pooler.write_ini(max_client_conn=60, listen_backlog=99999)
    _, found = findings(pooler.ini, service=pooler.folder)
    assert "database app is paused" in found["database_paused"][0][1], found
    assert "database app2 is disabled" in found["database_disabled"][0][1], found
    assert "max_client_conn (50 runs, 60 in the file)" in found["reload_pending"][0][1], found
    assert "listen_backlog (128 runs, 99999 in the file)" in found["restart_pending"][0][1], found
    pooler.admin("RESUME app")


def test_limits_of_the_machine(pooled):
    """Open files of the running process, and the kernel's bound of listen_backlog."""
    somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text())
    pooler = pooled(listen_backlog=somaxconn + 1, limits=["prlimit", "--nofile=300:300"], **WELL | {"max_client_conn": 400})
    code, found = findings(pooler.ini, service=pooler.folder)
    assert code == 1
    assert "open files of the pooler is 300; max_client_conn (400)" in found["open_files_limit"][0][1], found
    assert f"somaxconn is {somaxconn}" in found["listen_backlog"][0][1], found


def test_a_file_alone(pooled, pg):
    """Without a running pooler: the file's faults and warnings, PostgreSQL, the machine; and a note that no console was seen."""
    pooler = pooled(start=False, admin_users="root", min_pool_size=30, auth_type="md5", default_pool_size=20)
    code, found = findings("--user", "alice", pooler.ini)
    assert code == 1 and found["no_console"][0][0] == "note"
    assert len(found["config_warning"]) == 2, found
    # Each user of the file may have a pool in each database.
    assert "postgres_connections" in found
    pooler.write_ini(pool_mode="often", admin_users="admin", min_pool_size=0)
    code, found = findings(pooler.ini)
    assert code == 1 and 'invalid value "often"' in found["config_error"][0][1]


def test_a_password_that_only_clients_know(pooled, pg):
    """Then PostgreSQL is not asked, and a note says so; it is asked with the user's password in PGPASSWORD."""
    secret = pg.sql("select rolpassword from pg_authid where rolname = 'u_scram'")[0][0]
    pooler = pooled(start=False, userlist={"u_scram": secret}, auth_type="scram-sha-256", admin_users="", stats_users="", default_pool_size=99)
    code, found = findings(pooler.ini)
    assert code == 0 and "only clients know" in found["postgres_not_asked"][0][1], found
    done = run("--user", "u_scram", pooler.ini, environment={"PGPASSWORD": PASSWORDS["u_scram"]})
    assert done.returncode == 1 and "PostgreSQL accepts 97" in done.stdout, done.stdout


def test_a_console_by_its_url(pooled, pg):
    """With the pooler's own file if it is on this machine; a wrong password is a reason, and is not shown."""
    pooler = pooled({"app2": pg.at("app2", pool_size=99)}, auth_type="scram-sha-256", **WELL)
    url = f"postgres://admin:{{}}@127.0.0.1:{pooler.port}"
    code, found = findings(url.format("pw-of-admin"))
    assert code == 1 and "postgres_connections" in found, found
    done = run(url.format("s3cret"))
    assert done.returncode == 2 and "authentication failed" in done.stderr and "s3cret" not in done.stderr, done.stderr
    done = run(f"postgres://admin:s3cret@127.0.0.1:{free_port()}")
    assert done.returncode == 2 and "refused" in done.stderr and "s3cret" not in done.stderr
    assert run("/no/such/file.ini").returncode == 2
    assert PASSWORDS["alice"] not in done.stdout


def test_a_console_that_asks_for_tls(pooled, certificates):
    """The doctor speaks TLS where the pooler offers it."""
    files = {"client_tls_cert_file": certificates.crt("pooler"), "client_tls_key_file": certificates.key("pooler")}
    pooler = pooled(client_tls_sslmode="require", **files, **WELL)
    code, found = findings(f"postgres://stats:pw-of-stats@127.0.0.1:{pooler.port}", pooler.ini)
    assert code == 0 and "no_console" not in found, found


def test_statements_that_would_gain_from_the_query_cache(pooled, pg):
    """Statements with much time are named if their answers could be kept; of other reads, the reasons are told."""
    pooler = pooled(pool_mode="transaction", **WELL)
    gain = "select count(*) as gain from generate_series(1, 1000000)"
    held = "select count(*) as held from generate_series(1, 1000000)"
    code, found = findings(pooler.ini, service=pooler.folder)
    assert "cache_gain" not in found and "cache_obstacles" not in found, found

    def server_us(word):
        rows = pooler.show("STATEMENTS", database="app")
        return sum(int(row["server_us"]) for row in rows if f" as {word} " in row["query"])

    with pooler.connect() as client:
        def run(word, text):
            client.execute(text, prepare=False)
            return server_us(word) > 1_200_000

        eventually(lambda: run("gain", gain), "it took more than a second", timeout_s=60)
        with client.transaction():
            eventually(lambda: run("held", held), "it took more than a second", timeout_s=60)
    code, found = findings(pooler.ini, service=pooler.folder)
    [(severity, text)] = found["cache_gain"]
    assert severity == "note" and text.startswith("pool app/alice: the query cache could keep the answers to a statement that took ")
    assert text.endswith(": select count(*) as gain from generate_series(?)"), text
    [(severity, text)] = found["cache_obstacles"]
    assert severity == "note" and "in a transaction (1 statement, " in text and "most: select count(*) as held" in text, text


FOLLOWED = {"query_cache": "on", "query_cache_user": "u_repl", "pool_mode": "transaction"}
RULES = "[cache]\nall = database=app follow=wal\n"


@pytest.fixture
def published(pg):
    """Tables that a publication may have; the publication is the test's."""
    names = ["keyed", "keyless", "nothing", "whole", "whole_in_part", "indexed_in_part", "filtered", "part_of"]
    for statement in (
        "create table keyed (id int primary key, value int)",
        "create table keyless (id int)",
        "create table nothing (id int primary key); alter table nothing replica identity nothing",
        "create table whole (id int); alter table whole replica identity full",
        "create table whole_in_part (id int primary key, value int); alter table whole_in_part replica identity full",
        "create table indexed_in_part (id int primary key, code int not null unique)",
        "alter table indexed_in_part replica identity using index indexed_in_part_code_key",
        "create table filtered (id int primary key)",
        "create table part_of (id int primary key) partition by list (id); create table part_1 partition of part_of for values in (1)",
    ):
        pg.sql(statement)
    yield pg
    pg.sql("drop publication if exists pgweir_cache")
    pg.sql(f"drop table {', '.join(names)}")


def test_a_publication_that_stops_writes(pooled, published):
    """Tables whose UPDATE and DELETE fail are named by the reason, with SQL that mends it; it does mend it."""
    with_lists = ", whole_in_part (id, value), indexed_in_part (id), filtered where (id > 5)"
    published.sql(f"create publication pgweir_cache for table keyed, keyless, nothing, whole, part_of{with_lists}")
    pooler = pooled(ini_tail=RULES, **FOLLOWED, **WELL)
    code, found = findings(pooler.ini, service=pooler.folder)
    assert code == 1
    texts = {text for _, text in found["cache_writes_fail"]}
    refuses = "database app: PostgreSQL refuses UPDATE and DELETE on public."
    assert texts == {
        f"{refuses}keyless: they are published without a primary key, or the index of their replica identity was dropped",
        f"{refuses}nothing: they are published with REPLICA IDENTITY NOTHING",
        f"{refuses}whole_in_part: they have REPLICA IDENTITY FULL, and only some of their columns are published",
        f"{refuses}indexed_in_part: the published columns do not include all of their replica identity",
    }
    for table in ("keyless", "nothing", "whole_in_part", "indexed_in_part"):
        published.sql(f"insert into {table} (id{', code' if 'indexed' in table else ''}) values (1{', 1' if 'indexed' in table else ''})")
        with pytest.raises(Exception, match="cannot (update|delete from) table"):
            published.sql(f"delete from {table}")
    assert "of public.whole writes the whole old row" in found["cache_identity_full"][0][1], found
    assert "of public.filtered are kept: not all rows" in found["cache_row_filter"][0][1], found
    assert "of public.part_1 are kept: it is a partition" in found["cache_table_not_kept"][0][1], found
    report = json.loads(run("--json", pooler.ini, service=pooler.folder).stdout)
    remedies = [one["remedy"].removeprefix("run ").split(", or ")[0] for one in report["findings"] if one["code"] == "cache_writes_fail"]
    for statement in [remedy for remedy in remedies if remedy.startswith("ALTER")] + ["ALTER PUBLICATION pgweir_cache DROP TABLE keyless"]:
        published.sql(statement)
    for table in ("keyless", "nothing", "whole_in_part", "indexed_in_part"):
        published.sql(f"delete from {table}")
    _, found = findings(pooler.ini, service=pooler.folder)
    assert "cache_writes_fail" not in found, found


def test_what_keeps_changes_from_being_followed(pooled, published):
    """A missing or partial publication, FOR ALL TABLES, a role without the right; and what a good one means for keys."""
    pooler = pooled(ini_tail=RULES, **FOLLOWED, **WELL)
    code, found = findings(pooler.ini, service=pooler.folder)
    assert code == 1 and found["cache_publication_missing"][0][0] == "error", found
    published.sql("create publication pgweir_cache for all tables with (publish = 'insert, update')")
    _, found = findings(pooler.ini, service=pooler.folder)
    assert {"cache_publication_partial", "cache_publication_all_tables", "cache_writes_fail"} <= set(found), found
    published.sql("drop publication pgweir_cache; create publication pgweir_cache for table keyed")
    pooler.write_ini(query_cache_user="alice")
    pooler.reload()
    _, found = findings(pooler.ini, service=pooler.folder)
    assert found["cache_replication_right"] == [("error", "database app: the role alice may not read changes: it has no right REPLICATION")]
    pooler.write_ini(query_cache_user="u_repl")
    pooler.reload()
    _, found = findings(pooler.ini, service=pooler.folder)
    assert not {code for code, told in found.items() if code.startswith("cache_") and told[0][0] != "note"}, found
    assert "1 table is published as pgweir_cache. PostgreSQL lets you drop the primary key" in found["cache_publication_identity"][0][1], found
    assert "holds PostgreSQL's log for 60 s (wal_sender_timeout)" in found["cache_log_unbounded"][0][1], found


@pytest.mark.parametrize("major", ["13", "14", "16", "17", "18"])
def test_followed_databases_of_each_version(poolers, cluster_of, major):
    """The questions are understood by each version; one that is too old is refused."""
    server = cluster_of(major)
    server.sql("drop publication if exists pgweir_cache; drop table if exists counted")
    server.sql("create table counted (id int)")
    server.sql("create publication pgweir_cache for table counted")
    pooler = poolers({"app": server.at("app")}, ini_tail=RULES, **FOLLOWED, **WELL)
    code, found = findings(pooler.ini, service=pooler.folder)
    server.sql("drop publication pgweir_cache; drop table counted")
    assert code == 1
    if major == "13":
        assert "from PostgreSQL 14 on" in found["cache_not_followed"][0][1], found
    else:
        assert "on public.counted: they are published without a primary key" in found["cache_writes_fail"][0][1], found


def test_a_server_without_room_for_followers(poolers, certificates):
    """wal_level, slots and replication connections that are missing, each with the setting that mends it."""
    server = Cluster(DISTRIBUTION, certificates)
    try:
        server.stop()
        with open(server.data / "postgresql.conf", "a") as conf:
            conf.write("wal_level = replica\nmax_replication_slots = 0\nmax_wal_senders = 0\n")
        server.start()
        pooler = poolers({"app": server.at("app")}, ini_tail=RULES, **FOLLOWED, **WELL)
        code, found = findings(pooler.ini, service=pooler.folder)
        assert code == 1 and "wal_level is replica" in found["cache_wal_level"][0][1], found
        texts = [text for _, text in found["cache_no_room"]]
        assert "0 of 0 replication slots are free, and the query cache needs 1" in texts[0], texts
        assert "0 of 0 replication connections are free" in texts[1], texts
    finally:
        server.discard()

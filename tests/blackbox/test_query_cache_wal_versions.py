"""`follow=wal` with each version of PostgreSQL that it works with: every way in which a followed table can change, and what stays out."""

import re

import psycopg
import pytest
from test_query_cache_wal import MAX_AGE_S, READ, cached, hits, publish_counters, reason, row, unpublish_counters, until_followed, until_hit

from harness.cluster import DISTRIBUTION
from harness.machine import eventually

COUNT = "select count(*), coalesce(sum(id * 1000 + value), 0)::bigint from counted"


@pytest.fixture(params=sorted({"14", DISTRIBUTION, "16", "17", "18"}))
def server(request, cluster_of):
    """A PostgreSQL with a published table of counters."""
    server = cluster_of(request.param)
    server.end_all_backends()
    publish_counters(server)
    yield server
    unpublish_counters(server)


@pytest.fixture
def in_parts(server):
    """Transactions of more than 64 kB are sent before their commit."""
    with server.configured(logical_decoding_work_mem="64kB"):
        yield


def begun(poolers, server, **settings):
    """A pooler that follows the server's database."""
    pooler = cached(lambda **options: poolers({"app": server.at("app")}, **options), **settings)
    until_followed(pooler)
    return pooler


def test_every_change_is_seen(poolers, server, in_parts):
    """After each change past the pooler an answer of before is given for `query_cache_max_age_ms` at most; then the new one is kept."""
    pooler = begun(poolers, server)

    def change(*statements):
        with server.connect() as outside:
            for statement in statements:
                outside.execute(statement)

    def copy_in():
        with server.connect() as outside, outside.cursor().copy("copy counted from stdin") as copy:
            for number in range(100, 200):
                copy.write(f"{number}\t{number}\n")

    changes = [
        lambda: change("update counted set value = value + 1 where id = 1"),
        lambda: change("delete from counted where id = 8"),
        lambda: change("insert into counted values (8, 5) on conflict (id) do update set value = 6"),
        lambda: change("begin", "savepoint s", "update counted set value = 10 where id = 2", "release s", "commit"),
        lambda: change(
            "begin", "update counted set value = 11 where id = 2", "savepoint s", "update counted set value = 12", "rollback to s", "commit",
        ),
        lambda: change("begin", "update counted set value = 20 where id = 3", "prepare transaction 'held'", "commit prepared 'held'"),
        lambda: change("update counted set id = 9 where id = 3"),
        lambda: change("set session_replication_role = replica", "update counted set value = value + 3"),
        copy_in,
        # It is sent before its commit, in parts.
        lambda: change("insert into counted select n, n from generate_series(1000, 21000) n"),
        lambda: change("delete from counted where id >= 1000"),
        lambda: change("truncate counted"),
        lambda: change("insert into counted values (1, 1)"),
    ]  # fmt: skip
    with pooler.connect() as client, server.connect() as outside:
        for number, act in enumerate(changes):
            before = until_hit(pooler, client, COUNT)
            act()
            now = outside.execute(COUNT).fetchone()
            assert now != before, number
            eventually(lambda: client.execute(COUNT).fetchone() == now, f"change {number} is seen", timeout_s=MAX_AGE_S + 10)  # noqa: B023
            assert until_hit(pooler, client, COUNT) == now, number
    assert int(row(pooler)["dropped_by_write"]) > 0


def test_a_prepared_transaction_is_not_seen_before_its_commit(poolers, server):
    """PREPARE TRANSACTION changes no answer; COMMIT PREPARED, by another session, does."""
    pooler = begun(poolers, server)
    with pooler.connect() as client, server.connect() as outside:
        until_hit(pooler, client, READ, [1])
        outside.execute("begin")
        outside.execute("update counted set value = 7 where id = 1")
        outside.execute("prepare transaction 'held'")
        assert until_hit(pooler, client, READ, [1]) == (0,)
        server.sql("commit prepared 'held'")
        eventually(lambda: client.execute(READ, [1]).fetchone() == (7,), "it is seen", timeout_s=MAX_AGE_S + 10)
        assert until_hit(pooler, client, READ, [1]) == (7,)


def test_what_is_not_in_the_stream_is_not_kept(poolers, server):
    """Tables whose changes are not all in the stream, and objects that are not tables, go to the server."""
    statements = [
        "create unlogged table unlogged_one (id int primary key)",
        "create table part (id int primary key) partition by range (id)",
        "create table part_1 partition of part for values from (0) to (100)",
        "create table parent (id int primary key)",
        "create table child () inherits (parent)",
        "create table secured (id int primary key)",
        "alter table secured enable row level security",
        "create policy p on secured using (id < extract(hour from now()))",
        "create materialized view stored as select * from counted",
        "create view seen as select * from counted",
        "create sequence drawn",
        "alter publication pgweir_cache add table parent, child, part, secured",
    ]
    names = ["unlogged_one", "part", "part_1", "parent", "child", "secured", "stored", "seen", "drawn"]
    if int(server.major) >= 15:
        statements += ["create table filtered (id int primary key)", "alter publication pgweir_cache add table filtered where (id > 5)"]
        names.append("filtered")
    try:
        for statement in statements:
            server.sql(statement)
        server.sql(f"grant all on {', '.join(name for name in names if name != 'drawn')} to public; grant all on sequence drawn to public")
        pooler = begun(poolers, server)
        with pooler.connect() as client:
            for name in names:
                text = f"select count(*) from {name}"
                expected = "reads a table that is not followed"
                eventually(lambda: client.execute(text) and reason(pooler, text) == expected, f"{text}: {expected}", timeout_s=30)  # noqa: B023
            assert hits(pooler) == 0
    finally:
        server.sql("drop materialized view if exists stored; drop view if exists seen; drop sequence if exists drawn")
        server.sql("drop table if exists unlogged_one, part, parent, child, secured, filtered")


def test_columns_that_are_not_published_count_too(poolers, server):
    """A publication with a list of columns: a change of another column is a change of the table."""
    if int(server.major) < 15:
        pytest.skip("column lists came with PostgreSQL 15")
    server.sql("alter publication pgweir_cache set table counted (id)")
    pooler = begun(poolers, server)
    with pooler.connect() as client:
        until_hit(pooler, client, READ, [1])
        server.sql("update counted set value = 3 where id = 1")
        eventually(lambda: client.execute(READ, [1]).fetchone() == (3,), "it is seen", timeout_s=MAX_AGE_S + 10)


def test_a_table_that_leaves_the_publication_closes_the_cache(poolers, server):
    """Its changes are not sent any more: within `query_cache_ddl_ms` its answers are dropped, and no new ones are kept."""
    pooler = begun(poolers, server)
    with pooler.connect() as client:
        until_hit(pooler, client, READ, [1])
        server.sql("alter publication pgweir_cache drop table counted")
        eventually(lambda: row(pooler)["follow_tables"] == "0" and row(pooler)["follow_state"] == "following", "it is noticed", timeout_s=30)
        server.sql("update counted set value = 4 where id = 1")
        assert client.execute(READ, [1]).fetchone() == (4,)
        # A transaction that changes the table before it is published again is not sent.
        with server.connect() as outside, outside.transaction():
            outside.execute("update counted set value = 5 where id = 1")
            server.sql("alter publication pgweir_cache add table counted")
            eventually(lambda: row(pooler)["follow_tables"] == "1", "it is noticed", timeout_s=30)
            for _ in range(20):
                assert client.execute(READ, [1]).fetchone() == (4,)
            assert row(pooler)["follow_state"] == "opening", row(pooler)
        eventually(lambda: client.execute(READ, [1]).fetchone() == (5,), "it is seen", timeout_s=10)
        assert until_hit(pooler, client, READ, [1]) == (5,)


def test_a_dead_pooler_leaves_no_slot(poolers, server):
    """The slot is temporary: it goes with the connection of a pooler that is killed."""
    pooler = begun(poolers, server)
    assert server.sql("select temporary, active from pg_replication_slots") == [(True, True)]
    pooler.process.kill()
    pooler.wait_exit()
    eventually(lambda: server.sql("select 1 from pg_replication_slots") == [], "the slot is gone", timeout_s=30)


def definitions(server, log):
    """A session of the role that follows changes, in which pgweir's question for definitions is prepared. `log` is PostgreSQL's log since the role's
    statements are logged."""
    prepares = re.findall(r"statement: (PREPARE pgweir_definitions AS .*?); EXECUTE pgweir_definitions", log, re.S)
    session = server.connect(user="u_repl")
    session.execute("set search_path = pg_catalog")
    session.execute(prepares[-1].replace("\n\t", "\n"))
    return session


def test_definitions_are_hashed(poolers, server):
    """Each change of definitions or rights past the pooler changes the answer to pgweir's question for definitions; rows, ANALYZE, VACUUM and temporary
    tables do not. If it changes, the cache closes for a moment."""
    server.sql("alter role u_repl set log_statement = 'all'")
    mark = len(server.log())
    try:
        pooler = begun(poolers, server)
    finally:
        server.sql("alter role u_repl reset log_statement")
    statements = [
        "alter table counted add column more int",
        "alter table counted alter column more set default 3",
        "grant select on counted to bob",
        "revoke select on counted from bob",
        "create schema first_one",
        "create table first_one.counted (id int primary key, value bigint)",
        "create function helper() returns int language sql as 'select 1'",
        "create or replace function helper() returns int language sql as 'select 2'",
        "create type kind as enum ('a')",
        "alter type kind add value 'b'",
        "alter type pair add attribute c int",
        "alter type pair rename attribute c to d",
        "alter domain small add constraint below check (value < 1000)",
        "alter domain small drop constraint below",
        "alter table apart rename column b to c",
        "create role someone",
        "grant someone to alice",
        "alter role alice set search_path = public",
        "alter role alice reset search_path",
        "alter database app set work_mem = '5MB'",
        "alter database app reset work_mem",
        "select pg_reload_conf()",
        "alter table counted replica identity full",
    ]
    if int(server.major) >= 15:
        # What comes and goes between two questions.
        statements += ["grant someone to bob; revoke someone from bob", "alter role alice superuser; alter role alice nosuperuser"]
    # The rows of the second are values of the published table.
    server.sql("create type pair as (a int, b int); create table apart (b int); create domain small as int")
    server.sql("alter table counted add column pair pair, add column apart apart[]")
    try:
        with definitions(server, server.log()[mark:]) as session:
            sums = lambda: session.execute("execute pgweir_definitions").fetchone()  # noqa: E731
            for statement in statements:
                before = sums()
                server.sql(statement)
                # PostgreSQL reads its configuration a moment after it was told to.
                eventually(lambda: sums() != before, statement, timeout_s=40)  # noqa: B023
            before = sums()
            for statement in ("analyze counted", "vacuum counted", "create temporary table mine (id int)", "insert into scratch values (1, 1)"):
                with server.connect() as outside:
                    outside.execute(statement)
                    assert sums() == before, statement
        with pooler.connect() as client:
            # An answer to a named statement would be another one, and could be dropped later for an earlier change.
            client.prepare_threshold = None
            until_hit(pooler, client, READ, [1])
            redefined = int(row(pooler)["redefined"])
            server.sql("grant select on counted to bob")
            eventually(lambda: client.execute(READ, [1]) and int(row(pooler)["redefined"]) > redefined, "the cache was closed", timeout_s=30)
    finally:
        server.sql("drop schema if exists first_one cascade; drop function if exists helper; drop type if exists kind; drop role if exists someone")
        server.sql("drop table apart cascade; drop type pair cascade; drop domain small")
        server.sql("alter table counted replica identity default")


def test_an_older_version_is_refused(poolers, cluster_of):
    """Before PostgreSQL 14 nothing is followed, and SHOW CACHE says so."""
    server = cluster_of("13")
    pooler = cached(lambda **options: poolers({"app": server.at("app")}, **options))
    with pooler.connect() as client:
        client.execute("select 1")
        eventually(lambda: "from PostgreSQL 14 on" in (row(pooler)["follow_reason"] or ""), "the reason is shown", timeout_s=20)
        assert isinstance(client, psycopg.Connection) and hits(pooler) == 0

"""Answers that are kept until PostgreSQL tells of a change (`follow=wal`), with writers that do not pass through the pooler."""

import threading
import time

import psycopg
import pytest

from harness import cluster as clusters
from harness.machine import eventually

MAX_AGE_S = 0.5
RULES = "[cache]\nall = database=app follow=wal\n"
READ = "select value from counted where id = %s"


def publish_counters(server, rows=8, value=0, more=""):
    """Makes a table of counters that is published, in place of one that may be there. `more` are further columns."""
    unpublish_counters(server)
    server.sql(f"create table counted (id int primary key, value bigint{more})")
    server.sql(f"insert into counted select n, {value} from generate_series(1, {rows}) n")
    server.sql("grant all on counted to public")
    server.sql("create publication pgweir_cache for table counted")


def unpublish_counters(server):
    """Removes what `publish_counters` has made."""
    server.sql("drop publication if exists pgweir_cache")
    server.sql("drop table if exists counted cascade")


@pytest.fixture
def followed(pg):
    """A PostgreSQL with a table of counters that is published."""
    publish_counters(pg)
    yield pg
    unpublish_counters(pg)


def cached(pooled, rules=RULES, **settings):
    """A pooler that follows the changes of database app."""
    settings = {
        "query_cache_user": "u_repl",
        "query_cache_max_age_ms": int(MAX_AGE_S * 1000),
        # A hundredth of it is what a question about definitions may take on a busy machine.
        "query_cache_ddl_ms": 3000,
        **settings,
    }
    return pooled(pool_mode="transaction", query_cache="on", ini_tail=rules, **settings)


def row(pooler):
    """The pool's row of SHOW CACHE."""
    return pooler.show("CACHE", database="app", user="alice")[0]


def hits(pooler):
    """The number of answers that were given without a server."""
    return int(row(pooler)["hits"])


def until_followed(pooler):
    """Waits until answers may be kept."""
    with pooler.connect() as client:
        client.execute("select 1")
    told = lambda: [row(pooler)[column] for column in ("follow_state", "follow_reason")]  # noqa: E731
    try:
        # On a busy machine the question for definitions may take too long at first, and pgweir tries again later.
        eventually(lambda: told()[0] == "following", "changes are followed", timeout_s=90)
    except AssertionError as error:
        raise AssertionError(f"{error}: {told()}") from None


def until_hit(pooler, client, *statement):
    """Executes a statement until the cache answers it; returns the row."""

    def is_hit():
        before = hits(pooler)
        found.append(client.execute(*statement).fetchone())
        return hits(pooler) > before

    found = []
    eventually(is_hit, "the cache answers", timeout_s=30)
    return found[-1]


def reason(pooler, part):
    """The column `cache` of the statement with this text."""
    shown = [one["cache"] for one in pooler.show("STATEMENTS") if part in one["query"]]
    return shown[0] if shown else None


@pytest.mark.parametrize("way", ["simple", "prepared"])
def test_an_answer_is_given_until_its_table_changes(pooled, followed, way):
    """No age ends an answer; a change past the pooler does, within the time by which answers may be behind."""
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.connect() as connection:
        client = psycopg.ClientCursor(connection) if way == "simple" else connection.cursor()
        options = {} if way == "simple" else {"prepare": True}
        read = lambda: client.execute(READ, [1], **options).fetchone()[0]  # noqa: E731

        def is_hit():
            before = hits(pooler)
            assert read() == value
            return hits(pooler) > before

        for value in range(3):
            followed.sql("update counted set value = %s where id = 1", [value])
            time.sleep(MAX_AGE_S)
            eventually(is_hit, "the cache answers", timeout_s=30)
    shown = row(pooler)
    assert int(shown["dropped_by_write"]) >= 2, shown
    assert shown["follow_reason"] is None and int(shown["follow_tables"]) == 1, shown


def test_each_answer_is_new_enough(pooled, followed):
    """Writers past the pooler and through it count on; each answer is at least what was acknowledged `query_cache_max_age_ms` before, of a client's
    own changes the last one, and never less than the client has read before."""
    tables = [f"counter{number}" for number in range(6)]
    for table in tables:
        followed.sql(f"create table {table} (value bigint primary key)")
        followed.sql(f"insert into {table} values (0)")
        followed.sql(f"grant all on {table} to public")
        followed.sql(f"alter publication pgweir_cache add table {table}")
    try:
        pooler = cached(pooled)
        until_followed(pooler)
        written = {table: [(0.0, 0)] for table in tables}
        faults, reads, end = [], [0], time.monotonic() + 15

        def write(connect, table, pause_s):
            with connect() as client:
                while time.monotonic() < end:
                    value = written[table][-1][1] + 1
                    client.execute(f"update {table} set value = %s", [value])
                    written[table].append((time.monotonic(), value))
                    if connect == pooler.connect:
                        found = client.execute(f"select value from {table}").fetchone()[0]
                        if found < value:
                            faults.append(f"own change: {found} in place of {value}")
                    time.sleep(pause_s)

        def read():
            with pooler.connect() as client:
                last = dict.fromkeys(tables, 0)
                while time.monotonic() < end:
                    for table in tables:
                        asked = time.monotonic()
                        found = client.execute(f"select value from {table}", prepare=True).fetchone()[0]
                        due = max(value for at, value in list(written[table]) if at <= asked - MAX_AGE_S - 0.05)
                        if found < due:
                            faults.append(f"too old: {found}, {due} was acknowledged before")
                        if found < last[table]:
                            faults.append(f"back in time: {found} after {last[table]}")
                        last[table] = found
                        reads[0] += 1

        # Some tables change often, and some hardly ever.
        pauses = [0.02, 0.2, 0.5, 1, 0.3, 2]
        connects = [followed.connect] * 4 + [pooler.connect] * 2
        threads = [threading.Thread(target=write, args=one) for one in zip(connects, tables, pauses, strict=True)]
        threads += [threading.Thread(target=read) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not faults, faults[:5]
        shown = row(pooler)
        assert int(shown["hits"]) > 100 and int(shown["dropped_by_write"]) > 10, (reads, shown)
    finally:
        followed.sql(f"drop table {', '.join(tables)}")


def test_nothing_is_kept_across_a_gap(pooled, followed):
    """The walsender is killed, and the table is changed meanwhile: no answer of before is given when changes are followed again."""
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.connect() as client:
        for value in range(1, 4):
            until_hit(pooler, client, READ, [1])
            followed.sql("select pg_terminate_backend(pid) from pg_stat_replication")
            followed.sql("update counted set value = %s where id = 1", [value])
            eventually(lambda: client.execute(READ, [1]).fetchone()[0] == value, "the change is seen", timeout_s=MAX_AGE_S + 5)  # noqa: B023
            eventually(lambda: row(pooler)["follow_state"] == "following", "changes are followed again", timeout_s=30)
            assert until_hit(pooler, client, READ, [1]) == (value,)


def test_truncate_copy_and_cascades_are_changes(pooled, followed):
    """Each way to change a published table ends its answers."""
    followed.sql("drop table if exists parent cascade")
    followed.sql("create table parent (id int primary key)")
    followed.sql("insert into parent select n from generate_series(1, 8) n")
    followed.sql("alter table counted add constraint to_parent foreign key (id) references parent on delete cascade")
    count = "select count(*) from counted"
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.connect() as client:
        assert until_hit(pooler, client, count) == (8,)
        followed.sql("delete from parent where id > 6")
        eventually(lambda: client.execute(count).fetchone() == (6,), "the cascade is seen", timeout_s=MAX_AGE_S + 5)
        assert until_hit(pooler, client, count) == (6,)
        followed.sql("truncate counted")
        eventually(lambda: client.execute(count).fetchone() == (0,), "TRUNCATE is seen", timeout_s=MAX_AGE_S + 5)
        assert until_hit(pooler, client, count) == (0,)
        with followed.connect() as outside, outside.cursor().copy("copy counted from stdin") as copy:
            copy.write("1\t1\n2\t2\n")
        eventually(lambda: client.execute(count).fetchone() == (2,), "COPY is seen", timeout_s=MAX_AGE_S + 5)
    followed.sql("drop table parent cascade")


def test_definitions_and_rights_that_change_past_the_pooler(pooled, followed):
    """A REVOKE and an ALTER TABLE past the pooler end answers within `query_cache_ddl_ms`."""
    pooler = cached(pooled, query_cache_ddl_ms=2000)
    until_followed(pooler)
    with pooler.connect() as client:
        until_hit(pooler, client, "select * from counted where id = 1")
        followed.sql("alter table counted add column more int default 5")
        eventually(lambda: client.execute("select * from counted where id = 1").fetchone() == (1, 0, 5), "the column is seen", timeout_s=10)
        until_hit(pooler, client, "select * from counted where id = 1")
        followed.sql("revoke all on counted from public")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            end = time.monotonic() + 10
            while time.monotonic() < end:
                client.execute("select * from counted where id = 1")


def test_only_what_is_followed_is_kept(pooled, followed):
    """Statements that depend on anything but published tables go to the server, and SHOW STATEMENTS says why."""
    followed.sql("create table other (id int)")
    followed.sql("create view seen as select * from counted")
    followed.sql("create table kinds (id int) partition by list (id)")
    followed.sql("create function peek() returns bigint stable language sql as 'select max(value) from counted'")
    followed.sql("grant all on other, seen, kinds to public")
    try:
        pooler = cached(pooled)
        until_followed(pooler)
        texts = {
            "select count(*) from other": "reads a table that is not followed",
            "select count(*) from seen": "reads a table that is not followed",
            "select count(*) from kinds": "reads a table that is not followed",
            "select peek()": "function peek() depends on more than tables",
            "select now(), value from counted": "function now() depends on more than tables",
            "select value from counted where value > length(current_date::text)": "depends on more than tables: current_date",
        }
        with pooler.connect() as client:
            for text, expected in texts.items():
                eventually(lambda: client.execute(text) and reason(pooler, text) == expected, f"{text}: {expected}", timeout_s=20)  # noqa: B023
            assert hits(pooler) == 0
    finally:
        followed.sql("drop table other, kinds")
        followed.sql("drop view seen")
        followed.sql("drop function peek")


def test_a_transaction_is_answered_until_it_needs_a_server(pooled, followed):
    """A client that reads in transactions alone: its statement is analysed, kept and given. Changes are seen, its own at once. With one snapshot for the
    whole transaction, the server answers."""
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.connect() as client, pooler.connect() as outside:

        def inside(change=None):
            with client.transaction():
                found = client.execute(READ, [1]).fetchone()
                if change is not None:
                    client.execute("update counted set value = %s where id = 1", [change])
            return found

        def is_hit():
            before = hits(pooler)
            inside()
            return hits(pooler) > before

        eventually(is_hit, "the cache answers in a transaction", timeout_s=30)
        until_hit(pooler, outside, READ, [1])
        followed.sql("update counted set value = 7 where id = 1")
        eventually(lambda: inside() == (7,), "the change is seen", timeout_s=MAX_AGE_S + 10)
        for value in range(20):
            eventually(is_hit, "the cache answers in a transaction", timeout_s=30)
            inside(change=value)
            assert inside() == (value,)
        client.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before = hits(pooler)
        for _ in range(5):
            assert inside() == (19,)
        assert hits(pooler) == before


@pytest.mark.parametrize(
    "user, publication, expected",
    [
        ("alice", "pgweir_cache", "REPLICATION"),
        ("u_repl", "missing", 'CREATE PUBLICATION "missing"'),
        ("u_repl", "partial", "SET (publish ="),
    ],
)
def test_the_reason_says_what_is_missing(pooled, followed, user, publication, expected):
    """SHOW CACHE has the reason why nothing is followed, and what mends it. Nothing is kept meanwhile."""
    followed.sql("create publication partial for table counted with (publish = 'insert')")
    try:
        pooler = cached(pooled, query_cache_user=user, query_cache_publication=publication)
        with pooler.connect() as client:
            client.execute(READ, [1])
            eventually(lambda: expected in (row(pooler)["follow_reason"] or ""), expected, timeout_s=20)
            for _ in range(5):
                client.execute(READ, [1])
        shown = row(pooler)
        assert shown["follow_state"] in ("off", "opening") and (shown["hits"], shown["fills"]) == ("0", "0"), shown
    finally:
        followed.sql("drop publication partial")


def test_wal_level_replica_is_the_reason(poolers, certificates):
    """With wal_level=replica nothing is kept, and the reason names the setting."""
    server = clusters.Cluster(clusters.DISTRIBUTION, certificates)
    try:
        server.stop()
        with open(server.data / "postgresql.conf", "a") as conf:
            conf.write("wal_level = replica\n")
        server.start()
        pooler = cached(lambda **options: poolers({"app": server.at("app")}, **options))
        with pooler.connect() as client:
            client.execute("select 1")
        eventually(lambda: "wal_level is replica" in (row(pooler)["follow_reason"] or ""), "the reason is shown", timeout_s=20)
    finally:
        server.discard()


def test_a_long_transaction_is_waited_for(pooled, followed):
    """A transaction that has written before changes are followed keeps the cache closed; its change is not missed."""
    with followed.connect() as outside:
        with outside.transaction():
            outside.execute("update counted set value = 9 where id = 1")
            pooler = cached(pooled)
            with pooler.connect() as client:
                assert client.execute(READ, [1]).fetchone() == (0,)
                eventually(lambda: row(pooler)["follow_state"] == "opening", "it waits", timeout_s=20)
                for _ in range(5):
                    client.execute(READ, [1])
                assert hits(pooler) == 0
        until_followed(pooler)
        with pooler.connect() as client:
            assert until_hit(pooler, client, READ, [1]) == (9,)

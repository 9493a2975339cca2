"""`follow=wal` where a wrong answer could be given: sessions that are not alike, servers that are not the same, and changes between two messages."""

import functools

import psycopg
import pytest
from test_query_cache_wal import MAX_AGE_S, READ, RULES, cached, followed, hits, publish_counters, row, until_followed, until_hit  # noqa: F401
from test_takeover import over, successor, with_pid_file

from harness.cluster import DISTRIBUTION, Cluster
from harness.link import Link
from harness.machine import eventually
from harness.wire import SYNC, bind, execute, parse, query

TIMED = "[cache]\nall = database=app follow=time ttl_ms=60000\n"


@pytest.fixture
def link(followed):  # noqa: F811
    """A forwarded address of the server."""
    link = Link(followed.port)
    yield link
    link.close()


@pytest.fixture
def spare(certificates):
    """A second PostgreSQL, as after a failover behind the same address."""
    server = Cluster(DISTRIBUTION, certificates)
    publish_counters(server, value=1000)
    yield server
    server.discard()


def test_an_address_that_leads_to_another_server(pooled, followed, spare):  # noqa: F811
    """RELOAD with another port: no answer of the old server is given, and the new one is followed."""
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.connect() as client:
        assert until_hit(pooler, client, READ, [1]) == (0,)
        pooler.databases["app"] = spare.at("app")
        pooler.write_ini()
        pooler.reload()
        eventually(lambda: client.execute(READ, [1]).fetchone() == (1000,), "the new server answers", timeout_s=10)
        for _ in range(20):
            assert client.execute(READ, [1]).fetchone() == (1000,)
        assert until_hit(pooler, client, READ, [1]) == (1000,)
        spare.sql("update counted set value = 1001 where id = 1")
        eventually(lambda: client.execute(READ, [1]).fetchone() == (1001,), "it is followed", timeout_s=MAX_AGE_S + 10)


def test_a_forwarded_address_that_moves(pooled, followed, spare, link):  # noqa: F811
    """New connections of one address reach another server while the old ones stay: what follows the old one closes at the first login."""
    pooler = cached(pooled, databases={"app": f"host=127.0.0.1 port={link.port} dbname=app"})
    until_followed(pooler)
    with pooler.connect() as client:
        until_hit(pooler, client, READ, [1])
        link.target = spare.port
        with pooler.connect() as held:
            # The pool's server is taken, so that this client gets a new one.
            held.execute("begin")
            held.execute("select 1")
            assert client.execute("select value from counted where id = 2").fetchone() in ((0,), (1000,))
            eventually(lambda: "different PostgreSQL servers" in pooler.log() or "different servers" in pooler.log(), "it is noticed", timeout_s=20)
            before = hits(pooler)
            for _ in range(20):
                client.execute(READ, [1])
            assert row(pooler)["follow_state"] != "following" or hits(pooler) == before


def add_another_counted(followed):
    """Makes a followed table of the same name in another schema, with another value."""
    followed.sql("create schema other")
    followed.sql("create table other.counted (id int primary key, value bigint)")
    followed.sql("insert into other.counted values (1, 500)")
    followed.sql("grant usage on schema other to public; grant all on other.counted to public")
    followed.sql("alter publication pgweir_cache add table other.counted")


def test_settings_of_roles_that_a_server_has_not_seen(pooled, followed):  # noqa: F811
    """A server keeps the settings that it logged in with. Its answers are not kept after ALTER ROLE; those of the next servers are."""
    add_another_counted(followed)
    try:
        pooler = cached(pooled)
        # This server logs in before changes are followed, and before the role gets its setting.
        with pooler.connect() as client:
            assert client.execute(READ, [1]).fetchone() == (0,)
        until_followed(pooler)
        with pooler.connect() as client:
            assert until_hit(pooler, client, READ, [1]) == (0,)
            followed.sql("alter role alice set search_path = other")
            eventually(lambda: client.execute(READ, [1]).fetchone() == (500,), "a new server answers", timeout_s=20)
            assert until_hit(pooler, client, READ, [1]) == (500,)
            followed.sql("alter role alice reset search_path")
            eventually(lambda: client.execute(READ, [1]).fetchone() == (0,), "a new server answers", timeout_s=20)
            assert until_hit(pooler, client, READ, [1]) == (0,)
    finally:
        followed.sql("alter role alice reset search_path")
        followed.sql("drop schema other cascade")


def test_sessions_that_read_the_same_text_otherwise(pooled, followed):  # noqa: F811
    """search_path, role and temporary tables: the same text has other answers, and each session gets its own."""
    add_another_counted(followed)
    followed.sql("revoke all on counted from public; grant select on counted to alice; grant bob to alice")
    text = "select value from counted where id = 1"
    try:
        pooler = cached(pooled)
        until_followed(pooler)
        with pooler.connect() as plain, pooler.connect() as elsewhere, pooler.connect() as temporary, pooler.connect() as role:
            elsewhere.execute("set search_path = other")
            temporary.execute("create temporary table counted (id int, value bigint)")
            temporary.execute("insert into counted values (1, 77)")
            role.execute("set role bob")
            for _ in range(30):
                assert plain.execute(text).fetchone() == (0,)
                assert elsewhere.execute(text).fetchone() == (500,)
                assert temporary.execute(text).fetchone() == (77,)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    role.execute(text)
            assert until_hit(pooler, plain, text) == (0,) and until_hit(pooler, elsewhere, text) == (500,)
            assert temporary.execute(text).fetchone() == (77,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                role.execute(text)
            followed.sql("update other.counted set value = 501")
            eventually(lambda: elsewhere.execute(text).fetchone() == (501,), "it is seen", timeout_s=MAX_AGE_S + 10)
            temporary.execute("drop table pg_temp.counted")
            eventually(lambda: temporary.execute(text).fetchone() == (0,), "the table is gone", timeout_s=10)
    finally:
        followed.sql("drop schema other cascade; revoke bob from alice")


def test_definitions_that_change_through_the_pooler(pooled, followed):  # noqa: F811
    """Two tables change their names through the pooler: from the next statement on the answers are those of the other table, and follow it."""
    followed.sql("create table fresh (id int primary key, value bigint)")
    followed.sql("insert into fresh values (1, 900)")
    followed.sql("grant all on fresh to public; alter publication pgweir_cache add table fresh")
    followed.sql("alter table fresh owner to alice; alter table counted owner to alice")
    text = "select value from counted where id = 1"
    try:
        pooler = cached(pooled, query_cache_ddl_ms=5000)
        until_followed(pooler)
        with pooler.connect() as client, pooler.connect() as changing:
            for turn in range(3):
                before = until_hit(pooler, client, text)
                expected = (900,) if before == (0,) else (0,)
                with changing.transaction():
                    changing.execute("alter table counted rename to swapped")
                    changing.execute("alter table fresh rename to counted")
                    changing.execute("alter table swapped rename to fresh")
                for _ in range(50):
                    assert client.execute(text).fetchone() == expected, turn
                # A write past the pooler to the table that has the name now.
                followed.sql("update counted set value = value + 1")
                written = (expected[0] + 1,)
                eventually(lambda: client.execute(text).fetchone() == written, "it is seen", timeout_s=MAX_AGE_S + 10)  # noqa: B023
                assert until_hit(pooler, client, text) == written
                followed.sql("update counted set value = value - 1")
                eventually(lambda: client.execute(text).fetchone() == expected, "it is seen", timeout_s=MAX_AGE_S + 10)  # noqa: B023
    finally:
        followed.sql("drop table if exists fresh cascade")


HIDDEN = {
    "do": "do $$begin alter table counted rename to gone; end$$",
    "function": "select renames()",
    "in an insert": "insert into others select renames()",
    "procedure": "call renames_too()",
    "explain": "explain analyze create table alice.counted as select 1 as id, -1 as value",
}
"""Statements that change definitions, and whose command tags do not tell."""


@pytest.mark.parametrize("how", HIDDEN)
@pytest.mark.parametrize("way", ["alone", "prepared", "block", "two phases"])
def test_definitions_that_a_client_changes_unseen(pooled, followed, how, way):  # noqa: F811
    """The client that did it is not given what was kept before, although nothing tells pgweir of the change until it asks for definitions again."""
    followed.sql("drop schema if exists alice cascade; create schema alice authorization alice; alter table counted owner to alice")
    followed.sql("create table others (a int); grant all on others to public")
    followed.sql("create function renames() returns int language plpgsql as 'begin alter table counted rename to gone; return 1; end'")
    followed.sql("create procedure renames_too() language plpgsql as 'begin alter table counted rename to gone; end'")
    ends = {"block": ["commit"], "two phases": ["prepare transaction 'unseen'", "commit prepared 'unseen'"]}.get(way, [])
    try:
        pooler = cached(pooled, query_cache_ddl_ms=60000)
        until_followed(pooler)
        with pooler.connect() as client:
            # A statement of the protocol's would go on with the table that it was prepared with.
            client.prepare_threshold = None
            until_hit(pooler, client, READ, [1])
            if ends:
                client.execute("begin")
            client.execute(HIDDEN[how], prepare=way == "prepared")
            for end in ends:
                client.execute(end)
            if how == "explain":
                assert client.execute(READ, [1]).fetchone() == (-1,)
            else:
                with pytest.raises(psycopg.errors.UndefinedTable):
                    client.execute(READ, [1])
    finally:
        followed.sql("drop function renames; drop procedure renames_too; drop table others; drop table if exists gone; drop schema alice cascade")


def test_a_reload_that_switches_what_ends_answers(pooled, followed):  # noqa: F811
    """From `wal` to `time` and back: no answer that was kept by the other rule outlives a change beyond the rule's promise."""
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.connect() as client:
        for turn in range(1, 3):
            until_hit(pooler, client, READ, [1])
            pooler.ini_tail = TIMED
            pooler.write_ini()
            pooler.reload()
            until_hit(pooler, client, READ, [1])
            pooler.ini_tail = RULES
            pooler.write_ini()
            followed.sql("update counted set value = %s where id = 1", [turn])
            pooler.reload()
            # What was kept by time is of no use to a rule that follows.
            assert client.execute(READ, [1]).fetchone() == (turn,)
            until_followed(pooler)
            assert until_hit(pooler, client, READ, [1]) == (turn,)


def test_off_and_on_again(pooled, followed):  # noqa: F811
    """RELOAD switches the cache off and on while sessions have different settings: their numbers begin again, and none gets the other's answer."""
    add_another_counted(followed)
    text = "select value from counted where id = 1"
    try:
        pooler = cached(pooled)
        until_followed(pooler)
        with pooler.connect() as plain, pooler.connect() as elsewhere:
            elsewhere.execute("set search_path = other")
            for first, second in ((plain, elsewhere), (elsewhere, plain), (plain, elsewhere)):
                until_hit(pooler, first, text)
                until_hit(pooler, second, text)
                for how in ("off", "on"):
                    pooler.write_ini(query_cache=how)
                    pooler.reload()
                eventually(lambda: row(pooler)["follow_state"] == "following", "it is followed again", timeout_s=30)
                followed.sql("update other.counted set value = value + 1")
                now = followed.sql("select value from other.counted")[0]
                eventually(lambda: elsewhere.execute(text).fetchone() == now, "it is seen", timeout_s=MAX_AGE_S + 10)  # noqa: B023
                assert until_hit(pooler, second, text) == (now if second is elsewhere else (0,))
                assert until_hit(pooler, first, text) == (now if first is elsewhere else (0,))
    finally:
        followed.sql("drop schema other cascade")


def test_a_successor_begins_with_nothing(pooled, followed):  # noqa: F811
    """-R: the new process gives no answer of the old one, keeps its clients, and follows by itself."""
    pooler = cached(functools.partial(with_pid_file, pooled))
    until_followed(pooler)
    with pooler.connect() as client:
        until_hit(pooler, client, READ, [1])
        over(successor(pooler))
        followed.sql("update counted set value = 6 where id = 1")
        assert client.execute(READ, [1]).fetchone() == (6,)
        eventually(lambda: row(pooler)["follow_state"] == "following", "it is followed", timeout_s=30)
        assert until_hit(pooler, client, READ, [1]) == (6,)
        followed.sql("update counted set value = 7 where id = 1")
        eventually(lambda: client.execute(READ, [1]).fetchone() == (7,), "it is seen", timeout_s=MAX_AGE_S + 10)
        eventually(lambda: len(followed.sql("select 1 from pg_replication_slots")) == 1, "the old slot is gone", timeout_s=20)


def test_no_room_for_answers(pooled, followed):  # noqa: F811
    """With the least memory each answer is right, whether or not it was kept."""
    pooler = cached(pooled, query_cache_bytes=16384, query_cache_max_answer=4096)
    until_followed(pooler)
    with pooler.connect() as client:
        for number in range(300):
            found = client.execute("select id, value, %s::int from counted where id = %s", [number, number % 8 + 1]).fetchone()
            assert found[0] == number % 8 + 1 and found[2] == number
            if number % 50 == 0:
                client.execute("update counted set value = value + 1")
            expected = number // 50 + 1
            assert client.execute(READ, [number % 8 + 1]).fetchone() == (expected,)


def test_serializable_transactions_are_left_to_postgresql(pooled, followed):  # noqa: F811
    """PostgreSQL must know of each read of a serializable transaction: such sessions are never answered."""
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.connect() as client:
        client.execute("set default_transaction_isolation = 'serializable'")
        before = hits(pooler)
        for _ in range(10):
            client.execute(READ, [1])
        assert hits(pooler) == before


def test_an_isolation_level_that_new_connections_get(pooled, followed):  # noqa: F811
    """After ALTER ROLE past the pooler its servers are new ones, whose transactions have one snapshot: these are not answered from the cache."""
    text = "select value from counted where id = 1"
    pooler = cached(pooled, query_cache_ddl_ms=2000)
    until_followed(pooler)
    try:
        with pooler.connect(autocommit=False) as client:

            def level():
                with client.transaction():
                    return client.execute("show transaction_isolation").fetchone()[0]

            def inside():
                before = hits(pooler)
                with client.transaction():
                    client.execute(text)
                return hits(pooler) - before

            eventually(inside, "the cache answers in a transaction", timeout_s=30)
            followed.sql("alter role alice set default_transaction_isolation = 'repeatable read'")
            eventually(lambda: level() == "repeatable read", "a new server answers", timeout_s=20)
            with pooler.connect() as alone:
                until_hit(pooler, alone, text)
            assert sum(inside() for _ in range(20)) == 0
    finally:
        followed.sql("alter role alice reset default_transaction_isolation")


@pytest.mark.parametrize("portal, max_rows", [("c", 0), ("c", 9), ("", 9)])
def test_a_portal_that_a_transaction_uses_again(pooled, followed, portal, max_rows):  # noqa: F811
    """A portal with a name, or that need not be at its end, stays until the transaction is over: the cache does not answer its statement there."""
    text = "select value from counted where id = 1"
    pooler = cached(pooled)
    until_followed(pooler)
    with pooler.raw() as client:
        asks = parse("", text) + bind(portal, "") + execute(portal, max_rows) + SYNC

        def is_hit():
            before = hits(pooler)
            client.send(asks)
            assert client.until("Z").rows == [["0"]]
            return hits(pooler) > before

        for _ in range(3):
            # Outside of a transaction the portal ends with its group.
            eventually(is_hit, "the cache answers", timeout_s=30)
            client.send(query("begin"), asks)
            assert client.until("Z").commands == ["BEGIN"]
            assert client.until("Z").rows == [["0"]]
            client.send(execute(portal, max_rows), SYNC)
            assert client.until("Z").commands == ["SELECT 0"]
            assert client.query("rollback").status == "I"

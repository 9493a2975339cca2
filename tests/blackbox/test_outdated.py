"""\"cached plan must not change result type": tables that change, past the pooler, under statements that were prepared before.

psycopg asks for the columns with every execution, as all that build on libpq do: its statements go on as if nothing had happened.
"""

import threading

import psycopg
import pytest

from harness.wire import SYNC, bind, describe, execute, parse, query

pytestmark = [pytest.mark.needs("prepared statements"), pytest.mark.needs("changed results noticed")]

SQL = "select * from outdated where a = %s"
INT8, INT4, TEXT = bytes([0, 0, 0, 20]), bytes([0, 0, 0, 23]), bytes([0, 0, 0, 25])


@pytest.fixture
def table(pg):
    """A function that changes the table directly on PostgreSQL; it begins with one column and one row."""
    pg.sql("drop table if exists outdated")
    pg.sql("create table outdated (a int)")
    pg.sql("insert into outdated values (1)")
    pg.sql("grant all on outdated to public")
    return lambda change: pg.sql(f"alter table outdated {change}")


@pytest.mark.parametrize("defer", ["packet", "server"])
@pytest.mark.parametrize("block", [False, True])
def test_psycopg_never_meets_it(pooled, table, defer, block):
    """By itself and as the first statement of a transaction: each client, each change; on a connection of its own it is an error."""
    pooler = pooled(default_pool_size=1, defer_begin=defer)
    clients = [pooler.connect(prepare_threshold=0, autocommit=not block) for _ in range(3)]

    def columns(client):
        cursor = client.execute(SQL, (1,))
        assert len(cursor.fetchall()) == 1
        names = [column.name for column in cursor.description]
        if block:
            client.commit()
        return names

    for client in clients:
        assert columns(client) == ["a"]
    known = ["a"]
    for change in ("b", "c", "d"):
        table(f"add {change} int")
        known.append(change)
        for _ in range(2):
            assert [columns(client) for client in clients] == [known] * 3
    table("drop b")
    assert [columns(client) for client in clients] == [["a", "c", "d"]] * 3
    for client in clients:
        client.close()


def test_on_a_connection_of_its_own_it_is_an_error(pg, table):
    """What the other tests of this file would meet without a pooler."""
    with pg.connect(user="alice", prepare_threshold=0) as client:
        client.execute(SQL, (1,))
        table("add b int")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            client.execute(SQL, (1,))


def test_values_keep_their_meaning(pooled, table):
    """The type of a column changes under a client that sends its values in binary."""
    pooler = pooled(default_pool_size=1)
    with pooler.connect(prepare_threshold=0) as client:
        for kind, value in (("int", 1), ("bigint", 1), ("float4", 1.0), ("numeric", 1), ("int", 1)):
            table(f"alter a type {kind}")
            for binary in (False, True):
                row = client.execute("select * from outdated where a = %b", (1,), binary=binary).fetchone()
                assert row == (value,), (kind, binary)


def test_a_block_that_has_begun_is_not_begun_again(pooled, table):
    """Behind a statement that was answered the error is the client's: PostgreSQL has given up the transaction."""
    pooler = pooled(default_pool_size=1)
    with pooler.connect(prepare_threshold=0, autocommit=False) as client:
        client.execute(SQL, (1,))
        client.commit()
        table("add b int")
        client.execute("select 1", prepare=False)
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            client.execute(SQL, (1,))
        client.rollback()
        assert client.execute(SQL, (1,)).fetchone() == (1, None)
        client.rollback()


def test_a_client_that_does_not_ask_for_columns_is_told(pooled, table):
    """It would take the new columns for the old ones."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        session.send(parse("s", "select * from outdated") + SYNC)
        session.until("Z")
        session.send(bind("", "s") + execute() + SYNC)
        assert session.until("Z").rows == [["1"]]
        table("add b int")
        session.send(bind("", "s") + execute() + SYNC)
        assert session.until("Z").error["C"] == "0A000"
        session.send(bind("", "s") + describe("P", "") + execute() + SYNC)
        answer = session.until("Z")
        assert (answer.columns, answer.rows) == (["a", "b"], [["1", None]])


@pytest.mark.parametrize("block", [False, True])
def test_a_column_of_another_type_hinders_no_client(pooled, table, block):
    """The text was prepared when the column was text, and `a = $1` means nothing any more for a parameter of that type."""
    pooler = pooled(default_pool_size=1)
    table("alter a type text using a::text")

    def found(client):
        try:
            return client.execute("select 1 from outdated where a = %s", ("1",)).fetchone()
        finally:
            client.rollback()

    with pooler.connect(prepare_threshold=0, autocommit=not block) as early:
        assert found(early) == (1,)
        table("alter a type int using a::int")
        for _ in range(2):
            with pooler.connect(prepare_threshold=0, autocommit=not block) as late:
                assert [found(late), found(late), found(early)] == [(1,)] * 3
        table("drop a")
        for client in (early, late := pooler.connect(prepare_threshold=0, autocommit=not block), early, late):
            with pytest.raises(psycopg.errors.UndefinedColumn):
                found(client)
        late.close()
        table("add a text default '1'")
        assert found(early) == (1,)


def test_a_text_with_another_meaning_is_described_to_who_prepares_it(pooled, table):
    """As asyncpg and pgx do it: they ask for the types of what they have prepared, and send their values by them."""
    pooler = pooled(default_pool_size=1)
    table("alter a type text using a::text")
    sql = "select 1 from outdated where a = $1"
    with pooler.raw() as early, pooler.raw() as late:
        assert parameter_types(early, "s", sql) == b"\0\1" + TEXT
        table("alter a type int using a::int")
        assert parameter_types(late, "t", sql) == b"\0\1" + INT4
        # A client that was told of text is told, as on a direct connection.
        early.send(bind("", "s", [b"1"]) + execute() + SYNC)
        assert early.until("Z").error["C"] == "42883"
        assert parameter_types(early, "u", sql) == b"\0\1" + INT4


def test_a_column_that_was_made_wider_is_noticed_with_the_catalog(pooled, table):
    """No error tells of it. pgweir reads the catalog every ten minutes, and after a RELOAD."""
    pooler = pooled(default_pool_size=1)
    sql = "select 1 from outdated where a = $1"
    with pooler.raw() as early:
        assert parameter_types(early, "s", sql) == b"\0\1" + INT4
        table("alter a type bigint")
        with pooler.raw() as late:
            assert parameter_types(late, "t", sql) == b"\0\1" + INT4, "not noticed yet"
        pooler.reload()
        # The catalog is read behind the first statement, and the second one waits for it.
        for _ in range(2):
            early.send(query("select 1"))
            early.until("Z")
        with pooler.raw() as late:
            assert parameter_types(late, "t", sql) == b"\0\1" + INT8
        assert parameter_types(early, "u", sql) == b"\0\1" + INT8


@pytest.mark.parametrize("block", [False, True])
def test_under_load(pooled, table, block):
    """Many clients on few servers, multiplexed where they may, while the table changes twenty times: no client is told."""
    pooler = pooled(default_pool_size=2)
    faults, done, rows = [], threading.Event(), []

    def work():
        with pooler.connect(prepare_threshold=0, autocommit=not block) as client:
            while not done.is_set():
                try:
                    rows.append(client.execute(SQL, (1,)).fetchone()[0])
                    if block:
                        client.commit()
                except psycopg.Error as fault:
                    faults.append(repr(fault))
                    return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(20):
        before = len(rows)
        table(f"add c{number} int")
        while len(rows) < before + 100 and not faults:
            done.wait(0.01)
    done.set()
    for thread in threads:
        thread.join()
    assert not faults and set(rows) == {1}


def parameter_types(session, name, sql):
    """Prepares a text under this name; the types of its parameters."""
    session.send(parse(name, sql) + describe("S", name) + SYNC)
    answer = session.until("Z")
    assert not answer.errors, answer.errors
    return answer.of("t")[0].body


def test_a_client_that_comes_after_a_table_was_recreated(pooled, pg):
    """Dropped and created with a wider key: a statement that is prepared then takes the wider type. A temporary table is no reason."""
    pooler = pooled(default_pool_size=1)
    pg.sql("drop table if exists anew")
    pg.sql("create schema if not exists anew")
    pg.sql("grant all on schema anew to public")
    sql = "select v from anew.t where id = $1"
    with pooler.raw() as owner, pooler.raw() as late:
        owner.query("drop table if exists anew.t; create table anew.t (id int, v text)")
        narrow = parameter_types(owner, "s", sql)
        owner.query("create temp table t (n int)")
        owner.query("drop table t")
        parses = pooler.show("STATS", database="app")[0]["total_server_parse_count"]
        assert parameter_types(late, "a", sql) == narrow
        assert pooler.show("STATS", database="app")[0]["total_server_parse_count"] == parses
        owner.query("drop table anew.t")
        owner.query("create table anew.t (id bigint, v text)")
        assert parameter_types(late, "b", sql) != narrow
        late.send(bind("", "b", ["3000000000"]) + describe("P", "") + execute() + SYNC)
        assert not late.until("Z").errors


def test_a_type_that_was_recreated(pooled, pg):
    """Past the pooler: neither a client that comes later nor one that prepared before, and asks for the columns, is told of a type that is gone."""
    pooler = pooled(default_pool_size=1)
    sql = "select $1::made_anew"
    pg.sql("drop type if exists made_anew")
    pg.sql("create type made_anew as enum ('a')")
    with pooler.raw() as early, pooler.raw() as late:
        parameter_types(early, "s", sql)
        pg.sql("drop type made_anew")
        pg.sql("create type made_anew as enum ('b')")
        parameter_types(late, "t", sql)
        for session, name in ((late, "t"), (early, "s")):
            session.send(bind("", name, ["b"]) + describe("P", "") + execute() + SYNC)
            assert session.until("Z").rows == [["b"]]


def test_a_parameter_whose_type_changed_past_the_pooler(pooled, pg):
    """Nothing but a value that does not fit tells of it: a client that prepares the text from then on has it as it is now."""
    pooler = pooled(default_pool_size=1)
    pg.sql("drop table if exists wider")
    pg.sql("create table wider (id int, v text)")
    pg.sql("grant all on wider to public")
    sql, run = "select v from wider where id = $1", describe("P", "") + execute() + SYNC
    with pooler.raw() as early, pooler.raw() as late:
        narrow = parameter_types(early, "s", sql)
        pg.sql("alter table wider alter id type bigint")
        early.send(bind("", "s", ["3000000000"]) + run)
        assert early.until("Z").error["C"] == "22003", "as on a connection of its own"
        assert parameter_types(late, "t", sql) != narrow
        late.send(bind("", "t", ["3000000000"]) + run)
        assert not late.until("Z").errors

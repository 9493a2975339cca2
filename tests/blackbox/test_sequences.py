"""`currval` and `lastval` in a later transaction than the one that drew the value, as PHP's lastInsertId asks for it."""

import threading

import psycopg
import pytest

from harness.pooler import kind

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not look after sequences")


@pytest.fixture
def orders(pg, request):
    """A table of this test's own with a serial column."""
    name = "orders_" + request.node.name.split("[")[0].removeprefix("test_")[:40]
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as admin:
        admin.execute(f"drop table if exists {name}; create table {name} (id serial primary key, who text)")
        admin.execute(f"grant all on {name}, {name}_id_seq to alice")
    return name


def insert(session, table, who):
    """Inserts a row; which id it got is found out by a client that looks at the table."""
    session.query(f"insert into {table} (who) values ('{who}')")


def test_a_client_gets_the_value_it_drew(pooled, orders):
    """In the next transaction, on a pool with room: nobody else needs the server meanwhile."""
    pooler = pooled(default_pool_size=2, sequence_linger_ms=10_000)
    with pooler.raw() as first, pooler.raw() as second:
        for text in ("begin", "select 1", "rollback"):
            for session in (first, second):
                session.query(text)
    with pooler.connect(prepare_threshold=None) as one, pooler.connect() as two:
        one.autocommit = two.autocommit = True
        for turn in range(10):
            one.execute(f"insert into {orders} (who) values (%s)", (f"one{turn}",))
            two.execute("select %s::int", (turn,))
            mine = one.execute("select lastval()").fetchone()[0]
            assert one.execute(f"select currval('{orders}_id_seq')").fetchone()[0] == mine
            assert two.execute(f"select who from {orders} where id = %s", (mine,)).fetchone() == (f"one{turn}",)


@pytest.mark.parametrize("affinity", ["linger", "pin"])
def test_nobody_is_told_a_strangers_value(pooled, orders, affinity):
    """Six clients on two servers insert and ask, in transactions and without: their own value, or SQLSTATE 55000."""
    pooler = pooled(default_pool_size=2 if affinity == "linger" else 8, sequence_affinity=affinity, sequence_linger_ms=20)
    faults, right, missed = [], [], []

    def work(who):
        try:
            with pooler.raw() as session:
                for turn in range(60):
                    name = f"{who}-{turn}"
                    block = turn % 4 == 3
                    if block:
                        session.query("begin")
                    insert(session, orders, name)
                    asked = session.query("select lastval()")
                    if asked.of("E"):
                        assert asked.error["C"] == "55000", asked.error
                        assert not block, "inside of one transaction it is right by nature"
                        missed.append(name)
                        continue
                    if block:
                        session.query("commit")
                    assert session.value(f"select who from {orders} where id = {asked.rows[0][0]}") == name
                    right.append(name)
        except Exception as fault:  # noqa: BLE001  # reported below
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    assert len(right) + len(missed) == 360
    assert not missed or affinity == "linger"
    assert len(right) >= 90, "at least those in transactions"


def test_what_others_drew_is_not_there(pooled, orders):
    """A client that drew nothing asks, on a server where others did: PostgreSQL's error, with a hint; in a transaction, too."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        insert(one, orders, "one")
        for text in ("select lastval()", f"select currval('{orders}_id_seq')"):
            told = two.query(text).error
            assert told["C"] == "55000" and "sequence_affinity" in told["H"], told
            insert(one, orders, "one")
        two.query("begin")
        two.query("select 1")
        assert two.query("select lastval()").error["C"] == "55000"
        two.query("rollback")
        assert two.value("select 7") == "7"
    with pooler.connect() as three:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            three.execute("select lastval() + %s", (0,), prepare=True)
        three.rollback()
        assert three.execute("select %s::int", (8,)).fetchone() == (8,)


def test_a_known_asker_is_waited_for(pooled, orders):
    """With one server and others who want it: once it is known that clients like this one ask, they get their value."""
    pooler = pooled(default_pool_size=1, sequence_linger_ms=10_000)
    stop = threading.Event()

    def hurry():
        with pooler.raw() as other:
            while not stop.is_set():
                other.query("select 1")

    with pooler.raw(application_name="shop") as shop:
        shop.query("select lastval()")
        thread = threading.Thread(target=hurry)
        thread.start()
        try:
            for turn in range(20):
                insert(shop, orders, f"shop{turn}")
                mine = shop.value("select lastval()")
                assert shop.value(f"select who from {orders} where id = {mine}") == f"shop{turn}"
        finally:
            stop.set()
            thread.join()


def test_a_pin_for_sequences_is_shown(pooled, orders):
    """`sequence_affinity = pin`: who drew keeps its server, and SHOW CLIENTS says why."""
    pooler = pooled(default_pool_size=3, sequence_affinity="pin")
    with pooler.raw() as one:
        insert(one, orders, "one")
        assert [row["pinned"] for row in pooler.show("clients") if row["database"] == "app"] == ["sequences"]
        one.query("discard all")
        assert one.value("select 1") == "1"
        assert [row["pinned"] for row in pooler.show("clients") if row["database"] == "app"] == [""]

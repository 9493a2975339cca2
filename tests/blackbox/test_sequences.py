"""`currval` and `lastval` in a later transaction than the one that drew the value, as PHP's lastInsertId asks for it."""

import threading

import psycopg
import pytest

from harness.pooler import kind
from harness.wire import SYNC, bind, execute, group, parse

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


def ask_extended(session, text):
    """As `query`, in the extended protocol."""
    session.send(group("", text))
    return session.until("Z")


def test_a_client_gets_the_value_it_drew(pooled, orders):
    """In the next transaction, on a pool with room: no other client needs the server meanwhile."""
    pooler = pooled(default_pool_size=2, sequence_affinity_ms=10_000)
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


@pytest.mark.parametrize("affinity", ["wait", "pin"])
def test_no_client_gets_another_clients_value(pooled, orders, affinity):
    """Six clients on two servers insert and ask, in transactions and without: their own value, or SQLSTATE 55000."""
    pooler = pooled(default_pool_size=2 if affinity == "wait" else 8, sequence_affinity=affinity, sequence_affinity_ms=20)
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
    assert not missed or affinity == "wait"
    assert len(right) >= 90, "at least those in transactions"


def test_what_other_clients_drew_is_not_there(pooled, orders):
    """A client that drew nothing asks, on a server where other clients did: PostgreSQL's error, with a hint; in a transaction, too."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        insert(one, orders, "one")
        for text in ("select lastval()", f"select currval('{orders}_id_seq')"):
            told = two.query(text).error
            assert told["C"] == "55000" and "sequence_affinity" in told["H"], told
            insert(one, orders, "one")
        # The same SQLSTATE for something else.
        two.send(parse("", "begin") + bind("", "") + execute(max_rows=1) + execute() + SYNC)
        told = two.until("Z").error
        assert told["C"] == "55000" and "H" not in told, told
        two.query("rollback")
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
    """With one server and other clients that want it: once it is known that clients like this one ask, they get their value."""
    pooler = pooled(default_pool_size=1, sequence_affinity_ms=10_000)
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
    """`sequence_affinity = pin`: a client that drew keeps its server, and SHOW CLIENTS says why."""
    pooler = pooled(default_pool_size=3, sequence_affinity="pin")
    with pooler.raw() as one:
        insert(one, orders, "one")
        assert [row["pinned"] for row in pooler.show("clients_extended") if row["database"] == "app"] == ["sequences"]
        one.query("discard all")
        assert one.value("select 1") == "1"
        assert [row["pinned"] for row in pooler.show("clients_extended") if row["database"] == "app"] == [""]


LATE = {
    "lastval after an insert that drew nothing": (["insert into {t}_plain values (1)", "select lastval()"], None),
    "lastval after an insert": (["insert into {t} (who) values ('me')", "select lastval()"], "own"),
    "lastval after an insert that was rolled back": (
        ["savepoint a", "insert into {t} (who) values ('me')", "rollback to a", "select lastval()"], "own",
    ),
    "lastval after a value that was set": (["select setval('{t}_other', 7)", "select lastval()"], None),
    "currval of the same sequence": (["insert into {t} (who) values ('me')", "select currval('{t}_id_seq')"], "own"),
    "currval by its column": (
        ["insert into {t} (who) values ('me')", "select currval(pg_get_serial_sequence('{t}', 'id'))"], "own",
    ),
    "currval of another sequence": (["insert into {t} (who) values ('me')", "select currval('{t}_other')"], None),
    "currval of both": (
        ["select nextval('{t}_other')", "insert into {t} (who) values ('me')",
         "select currval('{t}_id_seq') + 0 * currval('{t}_other')"], "own",
    ),
    "in a block": (["insert into {t}_plain values (1)", "do $$ begin perform lastval(); end $$"], None),
}  # fmt: skip


@pytest.fixture
def sequences(pg, orders):
    """`orders`, with a table that has no serial column, and another sequence."""
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as admin:
        admin.execute(f"drop table if exists {orders}_plain; create table {orders}_plain (a int)")
        admin.execute(f"drop sequence if exists {orders}_other; create sequence {orders}_other start 1000")
        admin.execute(f"grant all on {orders}_plain, {orders}_other to alice")
    return orders


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
@pytest.mark.parametrize("name", LATE)
def test_a_client_that_asks_late_gets_its_own_value_or_none(pooled, pg, sequences, name, extended):
    """A client that drew often and never asked does so for the first time: what it drew in this transaction, or the error.

    All on one server where a stranger has drawn from all sequences between.
    """
    script, expected = LATE[name]
    pooler = pooled(default_pool_size=1)

    def stranger(session):
        session.query(f"select nextval('{sequences}_other'); insert into {sequences} (who) values ('stranger')")

    with pooler.raw() as client, pooler.raw() as other:
        for _ in range(5):
            client.query(f"insert into {sequences} (who) values ('before')")
            stranger(other)
        client.query("begin")
        for text in script[:-1]:
            assert not client.query(text.format(t=sequences)).of("E"), text
        question = script[-1].format(t=sequences)
        told = ask_extended(client, question) if extended else client.query(question)
        if expected == "own":
            with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app") as admin:
                last = admin.execute(f"select last_value from {sequences}_id_seq").fetchone()[0]
            assert told.rows == [[str(last)]], told
        else:
            assert told.error["C"] == "55000" and "sequence_affinity" in told.error["H"], told
        client.query("rollback")
        assert client.value("select 1") == "1"


def test_a_first_question_of_any_form_is_answered_in_its_transaction(pooled, sequences):
    """As PDO asks: `SELECT CURRVAL($1)`, in the first transaction that draws, on a server where a stranger has drawn."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as other:
        insert(other, sequences, "stranger")
        for number in range(3):
            with pooler.connect(application_name=f"shop{number}", prepare_threshold=None) as session:
                session.execute("insert into " + sequences + " (who) values (%s)", (f"mine{number}",))
                mine = session.execute("select currval(%s::text::regclass)", (f"{sequences}_id_seq",)).fetchone()[0]
                whose = session.execute(f"select who from {sequences} where id = %s", (mine,)).fetchone()
                assert whose == (f"mine{number}",)
            insert(other, sequences, "stranger")


def test_a_procedure_that_commits_is_not_in_the_way(pooled, pg, sequences):
    """Nothing is put into the transaction of a CALL, whatever it draws."""
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as admin:
        admin.execute(
            f"create or replace procedure {sequences}_p() language plpgsql as "
            f"$$ begin insert into {sequences} (who) values ('p'); commit; insert into {sequences}_plain values (1); end $$"
        )
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as client, pooler.raw() as other:
        insert(other, sequences, "stranger")
        for _ in range(5):
            assert not ask_extended(client, f"call {sequences}_p()").of("E")
            assert not client.query(f"call {sequences}_p()").of("E")
            insert(other, sequences, "stranger")


def test_a_function_that_asks_is_known_by_the_catalog(pooled, pg, sequences):
    """No word of the statement tells; its function's body does, in every language of bodies."""
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as admin:
        admin.execute(f"create or replace function {sequences}_f() returns bigint language plpgsql as $$ begin return lastval(); end $$")
        admin.execute(f"create or replace function {sequences}_g() returns bigint return lastval()")
    pooler = pooled(default_pool_size=1, session_audit_sample=1)
    with pooler.raw() as first, pooler.raw() as stranger:
        assert first.value("select 1") == "1"
        for number, text in enumerate((f"select {sequences}_f()", f"select {sequences}_G()")):
            for how in ("simple", "extended", "prepared"):
                insert(stranger, sequences, "stranger")
                with pooler.raw(application_name=f"{how}{number}") as asker:
                    if how == "simple":
                        told = asker.query(text)
                    elif how == "extended":
                        told = ask_extended(asker, text)
                    else:
                        asker.send(group("named", text))
                        told = asker.until("Z")
                    assert told.error["C"] == "55000", (how, text)
                    asker.query("begin")
                    insert(asker, sequences, f"{how}{number}")
                    mine = asker.value(text)
                    asker.query("commit")
                    assert asker.value(f"select who from {sequences} where id = {mine}") == f"{how}{number}"
        admin = psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True)
        admin.execute(f"drop function {sequences}_f; drop function {sequences}_g")
        admin.close()


def test_other_versions_know_what_is_asked_of_them(poolers, pg_other):
    """Locks, the catalog and `pg_prepared_statements` of each version: no error but the one that is due."""
    with psycopg.connect(host="127.0.0.1", port=pg_other.port, user="postgres", dbname="app", autocommit=True) as admin:
        admin.execute("drop table if exists versions_t; create table versions_t (id serial primary key)")
        admin.execute("grant all on versions_t, versions_t_id_seq to alice")
        admin.execute("create or replace function versions_f() returns bigint language sql as 'select lastval()'")
    pooler = poolers({"app": pg_other.at()}, default_pool_size=1, session_audit_sample=1)
    with pooler.raw() as client, pooler.raw() as stranger:
        for _ in range(5):
            client.query("insert into versions_t default values")
            stranger.query("insert into versions_t default values")
        client.query("begin")
        client.query("insert into versions_t default values")
        mine = client.value("select lastval()")
        assert client.value("select currval('versions_t_id_seq')") == mine
        client.query("rollback")
        stranger.query("insert into versions_t default values")
        assert client.query("select versions_f()").error["C"] == "55000"
        client.send(group("named", "select 1"))
        client.until("Z")
        assert client.value("select name from pg_prepared_statements") == "named"
        assert client.query("deallocate named").commands == ["DEALLOCATE"]
    assert "does not tell" not in pooler.output()

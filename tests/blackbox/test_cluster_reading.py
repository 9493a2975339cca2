"""route=auto with real streaming replication: transactions that read at a standby."""

import psycopg
import pytest

from harness import wire
from harness.machine import eventually

from test_cluster_auto import SLOW, marked, ran_on, second_tries, shop  # noqa: F401: a fixture
from test_cluster_reads import reading  # noqa: F401: a fixture
from test_clusters import nodes  # noqa: F401: a fixture


def port_of(session):
    """The node that a statement with a hint that says nothing in a transaction runs on."""
    return session.value("show port")


@pytest.mark.parametrize("defer_begin", ["packet", "server"])
def test_read_only_transactions_run_on_the_standby(shop, defer_begin):  # noqa: F811
    """BEGIN READ ONLY and its forms, with a first statement that certainly reads or sets something for the transaction."""
    two, pooler = shop(defer_begin=defer_begin)
    primary, standby = (str(node.port) for node in two.all)
    with pooler.raw() as session:
        session.query("select 1")
        for begin, first, expected in [
            ("begin read only", "select a from shop", standby),
            ("start transaction isolation level repeatable read, read only", "select a from shop", standby),
            ("begin read only", "set local app.tenant = '1'", standby),
            ("begin read only", "select set_config('app.tenant', '1', true)", standby),
            ("begin read only isolation level serializable deferrable", "select a from shop", primary),
            ("begin", "select a from shop", primary),
            ("begin read only", "select locks()", primary),
            ("begin read only", "select last_value from shop_numbers", primary),
            ("begin read only /* pgweir: primary */", "select a from shop", primary),
        ]:
            assert not session.query(begin).errors
            answer = session.query(first)
            assert not answer.errors, (begin, first, answer)
            assert port_of(session) == expected, (begin, first)
            assert not session.query("commit").errors
        assert not session.query("insert into shop values (4)").errors
        (explained,) = pooler.admin("SHOW ROUTE app 'begin read only'")
        assert explained["runs_on"] == "standby"


def test_a_session_that_is_read_only(shop):  # noqa: F811
    """default_transaction_read_only makes each BEGIN one."""
    two, pooler = shop()
    with pooler.raw() as session:
        session.query("select 1")
        session.query("set default_transaction_read_only = on")
        session.query("begin")
        assert not session.query("select a from shop").errors
        assert port_of(session) == str(two.all[1].port)
        session.query("commit")
        session.query("begin read write")
        assert not session.query("insert into shop values (5)").errors
        session.query("commit")


MANY = "select set_config('many.n' || g, 'x', false) from generate_series(1, 3) g"
"""It sets custom settings whose names pgweir cannot read: a client that has run it keeps the server."""


def test_settings_of_unknown_names_keep_no_client_at_a_standby(shop):  # noqa: F811
    """They are refused there. In a failed transaction they have no effect, and the client goes on at the primary after its end."""
    two, pooler = shop({"begin_undeclared": "first"})
    standby = str(two.all[1].port)
    with pooler.raw() as session:
        session.query("select 1")
        session.query("begin read only")
        assert not session.query("select a from shop").errors
        assert port_of(session) == standby
        refused = session.query(MANY)
        assert refused.error["C"] == "0A000" and "session_state" in refused.error["M"], refused
        session.query("rollback")
        assert not session.query("insert into shop values (6)").errors
        session.query("begin")
        assert not session.query("select a from shop").errors
        assert session.query("select count(*) from nothing").error["C"] == "42P01"
        assert session.query(MANY).error["C"] == "25P02"
        session.query("rollback")
        answer = session.query("insert into shop values (7)")
        assert not answer.errors, answer


def test_what_a_standby_does_otherwise_is_refused(shop):  # noqa: F811
    """0A000 with a hint, in each protocol; and the transaction is a failed one, as after any error."""
    two, pooler = shop()
    standby = two.all[1]
    with pooler.raw() as session:
        session.query("select 1")
        for text in [
            "select pg_advisory_lock(77)",
            "select pg_try_advisory_xact_lock(77)",
            "select pg_export_snapshot()",
            "select last_value from shop_numbers",
            "select locks()",
            "select a from locking_view",
            "select noted(5)",
            "do 'begin end'",
            "declare c cursor with hold for select 1",
            "commit; insert into shop values (6)",
        ]:
            for send in (wire.query, lambda text: wire.group("", text)):
                if ";" in text and send is not wire.query:
                    continue
                session.query("begin read only")
                assert not session.query("select a from shop").errors
                session.send(send(text))
                answer = session.until()
                assert answer.error["C"] == "0A000" and "pgweir: primary" in answer.error["H"], (text, answer)
                assert session.query("select 1").error["C"] == "25P02"
                assert not session.query("rollback").errors
        assert standby.sql("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]
        # The hint helps.
        session.query("begin read only /* pgweir: primary */")
        assert not session.query("select pg_try_advisory_xact_lock(77)").errors
        session.query("commit")
        assert session.value("select count(*) from shop where a > 4") == "0"


def test_what_postgresql_refuses_is_shown(shop):  # noqa: F811
    """NOTIFY and temporary tables are what the primary would have allowed."""
    _two, pooler = shop()
    with pooler.raw() as session:
        session.query("select 1")
        for text in ["insert into shop values (1)", "notify here", "create temp table made (a int)", "select nextval('shop_numbers')"]:
            session.query("begin read only")
            session.query("select a from shop")
            assert session.query(text).error["C"] == "25006", text
            session.query("rollback")


def test_a_first_statement_that_fails_runs_on_the_primary(shop):  # noqa: F811
    """With its BEGIN, and unseen: the table has not arrived, or the statement conflicts with recovery."""
    two, pooler = shop({"causal_reads": "off"})
    primary, standby = two.all
    with pooler.raw() as session:
        session.query("select 1")
        standby.sql("select pg_wal_replay_pause()")
        primary.sql("create table fresh (a int); insert into fresh values (7); grant all on fresh to public")
        for send in (wire.query, lambda text: wire.group("", text), lambda text: wire.group("named", text)):
            session.query("begin isolation level repeatable read read only")
            session.send(send("select a from fresh"))
            answer = session.until()
            assert not answer.errors and answer.rows == [["7"]], answer
            assert port_of(session) == str(primary.port)
            assert session.value("show transaction_isolation") == "repeatable read"
            assert session.query("insert into fresh values (8)").error["C"] == "25006", "it is read-only there, too"
            session.query("rollback")
        assert session.query("begin read only").errors == []
        assert session.query("select a from nowhere").error["C"] == "42P01", "the primary's word is the client's"
        session.query("rollback")
        assert second_tries(pooler) >= 3, "the standby was asked first"
        standby.sql("select pg_wal_replay_resume()")
    eventually(lambda: standby.sql("select to_regclass('fresh') is not null") == [(True,)], "it has arrived")
    with standby.configured(max_standby_streaming_delay="0"), pooler.raw() as session:
        session.query("select 1")
        session.query("begin read only")
        text, mark = marked(SLOW)
        ends = standby.when_running(mark, lambda: primary.sql("alter table shop add column b int"))
        answer = session.query(text)
        ends.join(20)
        assert not answer.errors and port_of(session) == str(primary.port), answer
        session.query("commit")


def test_a_standby_that_ends_later_rolls_back(shop):  # noqa: F811
    """40001, and the session goes on."""
    two, pooler = shop()
    with pooler.raw() as session:
        session.query("select 1")
        session.query("begin read only")
        assert not session.query("select a from shop").errors
        two.all[1].sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'alice'")
        assert session.query("select a from shop").error["C"] == "40001"
        assert not session.query("rollback").errors
        assert session.value("select 5") == "5"


@pytest.mark.parametrize("prepare_threshold", [None, 0])
def test_drivers_with_read_only_connections(shop, prepare_threshold):  # noqa: F811
    """psycopg's read_only: the standby reads, and the next transaction writes on the primary."""
    two, pooler = shop()
    with psycopg.connect(pooler.dsn(), prepare_threshold=prepare_threshold) as session:
        session.execute("select 1")
        session.rollback()
        text, mark = marked("select a from shop where a = %s")
        for turn in range(3):
            session.read_only = True
            assert session.execute(text, (1,)).fetchall() == [(1,)]
            # A statement that is prepared and run in one group is prepared on the primary.
            if prepare_threshold is None or turn > 0:
                assert mark in " ".join(backend[3] for backend in two.all[1].backends(user="alice"))
                assert session.execute("show port").fetchone() == (str(two.all[1].port),)
            session.commit()
            session.read_only = False
            session.execute("insert into shop values (%s)", (9,))
            session.commit()
    assert two.primary.sql("select count(*) from shop where a = 9") == [(3,)]


@pytest.mark.parametrize("defer_begin", ["packet", "server"])
def test_transactions_that_do_not_say_what_they_do(shop, defer_begin):  # noqa: F811
    """They read at the standby until they do something else, and the client sees one transaction."""
    two, pooler = shop(defer_begin=defer_begin)
    primary, standby = (node.port for node in two.all)
    with pooler.raw() as session:
        session.query("select 1")
        for number, text in enumerate(["insert into shop values ({})", "set local app.tenant = '{}'", "savepoint s{}", "select locks() where {0} = {0}"], 50):
            session.query("begin")
            read, mark = marked("select a from shop")
            assert not session.query(read).errors
            assert ran_on(two.all, mark) == [standby], text
            changed, mark = marked(text.format(number))
            answer = session.query(changed)
            assert not answer.errors and answer.status == "T", answer
            assert standby not in ran_on(two.all, mark), text
            if "insert" in text:
                assert session.value(f"select count(*) from shop where a = {number}") == "1", "its own change"
            assert port_of(session) == str(primary)
            assert not session.query("commit").errors
        assert two.primary.sql("select count(*) from shop where a = 50") == [(1,)]
        for end in ["commit", "rollback"]:
            session.query("begin")
            read, mark = marked("select a from shop")
            assert not session.query(read).errors
            assert ran_on(two.all, mark) == [standby]
            assert session.query(end).status == "I"
        session.query("begin")
        assert session.query("select a / 0 from shop").error["C"] == "22012"
        assert session.query("insert into shop values (60)").error["C"] == "25P02"
        assert session.query("rollback").status == "I"
        (explained,) = pooler.admin("SHOW ROUTE app 'begin'")
        assert explained["runs_on"] == "standby"


@pytest.mark.parametrize("kept_by", ["the database", "the user", "connect_query", "the session", "begin_undeclared"])
def test_transactions_of_another_level_stay_at_the_primary(shop, kept_by):  # noqa: F811
    """Each statement of a REPEATABLE READ transaction sees what the first one saw: it cannot go from node to node."""
    level = "default_transaction_isolation = 'repeatable read'"
    two, pooler = shop(
        options={"begin_undeclared": "primary"} if kept_by == "begin_undeclared" else None,
        before={"the database": f"alter database app set {level}", "the user": f"alter user alice set {level}"}.get(kept_by, ""),
        app='connect_query=\'set default_transaction_isolation = "repeatable read"\'' if kept_by == "connect_query" else "",
    )
    primary = two.all[0].port
    with pooler.raw() as session:
        session.query("select 1")
        if kept_by == "the session":
            session.query(f"set {level}")
        for number in range(80, 83):
            session.query("begin")
            read, mark = marked("select count(*) from shop where a between 80 and 89")
            first = session.value(read)
            assert ran_on(two.all, mark) == [primary], kept_by
            two.primary.sql(f"insert into shop values ({number})")
            second = session.value("select count(*) from shop where a between 80 and 89")
            assert (first == second) == (kept_by != "begin_undeclared")
            assert not session.query("commit").errors
        (explained,) = pooler.admin("SHOW ROUTE app 'begin'")
        if kept_by != "the session" and kept_by != "connect_query":
            assert explained["runs_on"] == "primary", explained


@pytest.mark.parametrize("prepare_threshold", [None, 0])
def test_drivers_whose_transactions_say_nothing(shop, prepare_threshold):  # noqa: F811
    """psycopg's transactions: most only read."""
    two, pooler = shop()
    with psycopg.connect(pooler.dsn(), prepare_threshold=prepare_threshold) as session:
        session.execute("select 1")
        session.rollback()
        for number in range(70, 74):
            text, mark = marked("select a from shop where a = %s")
            assert session.execute(text, (1,)).fetchall() == [(1,)]
            session.execute("insert into shop values (%s)", (number,))
            assert session.execute("select a from shop where a = %s", (number,)).fetchall() == [(number,)]
            session.commit()
            assert session.execute("select a from shop where a = %s", (number,)).fetchall() == [(number,)]
            session.rollback()
    assert two.primary.sql("select count(*) from shop where a between 70 and 73") == [(4,)]

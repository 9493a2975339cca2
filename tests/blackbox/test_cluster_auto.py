"""route=auto with real streaming replication: what goes to a standby, and what the primary runs after a standby has not."""

import itertools
import signal

import psycopg
import pytest

from harness import wire
from harness.machine import eventually

from test_cluster_reads import reading  # noqa: F401: a fixture
from test_clusters import Later, node_states, nodes  # noqa: F401: fixtures

OBJECTS = """
create table shop (a int);
insert into shop values (1), (2), (3);
create unlogged table shop_scratch (a int);
create sequence shop_numbers;
create view plain_view as select a from shop;
create function locks() returns bool language sql stable as 'select pg_try_advisory_xact_lock(7)';
create view locking_view as select a, locks() from shop;
create function doubled(int) returns int language sql immutable as 'select 2 * $1';
create function noted(int) returns int language plpgsql as 'begin insert into shop values ($1); return $1; end';
create schema extra;
grant all on all tables in schema public to public;
grant all on sequence shop_numbers to public;
grant create on schema public to public;
"""

AT_STANDBY = [
    "select a from shop",
    "select count(*), sum(a) from shop where a > 1 group by a order by 1 limit 2",
    "select a from plain_view",
    "select doubled(a) from shop",
    "with x as (select 1 as a) select * from x join shop using (a)",
    "values (1), (2)",
    "table shop",
    "select now(), random(), 'insert into shop', \"a\" from shop",
]
AT_PRIMARY = [
    "insert into shop values (4)",
    "update shop set a = 4 where a = 4",
    "delete from shop where a = 4",
    "with x as (insert into shop values (9) returning a) select * from x",
    "select a from shop for update",
    "select a into made from shop",
    "drop table made",
    "select nextval('shop_numbers')",
    "select last_value from shop_numbers",
    "select * from shop_scratch",
    "select noted(5)",
    "select locks()",
    "select a from locking_view",
    "select pg_try_advisory_lock(1), pg_advisory_unlock_all()",
    "select pg_is_in_recovery()",
    "select current_setting('port')",
    "select count(*) from pg_stat_activity",
    "select table_name from information_schema.tables",
    "select 1; select a from shop",
    "explain select a from shop",
    "show work_mem",
    "do 'begin end'",
    "copy shop to stdout",
    "notify here",
    "begin; select a from shop; commit",
    "analyze shop",
    "lock table shop",
]

# It takes some seconds, and answers at its end.
SLOW = "select sum(a) from shop, generate_series(1, 12000000)"
SLOW_ANSWER = "72000000"

numbers = itertools.count()


@pytest.fixture
def shop(nodes, reading):  # noqa: F811
    """A function that makes a primary with a standby and the tables, and a pooler with route=auto."""

    def start(options=None, count=2, before="", **settings):
        made = nodes(count)
        made.primary.sql(OBJECTS)
        if before:
            made.primary.sql(before)
        for standby in made.all[1:]:
            eventually(lambda: standby.sql("select to_regnamespace('extra') is not null") == [(True,)], "the standby has it")  # noqa: B023
        pooler = reading(made, options={"route": "auto", "lag_limit_ms": 0, **(options or {})}, **settings)
        return made, pooler

    return start


def marked(text):
    """The text with a comment that no other has, and that comment."""
    mark = f"mark {next(numbers)}."
    return f"{text} -- {mark}", mark


def ran_on(all_nodes, mark):
    """The nodes whose sessions ran the text with this mark last."""
    texts = {node.port: " ".join(backend[3] for backend in node.backends(user="alice")) for node in all_nodes}
    return [port for port, text in texts.items() if mark in text]


def second_tries(pooler):
    """The number of statements that failed on a standby, and that the primary has run."""
    return sum(int(row["second_tries"]) for row in pooler.show("NODES"))


def test_each_text_goes_where_it_must(shop):
    """What certainly reads runs on the standby, everything else on the primary; in each protocol, and as SHOW ROUTE says."""
    two, pooler = shop()
    primary, standby = (node.port for node in two.all)
    wrong = []
    with pooler.raw() as session:
        session.query("select 1")
        for text in AT_STANDBY + AT_PRIMARY:
            whole, mark = marked(text)
            # A session may have been asked something since.
            expected = [[standby]] if text in AT_STANDBY else [[primary], []]
            answer = session.query(whole)
            if ran_on(two.all, mark) not in expected or answer.errors and "lock table" not in text:
                wrong.append((text, answer))
            literal = text.replace("'", "''")
            (explained,) = pooler.admin(f"SHOW ROUTE app '{literal}'")
            if explained["runs_on"] != ("standby" if text in AT_STANDBY else "primary"):
                wrong.append(("explained", text, explained))
            if text.startswith(("select a from shop", "insert")):
                whole, mark = marked(text)
                session.send(wire.group("", whole))
                if session.until().errors or ran_on(two.all, mark) not in expected:
                    wrong.append(("extended", text))
    assert not wrong, wrong


def test_prepared_statements_are_known_on_both_nodes(shop):
    """A statement is prepared where it runs, by its text; its route is that of the text."""
    two, pooler = shop()
    with psycopg.connect(pooler.dsn(), autocommit=True, prepare_threshold=0) as session:
        reads, read_mark = marked("select a from shop where a = %s")
        writes, write_mark = marked("insert into shop values (%s)")
        session.execute("select 1")
        for n in range(5):
            session.execute(writes, (10 + n,), prepare=True)
            session.execute(reads, (1,), prepare=True).fetchall()
            assert two.all[1].port in ran_on(two.all, read_mark)
            assert not ran_on(two.all[1:], write_mark)
    assert two.primary.sql("select count(*) from shop where a >= 10") == [(5,)]


def test_no_read_goes_by_what_a_function_was_before_it_was_made_again(shop):
    """A function that begins to look at its node, made through the pooler: no read of any client that follows runs it at the standby. What
    certainly reads goes there again after that."""
    two, pooler = shop()
    standby = two.all[1].port
    # With many functions the catalog's answer takes some time.
    made = "execute format('create function many_%s() returns int language sql as %L', n, 'select ' || n)"
    two.primary.sql(f"do $$ begin for n in 1 .. 4000 loop {made}; end loop; end $$")
    two.primary.sql("create function place() returns bool language sql stable as 'select false'; alter function place() owner to alice")
    with pooler.raw() as maker, pooler.raw() as other:
        for _ in range(6):
            eventually(lambda: at_standby(two, other, "select place()"), "it is known that it only reads")
            assert not maker.query("create or replace function place() returns bool language sql stable as 'select pg_is_in_recovery()'").errors
            told = {session.value("select place()") for session in (other, maker, other) for _ in range(3)}
            assert told == {"f"}, "the standby ran it"
            whole, mark = marked("select place()")
            assert other.value(whole) == "f" and standby not in ran_on(two.all, mark)
            assert not maker.query("create or replace function place() returns bool language sql stable as 'select false'").errors
        eventually(lambda: at_standby(two, other, "select a from shop"), "reads go to the standby again")


def at_standby(cluster, session, text):
    """Runs a text that is marked; whether the standby ran it."""
    whole, mark = marked(text)
    session.query(whole)
    return cluster.all[1].port in ran_on(cluster.all, mark)


def test_a_table_that_has_not_arrived_is_read_from_the_primary(shop):
    """The standby's error is not shown."""
    two, pooler = shop({"causal_reads": "off"})
    standby = two.all[1]
    with pooler.raw() as session:
        session.query("select 1")
        standby.sql("select pg_wal_replay_pause()")
        two.primary.sql("create table fresh (a int); insert into fresh values (7); grant all on fresh to public")
        for send in (wire.query, lambda text: wire.group("", text), lambda text: wire.group("named", text)):
            session.send(send("select a from fresh"))
            answer = session.until()
            assert not answer.errors and answer.rows == [["7"]], answer
        session.query("set timezone = 'Asia/Tokyo'")
        assert session.value("select a from fresh") == "7"
        assert session.query("select a from nowhere").error["C"] == "42P01", "the primary's word is the client's"
        assert second_tries(pooler) >= 3, "the standby was asked first"
        standby.sql("select pg_wal_replay_resume()")
        assert session.value("select current_setting('timezone')") == "Asia/Tokyo"


def test_a_read_that_conflicts_with_recovery_runs_on_the_primary(shop):
    """PostgreSQL cancels it on the standby, and its client gets the primary's answer."""
    two, pooler = shop()
    standby = two.all[1]
    with standby.configured(max_standby_streaming_delay="0"), pooler.raw() as session:
        session.query("select 1")
        text, mark = marked(SLOW)
        happened = []
        ends = standby.when_running(mark, lambda: happened.append(two.primary.sql("alter table shop add column b int")))
        answer = session.query(text)
        ends.join(20)
        assert happened and answer.rows == [[SLOW_ANSWER]], answer
        assert ran_on(two.all[:1], mark), "it ran on the primary"


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT, "terminate"])
def test_a_standby_that_ends_in_the_middle_of_a_read(shop, how):
    """Its client gets the primary's answer."""
    two, pooler = shop()
    standby = two.all[1]

    happened = []

    def end():
        if how == "terminate":
            standby.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'alice' and state = 'active'")
        else:
            standby.stop(how)
        happened.append(how)

    with pooler.raw() as session:
        session.query("select 1")
        text, mark = marked(SLOW)
        ends = standby.when_running(mark, end)
        answer = session.query(text)
        ends.join(20)
        assert happened and answer.rows == [[SLOW_ANSWER]], answer
        assert session.value("select 5") == "5"
    if how == "terminate":
        assert node_states(pooler)["m2"] == "standby", "a session that ends says nothing about its node"


def test_a_cancelled_read_is_cancelled(shop):
    """57014 is the client's own wish."""
    two, pooler = shop()
    with pooler.raw() as session:
        session.query("select 1")
        text, mark = marked("select count(*) from generate_series(1, 2000000000)")
        two.all[1].when_running(mark, session.cancel)
        assert session.query(text).error["C"] == "57014"
        assert not ran_on(two.all[:1], mark)


def test_without_a_usable_standby_the_primary_reads(shop):
    """And the standby again, when it is back."""
    two, pooler = shop()
    with pooler.raw() as session:

        def reads_at(node):
            # PostgreSQL shows the last text of a session only, which may be one of pgweir's by now: the next one shows it then.
            text, mark = marked("select a from shop")
            assert not session.query(text).errors
            return ran_on(two.all, mark) == [node.port]

        session.query("select 1")
        pooler.admin("DRAIN NODE main.m2")
        eventually(lambda: reads_at(two.primary), "the primary reads")
        pooler.admin("ATTACH NODE main.m2")
        eventually(lambda: int(pooler.show("NODES", node="m2")[0]["share"]) > 0, "it takes reads")
        eventually(lambda: reads_at(two.all[1]), "the standby reads again")


def test_reads_of_many_clients_share_the_standbys(shop):
    """Two standbys, riders and all: every answer is right, and both standbys work."""
    three, pooler = shop(count=3, default_pool_size=3)
    text, mark = marked("select a from shop where a = 2")
    readers = [pooler.raw() for _ in range(20)]
    readers[0].query("select 1")

    def reads(session):
        for n in range(50):
            assert session.value(text) == "2"
            if n % 10 == 0:
                assert not session.query("update shop set a = a where a = 1").errors

    for later in [Later(lambda session=session: reads(session)) for session in readers]:
        later.value()
    assert sorted(ran_on(three.all, mark)) == sorted(node.port for node in three.all[1:])


def test_hints_say_where_a_statement_runs(shop):
    """In each protocol, also in the text of a prepared statement, and for the whole of a transaction."""
    two, pooler = shop()
    primary, standby = (node.port for node in two.all)
    with pooler.raw() as session:
        session.query("select 1")
        for text, expected in [
            ("/* pgweir: primary */ select inet_server_port()", primary),
            ("select inet_server_port() /* pgweir: standby */", standby),
            ("/*NO LOAD BALANCE*/ select inet_server_port()", primary),
            ("/* pgweir: standby */ show port", standby),
            ("/* pgweir: nowhere */ show port", primary),
        ]:
            assert session.value(text) == str(expected), text
            session.send(wire.group("", text))
            assert session.until().rows == [[str(expected)]], text
        assert session.query("/* pgweir: standby */ insert into shop values (1)").error["C"] == "25006"
        session.query("begin /* pgweir: standby */")
        assert session.value("show port") == str(standby)
        session.query("commit")
        assert session.value("show port") == str(primary)
    with psycopg.connect(pooler.dsn(), autocommit=True, prepare_threshold=0) as session:
        for _ in range(3):
            assert session.execute("select inet_server_port() /* pgweir: standby */", prepare=True).fetchone() == (standby,)

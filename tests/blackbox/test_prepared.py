"""Protocol-level prepared statements: they belong to the client, wherever its statements run.

Tests with `talk` also run with PostgreSQL itself, which proves what they expect.
"""

import random
import threading

import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import FLUSH, SYNC, bind, close, describe, execute, parse, query

pytestmark = pytest.mark.needs("prepared statements")

AS_SERVERS_HAVE = {} if kind() == "pgbouncer" else {"session_state": "pgbouncer"}
"""With these settings `pg_prepared_statements` shows what the server has, not what the client has."""

own_errors = pytest.mark.needs("prepared statement errors keep the session")


def prepare(session, name, sql, types=()):
    session.send(parse(name, sql, types) + SYNC)
    answer = session.until("Z")
    assert answer.tags == "1Z", answer.messages


def run(name, *values):
    return bind("", name, values) + execute() + SYNC


def call(session, name, *values):
    """Runs a prepared statement and returns its one value."""
    session.send(run(name, *values))
    answer = session.until("Z")
    assert answer.tags == "2DCZ", answer.messages
    return answer.rows[0][0]


def test_a_statement_is_used_many_times(talk):
    """Prepared once, run a hundred times in transactions of its own."""
    session = talk()
    prepare(session, "add", "select $1::int + $2::int")
    assert [call(session, "add", n, n) for n in range(100)] == [str(2 * n) for n in range(100)]


def test_the_statement_follows_its_client_to_another_server(pooled):
    """The server that knows it is busy: the client gets another one and its statement works there."""
    pooler = pooled(default_pool_size=3)
    with pooler.raw() as session, pooler.raw() as first, pooler.raw() as second:
        prepare(session, "who", "select pg_backend_pid()")
        seen = {call(session, "who")}
        first.query("begin")
        seen.add(call(session, "who"))
        second.query("begin")
        seen.add(call(session, "who"))
        assert len(seen) == 3


def test_describe_on_another_server(pooled):
    """Describe of a statement that the linked server has never seen."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as session, pooler.raw() as holder:
        prepare(session, "s", "select $1::int as number, now() as time")
        holder.query("begin")
        session.send(describe("S", "s") + SYNC)
        answer = session.until("Z")
        assert answer.tags == "tTZ" and answer.columns == ["number", "time"]


def test_the_same_name_for_different_statements(talk):
    """Two clients use one name for different texts; each runs its own."""
    one, two = talk(), talk()
    prepare(one, "s", "select 'one'")
    prepare(two, "s", "select 'two'")
    for _ in range(5):
        assert call(one, "s") == "one"
        assert call(two, "s") == "two"


def test_the_same_statement_of_many_clients_is_prepared_once(pooled, pg):
    """Fifty clients, the same text under different names: the server has prepared it once."""
    pooler = pooled(default_pool_size=1, **AS_SERVERS_HAVE)
    clients = [pooler.raw() for _ in range(50)]
    for number, client in enumerate(clients):
        prepare(client, f"name{number}", "select $1::int * 2")
        assert call(client, f"name{number}", number) == str(number * 2)
    assert clients[0].value("select count(*) from pg_prepared_statements") == "1"
    for client in clients:
        client.hang_up()


def test_parameter_types_are_part_of_a_statement(talk):
    """The same text with different parameter types is another statement."""
    one, two = talk(), talk()
    prepare(one, "s", "select pg_typeof($1)", [23])
    prepare(two, "s", "select pg_typeof($1)", [25])
    assert call(one, "s", 1) == "integer"
    assert call(two, "s", 1) == "text"
    assert call(one, "s", 1) == "integer"


def test_more_statements_than_a_server_keeps(pooled):
    """Forty statements with max_prepared_statements = 5: all work, and the server never has more than five."""
    pooler = pooled(default_pool_size=1, max_prepared_statements=5, **AS_SERVERS_HAVE)
    with pooler.raw() as session, pooler.raw() as watcher:
        for n in range(40):
            prepare(session, f"s{n}", f"select {n} + $1::int")
        order = [n for n in range(40)] * 3
        random.Random(1).shuffle(order)
        for n in order:
            assert call(session, f"s{n}", 1) == str(n + 1)
            assert int(watcher.value("select count(*) from pg_prepared_statements")) <= 5


def test_more_statements_in_one_group_than_a_server_keeps(pooled):
    """One pipeline that uses ten statements twice with room for three."""
    pooler = pooled(default_pool_size=1, max_prepared_statements=3, **AS_SERVERS_HAVE)
    with pooler.raw() as session:
        for n in range(10):
            prepare(session, f"s{n}", f"select {n}")
        session.send(b"".join(bind("", f"s{n}") + execute() for n in [*range(10), *range(10)]) + SYNC)
        answer = session.until("Z")
        assert answer.rows == [[str(n)] for n in [*range(10), *range(10)]]
        assert answer.tags == "2DC" * 20 + "Z"
        assert int(session.value("select count(*) from pg_prepared_statements")) <= 3


def test_random_statements_of_many_clients(pooled):
    """Twenty clients, thirty texts, three servers with room for eight: every answer is the right one."""
    pooler = pooled(default_pool_size=3, max_prepared_statements=8)
    faults = []

    def work(who):
        choice = random.Random(who)
        with pooler.raw() as session:
            known = set()
            for _ in range(150):
                n = choice.randrange(30)
                group = b"" if n in known else parse(f"s{n}", f"select {n} * 1000 + $1::int")
                known.add(n)
                if choice.random() < 0.1:
                    group += close("S", f"s{n}") + parse(f"s{n}", f"select {n} * 1000 + $1::int")
                session.send(group + bind("", f"s{n}", [who]) + execute() + SYNC)
                answer = session.until("Z")
                if answer.errors or answer.rows != [[str(n * 1000 + who)]]:
                    faults.append((who, n, answer.messages))
                    return

    threads = [threading.Thread(target=work, args=(who,)) for who in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]


def test_answers_keep_their_order(talk):
    """A group that prepares one known and one new statement: every ParseComplete is where it belongs."""
    other, session = talk(), talk()
    prepare(other, "known", "select 'known'")
    call(other, "known")
    session.send(
        parse("a", "select 'known'") + bind("", "a") + execute() + parse("b", "select 'new'") + bind("", "b") + execute()
        + close("S", "a") + bind("", "b") + execute() + SYNC
    )  # fmt: skip
    answer = session.until("Z")
    assert answer.tags == "12DC12DC32DCZ"
    assert answer.rows == [["known"], ["new"], ["new"]]


def test_prepare_and_describe_with_flush(talk):
    """Parse, Describe, Flush; then Bind, Execute, Sync: the way of asyncpg and pgx."""
    session = talk()
    for _ in range(2):
        session.send(parse("s", "select $1::int as n") + describe("S", "s") + FLUSH)
        assert session.until("T").tags == "1tT"
        session.send(run("s", 4))
        assert session.until("Z").rows == [["4"]]
        session.send(close("S", "s") + SYNC)
        assert session.until("Z").tags == "3Z"


def test_pipeline_of_a_thousand_prepared_executions(talk):
    """One statement, a thousand groups in flight."""
    session = talk()
    prepare(session, "s", "select $1::int")
    threading.Thread(target=session.send, args=(b"".join(run("s", n) for n in range(1000)),), daemon=True).start()
    assert [session.until("Z").rows[0][0] for _ in range(1000)] == [str(n) for n in range(1000)]


def test_close_forgets_the_statement(talk):
    """After Close the name is free, also for another text; closing an unknown name is no error."""
    session = talk()
    prepare(session, "s", "select 'old'")
    session.send(close("S", "s") + close("S", "never was") + parse("s", "select 'new'") + SYNC)
    assert session.until("Z").tags == "331Z"
    assert call(session, "s") == "new"


@own_errors
def test_a_closed_statement_is_unknown(talk):
    """Bind after Close: 26000, and the session lives."""
    session = talk()
    prepare(session, "s", "select 1")
    session.send(close("S", "s") + SYNC)
    assert session.until("Z").tags == "3Z"
    session.send(run("s"))
    answer = session.until("Z")
    assert answer.tags == "EZ" and answer.error["C"] == "26000" and answer.status == "I"
    assert session.value("select 1") == "1"


@own_errors
@pytest.mark.parametrize("how", ["bind", "describe"])
def test_an_unknown_statement(talk, how):
    """Bind or Describe of a name that was never prepared: 26000; the rest of the group is skipped; the session lives."""
    session = talk()
    first = bind("", "nobody") if how == "bind" else describe("S", "nobody")
    session.send(first + execute() + parse("later", "select 1") + SYNC + query("select 2"))
    answer = session.until("Z")
    assert answer.tags == "EZ" and answer.error["C"] == "26000" and answer.error["S"] == "ERROR" and answer.status == "I"
    assert session.until("Z").rows == [["2"]]
    session.send(run("later"))
    assert session.until("Z").error["C"] == "26000", "the skipped Parse must not have taken effect"


@own_errors
def test_an_unknown_statement_fails_its_transaction(talk):
    """Inside a transaction 26000 aborts it, as every error does: what was done before is rolled back."""
    session = talk()
    session.query("delete from scratch where who = 40")
    session.query("begin")
    session.query("insert into scratch values (40, 1)")
    session.send(run("nobody"))
    answer = session.until("Z")
    assert answer.error["C"] == "26000" and answer.status == "E"
    assert session.query("commit").commands == ["ROLLBACK"]
    assert session.value("select count(*) from scratch where who = 40") == "0"


@own_errors
def test_an_unknown_statement_undoes_its_implicit_transaction(talk):
    """In one group: an insert, then 26000. Both are one implicit transaction, so the insert is rolled back."""
    session = talk()
    session.query("delete from scratch where who = 41")
    session.send(parse("", "insert into scratch values (41, 1)") + bind("", "") + execute() + bind("", "nobody") + execute() + SYNC)
    answer = session.until("Z")
    assert answer.tags == "12CEZ" and answer.error["C"] == "26000"
    assert session.value("select count(*) from scratch where who = 41") == "0"


@own_errors
def test_a_name_in_use(talk):
    """Parse of a name that is in use: 42P05, the old statement stays, the session lives."""
    session = talk()
    prepare(session, "s", "select 'first'")
    session.send(parse("s", "select 'second'") + bind("", "s") + execute() + SYNC)
    answer = session.until("Z")
    assert answer.tags == "EZ" and answer.error["C"] == "42P05" and answer.status == "I"
    assert call(session, "s") == "first"


@own_errors
def test_a_name_in_use_inside_a_transaction(talk):
    """42P05 aborts the transaction around it."""
    session = talk()
    prepare(session, "s", "select 'first'")
    session.query("begin")
    session.send(parse("s", "select 'second'") + SYNC)
    answer = session.until("Z")
    assert answer.error["C"] == "42P05" and answer.status == "E"
    assert session.query("rollback").status == "I"
    assert call(session, "s") == "first"


def test_a_failed_parse_leaves_nothing(talk):
    """A Parse that PostgreSQL refuses does not take the name."""
    session = talk()
    session.send(parse("s", "selec nonsense") + SYNC)
    assert session.until("Z").error["C"] == "42601"
    prepare(session, "s", "select 'good'")
    assert call(session, "s") == "good"


@own_errors
def test_a_failed_parse_is_unknown(talk):
    """Bind of a statement whose Parse failed: 26000."""
    session = talk()
    session.send(parse("s", "select * from not_there") + SYNC)
    assert session.until("Z").error["C"] == "42P01"
    session.send(run("s"))
    assert session.until("Z").error["C"] == "26000"


def test_a_parse_that_failed_once_can_succeed_later(talk):
    """The same text fails without its table and works with it: the failure is not remembered."""
    session = talk()
    session.query("drop table if exists comes_later")
    for _ in range(2):
        session.send(parse("s", "select count(*) from comes_later") + SYNC)
        assert session.until("Z").error["C"] == "42P01"
    session.query("create table comes_later (n int)")
    prepare(session, "s", "select count(*) from comes_later")
    assert call(session, "s") == "0"
    session.query("drop table comes_later")


def test_a_parse_behind_an_error_is_skipped(talk):
    """The skipped Parse has not happened: its name is free, and any client can prepare its text."""
    session, other = talk(), talk()
    session.send(parse("bad", "selec") + parse("skipped", "select 'skipped'") + SYNC)
    assert session.until("Z").tags == "EZ"
    prepare(other, "x", "select 'skipped'")
    assert call(other, "x") == "skipped"
    prepare(session, "skipped", "select 'skipped'")
    assert call(session, "skipped") == "skipped"


def test_a_known_parse_behind_an_error_is_not_answered(talk):
    """A Parse that the pooler could answer itself is skipped too, when it stands behind an error of its group."""
    other, session = talk(), talk()
    prepare(other, "known", "select 'known'")
    session.send(parse("", "select 1/0") + bind("", "") + execute() + parse("k", "select 'known'") + SYNC + query("select 7"))
    answer = session.until("Z")
    assert answer.tags in ("12EZ", "1EZ")
    assert session.until("Z").rows == [["7"]]
    prepare(session, "k", "select 'known'")
    assert call(session, "k") == "known"


def test_parse_in_a_failed_transaction(talk):
    """25P02 while the transaction is aborted; after rollback the same Parse works."""
    session, other = talk(), talk()
    prepare(other, "known", "select 'known'")
    session.query("begin")
    session.query("select 1/0")
    session.send(parse("k", "select 'known'") + SYNC)
    answer = session.until("Z")
    assert answer.error["C"] == "25P02" and answer.status == "E"
    session.query("rollback")
    prepare(session, "k", "select 'known'")
    assert call(session, "k") == "known"


def test_a_statement_outlives_the_rollback_of_its_transaction(talk):
    """Prepared inside a transaction that is rolled back: the statement stays, as in PostgreSQL."""
    session = talk()
    session.query("begin")
    prepare(session, "s", "select 'still here'")
    session.query("rollback")
    assert call(session, "s") == "still here"


@pytest.mark.needs("deallocate all noticed")
@pytest.mark.parametrize("sql", ["deallocate all", "discard all", "DEALLOCATE PREPARE ALL", "/* x */ Discard  All ;"])
def test_discarding_all_frees_all_names(talk, sql):
    """DISCARD ALL and DEALLOCATE ALL: the names can be used again at once."""
    session = talk()
    prepare(session, "a", "select 'a'")
    prepare(session, "b", "select 'b'")
    call(session, "a")
    assert not session.query(sql).errors
    prepare(session, "a", "select 'A'")
    prepare(session, "b", "select 'B'")
    assert (call(session, "a"), call(session, "b")) == ("A", "B")


@own_errors
@pytest.mark.parametrize("sql", ["deallocate all", "discard all"])
def test_discarded_statements_are_unknown(talk, sql):
    """After DISCARD ALL or DEALLOCATE ALL: 26000."""
    session = talk()
    prepare(session, "a", "select 'a'")
    session.query(sql)
    session.send(run("a"))
    assert session.until("Z").error["C"] == "26000"


@pytest.mark.needs("deallocate all noticed")
@pytest.mark.parametrize("sql", ["deallocate all", "discard all"])
def test_discarding_all_is_no_business_of_other_clients(talk, sql):
    """One client discards all; the other's statements go on working."""
    one, two = talk(), talk()
    prepare(one, "s", "select 'shared'")
    prepare(two, "s", "select 'shared'")
    prepare(two, "own", "select 'own'")
    assert call(one, "s") == "shared"
    one.query(sql)
    assert (call(two, "s"), call(two, "own")) == ("shared", "own")


@pytest.mark.needs("deallocate all noticed")
def test_deallocate_all_by_the_extended_protocol(talk):
    """The same when DEALLOCATE ALL travels as Parse, Bind, Execute, in a pipeline with its consequences."""
    session = talk()
    prepare(session, "s", "select 'old'")
    session.send(parse("", "deallocate all") + bind("", "") + execute() + SYNC + parse("s", "select 'new'") + SYNC + run("s"))
    assert session.until("Z").tags == "12CZ"
    assert session.until("Z").tags == "1Z"
    assert session.until("Z").rows == [["new"]]


def test_a_reset_server_is_prepared_again(pooled):
    """server_reset_query_always = 1: every release discards the server's statements, and clients do not notice."""
    pooler = pooled(default_pool_size=1, server_reset_query_always=1)
    with pooler.raw() as one, pooler.raw() as two:
        prepare(one, "s", "select 'one'")
        prepare(two, "s", "select 'two'")
        for _ in range(3):
            assert (call(one, "s"), call(two, "s")) == ("one", "two")


def test_a_lost_server_is_no_loss_of_statements(pooled, pg):
    """All servers are closed and opened again: the clients' statements still work."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as session:
        prepare(session, "s", "select $1::text")
        assert call(session, "s", "before") == "before"
        pooler.admin("RECONNECT")
        assert call(session, "s", "after") == "after"


def test_the_unnamed_statement_across_groups(talk):
    """Inside a transaction the unnamed statement of one group is there in the next."""
    session = talk()
    session.query("begin")
    session.send(parse("", "select $1::int * 3") + SYNC)
    assert session.until("Z").tags == "1Z"
    assert call(session, "", 5) == "15"
    session.query("commit")


def test_big_statement_texts_and_long_names(talk):
    """A text of 3 MB and a name of 5000 characters."""
    session = talk()
    sql = f"select length('{'x' * 3_000_000}') + $1::int"
    prepare(session, "n" * 5000, sql)
    assert call(session, "n" * 5000, 1) == "3000001"
    assert call(session, "n" * 5000, 2) == "3000002"


def test_names_and_texts_are_bytes(talk):
    """Names with blanks, quotes and letters beyond ASCII."""
    session = talk()
    for name in ("a b", "it's", 'double"quote', "naïve ☃", "PGBOUNCER_1", "pgweir_1"):
        prepare(session, name, f"select '{name.replace(chr(39), chr(39) * 2)}'")
        assert call(session, name) == name


def test_no_tracking_when_switched_off(pooled):
    """max_prepared_statements = 0: names reach the server as they are."""
    pooler = pooled(max_prepared_statements=0, default_pool_size=1)
    with pooler.raw() as session:
        prepare(session, "as_it_is", "select 1")
        assert session.query("select name from pg_prepared_statements").rows == [["as_it_is"]]


def test_session_mode_passes_names_through(pooled):
    """In session pooling the server keeps the statements under the client's own names."""
    pooler = pooled(pool_mode="session")
    with pooler.raw() as session:
        prepare(session, "as_it_is", "select 1")
        assert session.query("select name from pg_prepared_statements").rows == [["as_it_is"]]


def test_prepared_statements_in_statement_mode(pooled):
    """The same bookkeeping in statement pooling."""
    pooler = pooled(pool_mode="statement", default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        prepare(one, "s", "select 'one'")
        prepare(two, "s", "select 'two'")
        assert (call(one, "s"), call(two, "s")) == ("one", "two")


def test_statistics_of_prepared_statements(pooled):
    """SHOW CLIENTS and SHOW SERVERS count them; STATS tell client parses from server parses."""
    pooler = pooled(default_pool_size=1)
    clients = [pooler.raw() for _ in range(4)]
    for client in clients:
        prepare(client, "s", "select $1::int")
        call(client, "s", 1)
    assert {row["prepared_statements"] for row in pooler.show("CLIENTS", database="app")} == {"1"}
    assert [row["prepared_statements"] for row in pooler.servers()] == ["1"]
    totals = pooler.show("STATS_TOTALS", database="app")[0]
    assert (totals["client_parse_count"], totals["server_parse_count"], totals["bind_count"]) == ("4", "1", "4")
    for client in clients:
        client.hang_up()


def test_psycopg_prepares_by_itself(pooled):
    """psycopg 3 with automatic preparing, several connections, servers changing under them."""
    pooler = pooled(default_pool_size=2)
    clients = [pooler.connect(prepare_threshold=1) for _ in range(6)]
    for turn in range(20):
        for number, client in enumerate(clients):
            assert client.execute("select %s::int + %s::int", (turn, number)).fetchone() == (turn + number,)
    with clients[0].transaction():
        for number, client in enumerate(clients):
            assert client.execute("select %s::text", (number,)).fetchone() == (str(number),)
    for client in clients:
        client.close()


def test_psycopg_after_an_error(pooled):
    """An error inside a prepared execution leaves the driver's and the pooler's books in agreement."""
    pooler = pooled(default_pool_size=1)
    with pooler.connect(prepare_threshold=0) as client:
        for divisor in (1, 0, 1, 0, 0, 1):
            try:
                assert client.execute("select 1 / %s::int", (divisor,)).fetchone() == (1,)
            except psycopg.errors.DivisionByZero:
                assert divisor == 0


def test_waiting_parse_is_served_later(pooled):
    """A Parse that had to wait for a server works like any other."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session, pooler.raw() as holder:
        holder.query("begin")
        session.send(parse("s", "select 'waited'") + run("s"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the client waits")
        holder.query("commit")
        assert session.until("Z").rows == [["waited"]]


@pytest.mark.needs("changed results noticed")
@pytest.mark.parametrize("by", ["the pooler", "another way"])
def test_a_table_that_changes(pooled, pg, by):
    """A client that prepares a statement after ALTER TABLE gets the new columns; one that did before gets an error, and may prepare it again.

    A change that was made past the pooler is known from the first error on.
    """
    pooler = pooled(default_pool_size=1)
    pg.sql("drop table if exists shapes")
    pg.sql("create table shapes (a int)")
    pg.sql("grant all on shapes to public")
    pg.sql("alter table shapes owner to alice")
    sql = "select * from shapes"

    def columns(session, name):
        session.send(parse(name, sql) + bind("", name) + describe("P", "") + execute() + SYNC)
        answer = session.until("Z")
        assert not answer.errors, answer.errors
        return answer.columns

    with pooler.raw() as early, pooler.raw() as late, pooler.raw() as latest:
        assert columns(early, "a") == ["a"]
        if by == "the pooler":
            with pooler.raw() as owner:
                assert owner.query("begin").status == "T"
                assert owner.query("alter table shapes add b int").commands == ["ALTER TABLE"]
                assert owner.query("commit").commands == ["COMMIT"]
            assert columns(late, "b") == ["a", "b"]
        else:
            pg.sql("alter table shapes add b int")
        early.send(run("a"))
        assert early.until("Z").error["C"] == "0A000"
        for session in (early, late, latest):
            assert columns(session, "again") == ["a", "b"]


@pytest.mark.needs("changed results noticed")
@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_what_a_transaction_has_made_is_not_prepared_for_other_clients(pooled, pg, end):
    """A test suite makes its tables and types in a transaction, and rolls back: the next test's are different ones of the same name."""
    pooler = pooled(default_pool_size=1)
    pg.sql("drop schema if exists making cascade")
    pg.sql("create schema making authorization alice")
    insert, select = "insert into making.made values ($1::making.mood[])", "select * from making.made"
    for column in ("a", "b", "c"):
        with pooler.raw() as session:
            session.query("begin")
            session.query("create type making.mood as enum ('fine')")
            session.query(f"create table making.made ({column} making.mood[])")
            session.send(parse("i", insert) + bind("", "i", ["{fine}"]) + execute() + SYNC)
            assert not session.until("Z").errors
            session.send(parse("s", select) + bind("", "s") + describe("P", "") + execute() + SYNC)
            answer = session.until("Z")
            assert (answer.columns, answer.rows) == ([column], [["{fine}"]])
            assert session.query(end).status == "I"
            if end == "commit":
                session.query("drop table making.made")
                session.query("drop type making.mood")


@pytest.mark.needs("changed results noticed")
@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("makes", ["create table made_of as select {} as x", "select {} as x into made_of"])
def test_a_table_that_a_query_has_made_is_not_prepared_for_other_clients(pooled, pg, makes, piped):
    """These are answered as the query is (`SELECT 1`)."""
    pooler = pooled(default_pool_size=1)
    for value, told in (("1", "1"), ("'a'::text", "a"), ("date '2000-01-01'", "2000-01-01")):
        with pooler.raw() as session:
            assert session.query("begin").status == "T"
            if piped:
                session.send(parse("", makes.format(value)) + bind("", "") + execute())
            else:
                assert not session.query(makes.format(value)).errors
            session.send(parse("s", "select x from made_of") + bind("", "s") + describe("P", "") + execute() + SYNC)
            answer = session.until("Z")
            assert (answer.errors, answer.rows) == ([], [[told]])
            assert session.query("rollback").status == "I"

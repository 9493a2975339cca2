"""The query cache against a real PostgreSQL: what is answered without it, and how old that may be."""

import asyncio
import threading
import time
from datetime import datetime

import asyncpg
import psycopg
import pytest

from harness.cluster import PASSWORDS
from harness.machine import eventually
from test_pgbench import pgbench

TTL_S = 1.0
RULES = f"[cache]\nall = ttl_ms={int(TTL_S * 1000)}\n"


@pytest.fixture
def counted(pg):
    """A PostgreSQL with a table that has one number."""
    pg.sql("drop table if exists counted")
    pg.sql("create table counted (id int primary key, value bigint)")
    pg.sql("insert into counted values (1, 0)")
    pg.sql("grant all on counted to public")
    yield pg
    pg.sql("drop table counted")


def cached(pooled, rules=RULES, **settings):
    """A pooler with the cache on."""
    return pooled(pool_mode="transaction", query_cache="on", ini_tail=rules, **settings)


def row(pooler, database="app", user="alice"):
    """The pool's row of SHOW CACHE."""
    return pooler.show("CACHE", database=database, user=user)[0]


READ = "select value, clock_timestamp()::text from counted where id = 1"


def test_an_answer_is_given_again_and_not_beyond_its_time(pooled, counted):
    """Two clients share an answer; past the pooler the table changes, and within the rule's time the change is seen."""
    pooler = cached(pooled)
    with pooler.connect() as one, pooler.connect() as two:
        eventually(lambda: one.execute(READ).fetchone() == two.execute(READ).fetchone(), "both get one answer")
        counted.sql("update counted set value = 7")
        began = time.monotonic()
        eventually(lambda: two.execute(READ).fetchone()[0] == 7, "the change is seen")
        assert time.monotonic() - began < TTL_S + 5
    shown = row(pooler)
    assert shown["state"] == "on" and int(shown["hits"]) > 0 and int(shown["fills"]) > 0
    assert int(shown["age_max_ms"]) <= TTL_S * 1100


@pytest.mark.parametrize("way", ["simple", "extended", "prepared"])
def test_no_answer_is_older_than_its_time_and_own_changes_are_seen(pooled, counted, way):
    """A writer past the pooler counts on; each answer is at least what it was `ttl_ms` before, and of each own change at least that."""
    pooler = cached(pooled)
    written = [(time.monotonic(), 0)]
    with counted.connect() as outside, pooler.connect() as client, pooler.connect() as other:
        cursor = psycopg.ClientCursor(client) if way == "simple" else client.cursor()
        text = "select value from counted where id = 1" if way == "simple" else "select value from counted where id = %s"
        read = [text] if way == "simple" else [text, [1]]
        options = {} if way == "simple" else {"prepare": way == "prepared"}
        end = time.monotonic() + 4
        number = 0
        while time.monotonic() < end:
            number += 1
            writer = (outside, client, other)[number % 3]
            writer.execute("update counted set value = %s where id = 1", [number])
            written.append((time.monotonic(), number))
            if writer is client:
                assert cursor.execute(*read, **options).fetchone()[0] == number, "an own change was missed"
            for _ in range(5):
                asked = time.monotonic()
                value = cursor.execute(*read, **options).fetchone()[0]
                known = [number for at, number in written if at <= asked - TTL_S]
                assert value >= max(known, default=0), "an answer is older than its time"
    assert int(row(pooler)["hits"]) > 0


def test_another_user_role_or_setting_never_gets_the_answer(pooled, counted):
    """Row security by role and by a setting of the session holds, although the texts are the same."""
    counted.sql("create table secrets (owner text, tenant text)")
    counted.sql("insert into secrets values ('alice', 'a'), ('bob', 'b')")
    counted.sql("alter table secrets enable row level security")
    counted.sql("create policy own on secrets using (owner = current_user and coalesce(current_setting('app.tenant', true), '') in ('', tenant))")
    counted.sql("grant select on secrets to public")
    try:
        pooler = cached(pooled)
        with pooler.connect() as alice, pooler.connect(user="bob") as bob:
            for _ in range(5):
                assert alice.execute("select owner from secrets", prepare=False).fetchall() == [("alice",)]
                assert bob.execute("select owner from secrets", prepare=False).fetchall() == [("bob",)]
            alice.execute("set app.tenant = 'b'")
            for _ in range(5):
                assert alice.execute("select owner from secrets", prepare=False).fetchall() == []
            alice.execute("reset app.tenant")
            for _ in range(5):
                assert alice.execute("select owner from secrets", prepare=False).fetchall() == [("alice",)]
        assert int(row(pooler)["hits"]) > 0
    finally:
        counted.sql("drop table secrets")


def test_rights_and_definitions_that_change_through_the_pooler_count_at_once(pooled, counted):
    """After REVOKE and ALTER TABLE through the pooler no old answer is given."""
    pooler = cached(pooled, rules="[cache]\nall = ttl_ms=600000\n")
    with pooler.connect() as alice, pooler.connect(user="postgres") as owner:
        read = lambda: alice.execute("select * from counted", prepare=False).fetchall()
        eventually(lambda: read() and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        owner.execute("alter table counted add more int")
        assert read() == [(1, 0, None)]
        eventually(lambda: read() and int(row(pooler)["answers"]) > 0, "it is kept again")
        owner.execute("revoke all on counted from public")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            read()


def test_purge_and_off(pooled, counted):
    """CACHE PURGE drops what is kept, and a RELOAD that switches the cache off ends it."""
    pooler = cached(pooled, rules="[cache]\nall = ttl_ms=600000\n")
    with pooler.connect() as client:
        read = lambda: client.execute("select value from counted", prepare=False).fetchone()[0]
        eventually(lambda: read() == 0 and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        counted.sql("update counted set value = 3")
        assert read() == 0
        pooler.admin("CACHE PURGE app")
        assert read() == 3
        counted.sql("update counted set value = 4")
        assert read() == 3
        pooler.admin("SET query_cache = off")
        assert read() == 4
        assert row(pooler)["state"] == "off: query_cache=off"


def test_asyncpg_prepares_by_name(pooled, counted):
    """A driver that prepares everything by name is answered, too, and each connection by its own names."""
    pooler = cached(pooled, rules="[cache]\nall = ttl_ms=600000\n")

    async def talk():
        options = {"host": "127.0.0.1", "port": pooler.port, "user": "alice", "password": PASSWORDS.get("alice"), "database": "app"}
        connections = [await asyncpg.connect(**options) for _ in range(3)]
        for _ in range(10):
            for connection in connections:
                assert await connection.fetchval("select value from counted where id = $1", 1) == 0
                assert await connection.fetchval("select value from counted where id = $1", 2) is None
        for connection in connections:
            await connection.close()

    asyncio.run(talk())
    assert int(row(pooler)["hits"]) >= 20


@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_pgbench_reads_from_the_cache(poolers, bench, protocol):
    """pgbench's reads by a few keys: nothing fails, and most are answered without PostgreSQL."""
    pooler = poolers(
        {"bench": bench.at("bench")}, pool_mode="transaction", default_pool_size=5, query_cache="on", ini_tail="[cache]\nall = tables=pgbench_accounts ttl_ms=60000\n"
    )
    script = pooler.folder / "hot.sql"
    script.write_text("\\set aid random(1, 50)\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n")
    processed, failed = pgbench(pooler, "-f", str(script), "-M", protocol, "-c", "10", "-j", "2", "-t", "200")
    assert (processed, failed) == (2000, 0)
    shown = row(pooler, "bench")
    assert int(shown["hits"]) > 1000 and int(shown["answers"]) <= 50


LONG = "[cache]\nall = ttl_ms=600000\n"
OTHERS = {"session": "pool_mode=session", "pgbouncer": "session_state=pgbouncer"}


@pytest.fixture
def shadowed(counted):
    """A schema of alice's, ahead of public, in which a table of the same name may hide the other one."""
    counted.sql("create schema authorization alice", database="app")
    yield counted
    counted.sql("drop schema alice cascade", database="app")


def beside(pooled, pg, line=""):
    """A pooler with the cache and another line to the same database."""
    place = f"host=127.0.0.1 port={pg.port} dbname=app"
    return cached(pooled, LONG, databases={"app": place, "other": f"{place} {line}"})


@pytest.mark.parametrize("through", ["the pool", "a temporary table", *OTHERS])
def test_what_is_dropped_is_not_read_any_more(pooled, shadowed, through):
    """A table goes that hid another one of its name: from which pool, and whatever else the client has."""
    pooler = beside(pooled, shadowed, OTHERS.get(through, ""))
    with pooler.raw("other" if through in OTHERS else "app") as maker, pooler.raw() as reader:
        assert not maker.query("create table alice.counted as select 99::bigint as value").errors
        eventually(lambda: reader.value("select value from counted") == "99" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        if through == "a temporary table":
            maker.query("create temporary table mine (a int)")
        assert not maker.query("drop table alice.counted").errors
        assert reader.value("select value from counted") == "0"


@pytest.mark.parametrize("text", ["create table alice.counted as select 98::bigint as value", "select 98::bigint as value into alice.counted"])
@pytest.mark.parametrize("through", ["the pool", *OTHERS])
def test_a_table_that_a_query_makes_hides_another_one(pooled, shadowed, text, through):
    """PostgreSQL's tag for that is the one of a SELECT."""
    pooler = beside(pooled, shadowed, OTHERS.get(through, ""))
    with pooler.raw("other" if through in OTHERS else "app") as maker, pooler.raw() as reader:
        eventually(lambda: reader.value("select value from counted") == "0" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        assert not maker.query(text).errors
        assert reader.value("select value from counted") == "98"


@pytest.mark.parametrize("texts", [["begin", "revoke all on counted from public", "commit and chain"], ["begin", "revoke all on counted from public; commit; begin"]])
def test_a_right_that_is_taken_away_while_the_next_transaction_runs(pooled, counted, texts):
    """The change is committed, although no ReadyForQuery says that a transaction is over."""
    pooler = cached(pooled, LONG)
    counted.sql("alter table counted owner to bob")
    with pooler.raw(user="bob") as owner, pooler.raw() as reader:
        eventually(lambda: reader.value("select value from counted") == "0" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        for text in texts:
            assert not owner.query(text).errors
        assert reader.query("select value from counted").error["C"] == "42501"


def test_a_right_that_a_prepared_transaction_takes_away(pooled, counted):
    """The change counts when the transaction is committed, by whichever client."""
    pooler = cached(pooled, LONG)
    counted.sql("alter table counted owner to bob")
    with pooler.raw(user="bob") as owner, pooler.raw() as reader:
        for text in ["begin", "revoke all on counted from public", "prepare transaction 'taken'"]:
            assert not owner.query(text).errors
        eventually(lambda: reader.value("select value from counted") == "0" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        assert not owner.query("commit prepared 'taken'").errors
        assert reader.query("select value from counted").error["C"] == "42501"


def test_no_row_of_another_tenant_after_the_cache_was_off(pooled, counted):
    """What the old cache knew of a client's settings is not used by the new one."""
    counted.sql("create table secrets (tenant text, value text)")
    counted.sql("insert into secrets values ('a', 'of a'), ('b', 'of b'); grant all on secrets to public")
    counted.sql("alter table secrets enable row level security")
    counted.sql("create policy own on secrets using (tenant = current_setting('app.tenant', true))")
    pooler = cached(pooled, LONG)
    try:
        with pooler.raw() as one, pooler.raw() as two:
            one.query("set app.tenant = 'a'")
            eventually(lambda: one.value("select value from secrets") == "of a" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
            pooler.admin("SET query_cache = off")
            pooler.admin("SET query_cache = on")
            two.query("set app.tenant = 'b'")
            for _ in range(5):
                assert two.value("select value from secrets") == "of b"
                assert one.value("select value from secrets") == "of a"
    finally:
        counted.sql("drop table secrets")


def test_what_hits_send_is_counted(pooled, counted):
    """SHOW STATS, and fills are the answers that were kept."""
    pooler = cached(pooled, LONG)
    with pooler.raw() as reader:
        eventually(lambda: reader.value("select value from counted") == "0" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        before, hits = (int(pooler.show("STATS", database="app")[0]["total_sent"]), int(row(pooler)["hits"]))
        for _ in range(50):
            reader.value("select value from counted")
        assert int(row(pooler)["hits"]) == hits + 50
        assert int(pooler.show("STATS", database="app")[0]["total_sent"]) >= before + 50 * 30


@pytest.mark.parametrize("through", ["the pool", *OTHERS])
def test_transactions_that_make_nothing_drop_no_answers(pooled, shadowed, through):
    """A client that has made a table reads, and sets something for a transaction: the answers stay."""
    pooler = beside(pooled, shadowed, OTHERS.get(through, ""))
    with pooler.raw("other" if through in OTHERS else "app") as other, pooler.raw() as reader:
        assert not other.query("create table alice.made as select 1 as a").errors
        eventually(lambda: reader.value("select value from counted") == "0" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        hits = int(row(pooler)["hits"])
        for text in ["begin", "set local search_path = alice", "select a from made", "commit", "select a from alice.made"]:
            assert not other.query(text).errors
            assert reader.value("select value from counted") == "0"
        assert int(row(pooler)["hits"]) == hits + 5


def test_a_prepared_statement_that_makes_a_table(pooled, shadowed):
    """Each time that it runs, not only when it is prepared."""
    pooler = cached(pooled, LONG)
    with pooler.connect() as maker, pooler.raw() as reader:
        maker.autocommit = True
        text = "create table if not exists alice.counted as select 97::bigint as value"
        for _ in range(2):
            maker.execute(text, prepare=True)
            maker.execute("drop table alice.counted")
        eventually(lambda: reader.value("select value from counted") == "0" and int(row(pooler)["hits"]) > 0, "it is answered from the cache")
        maker.execute(text, prepare=True)
        assert reader.value("select value from counted") == "97"


def test_transactions_that_only_read_need_no_server(pooled, counted):
    """With a BEGIN ahead of every read, as frameworks send it, answers are kept and given, and own changes are seen."""
    pooler = cached(pooled, default_pool_size=1)
    text = "select value, clock_timestamp()::text from counted where id = %s"
    with pooler.connect(autocommit=False) as one, pooler.connect(autocommit=False) as two:

        def read(session):
            found = session.execute(text, (1,)).fetchone()
            session.commit()
            return found

        eventually(lambda: read(one) == read(two), "both get one answer")
        # Both are in a transaction at the same time, with one server between them.
        first, second = one.execute(text, (1,)).fetchone(), two.execute(text, (1,)).fetchone()
        assert first[0] == second[0] == 0
        one.commit()
        one.execute("update counted set value = value + 1")
        one.commit()
        assert read(one)[0] == 1
        two.rollback()
        eventually(lambda: read(two)[0] == 1, "the other client sees it, too")
        one.execute("update counted set value = 7")
        assert one.execute(text, (1,)).fetchone()[0] == 7, "its own change, before the commit"
        one.rollback()
        assert read(one)[0] == 1 and read(two)[0] == 1
    assert int(row(pooler)["hits"]) > 0


@pytest.mark.parametrize("by", ["begin", "session", "role", "options", "connect_query", "function"])
def test_a_repeatable_read_never_gets_a_kept_answer(pooled, counted, by):
    """All that such a transaction reads is from one moment."""
    if by == "role":
        counted.sql("alter role alice set default_transaction_isolation = 'repeatable read'")
    level = "default_transaction_isolation = 'repeatable read'"
    query = f"connect_query='set {level.replace(chr(39), 2 * chr(39))}'" if by == "connect_query" else ""
    options = {"options": "-c default_transaction_isolation=repeatable\\ read"} if by == "options" else {}
    try:
        pooler = cached(pooled, databases={"app": f"host=127.0.0.1 port={counted.port} dbname=app {query}"})
        texts = [f"select value, {at} from counted where id = 1" for at in range(2)]
        with pooler.connect(**options) as session, pooler.connect(**options) as other:
            if by == "session":
                session.execute(f"set {level}")
            if by == "function":
                session.execute(f"do $$begin set {level}; end$$")
            begin = "begin isolation level repeatable read" if by == "begin" else "begin"
            for change in range(10):
                other.execute(texts[1])
                session.execute(texts[1])
                counted.sql("update counted set value = %s", [change])
                session.execute(begin)
                values = {session.execute(text).fetchone()[0] for text in texts}
                session.execute("commit")
                assert values == {change}
    finally:
        counted.sql("alter role alice reset default_transaction_isolation")


SLOW = "select sum(length(md5(n::text))), clock_timestamp()::text from generate_series(1, 200000) n"
"""A read that takes a while: other clients begin to wait meanwhile."""


def test_of_the_same_reads_that_wait_one_runs(pooled, pg):
    """With coalesce, no answer is from before its client asked, and fewer statements run than are asked."""
    pooler = pooled(pool_mode="transaction", query_cache="coalesce", default_pool_size=1, multiplex_depth=0)
    clients = 12
    barrier = threading.Barrier(clients)
    answers = []

    def ask():
        with pooler.connect() as session:
            for _ in range(3):
                barrier.wait()
                ((asked,),) = pg.sql("select clock_timestamp()")
                _, ran = session.execute(SLOW).fetchone()
                answers.append((asked, datetime.fromisoformat(ran)))

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 3 * clients and all(asked < ran for asked, ran in answers)
    assert len({ran for _, ran in answers}) < len(answers)
    shown = row(pooler)
    assert shown["state"] == "on" and 0 < int(shown["coalesced"]) == int(shown["hits"])
    with pooler.connect() as one:
        assert one.execute(SLOW).fetchone() != one.execute(SLOW).fetchone(), "nothing is kept"


def test_while_a_read_runs_others_wait_for_its_answer(pooled):
    """With servers for all, of the same reads that come together one runs; after an error each client runs its own."""
    clients = 8
    pooler = cached(pooled, rules="[cache]\nall = ttl_ms=600000\n", default_pool_size=clients)
    barrier = threading.Barrier(clients)
    found = {}

    def ask():
        with pooler.connect() as session:
            for turn in range(5):
                barrier.wait()
                told = session.execute(f"{SLOW} where {turn} >= 0", prepare=False).fetchone()
                found.setdefault(turn, []).append(told)
            barrier.wait()
            try:
                session.execute("select 1 / (sum(n) - sum(n)) from generate_series(1, 200000) n", prepare=False)
            except psycopg.errors.DivisionByZero:
                found.setdefault("errors", []).append(1)

    with pooler.connect() as first:
        read = "select clock_timestamp()::text"
        eventually(lambda: first.execute(read).fetchone() == first.execute(read).fetchone(), "answers are kept")
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(set(found[turn])) for turn in range(5)] == [1] * 5, found
    assert len(found["errors"]) == clients
    assert int(row(pooler)["fills"]) <= 5 + 2


def statements(pooler):
    """`cache`, `cache_hits` and `cache_saved_us` of SHOW STATEMENTS by text."""
    rows = pooler.show("STATEMENTS", database="app", user="alice")
    return {row["query"]: (row["cache"], int(row["cache_hits"]), int(row["cache_saved_us"])) for row in rows}


#: Texts, and what the column `cache` says of them; None if their answers can be kept.
JUDGED = {
    "select value from counted where id = 1": None,
    "select now() from counted": None,
    "select random() from counted": "function random()",
    "select noted(1)": "function noted() may change data",
    "select steady(1)": None,
    "select value from counted for share": "may change data: share",
    "update counted set value = 0": "not a SELECT",
    "select set_config('work_mem', '5MB', false)": "may read or change the session",
    "select 1; select 2": "several statements",
}


@pytest.fixture
def judged(counted):
    """Functions of users, one of which may do more than read."""
    counted.sql("create or replace function noted(a int) returns int language sql volatile as 'select a'")
    counted.sql("create or replace function steady(a int) returns int language sql stable as 'select a'")
    yield counted
    counted.sql("drop function noted, steady")


def bare(text):
    """A text of these as SHOW STATEMENTS shows it."""
    return text.replace("'work_mem', '5MB', false", "?, false").replace(" 1", " ?").replace("(1)", "(?)").replace(" 2", " ?").replace(" 0", " ?")


@pytest.mark.parametrize("way", ["simple", "extended", "prepared"])
def test_statements_say_whether_they_would_be_kept(pooled, judged, way):
    """Before the cache is on: SHOW STATEMENTS says `off` of what it would keep, and names what stands in the way of the rest."""
    pooler = pooled(pool_mode="transaction")
    with pooler.connect() as client:
        cursor = psycopg.ClientCursor(client) if way == "simple" else client.cursor()
        options = {} if way == "simple" else {"prepare": way == "prepared"}
        texts = [text for text in JUDGED if way == "simple" or ";" not in text]

        def are_judged():
            for text in texts:
                cursor.execute(text, **options)
            seen = statements(pooler)
            return [text for text in texts if seen[bare(text)] != (JUDGED[text] or "off", 0, 0)] == []

        eventually(are_judged, "each statement is judged as it should be")
    with pooler.connect() as client, client.transaction():
        client.execute("select value + id from counted", prepare=False)
    assert statements(pooler)["select value + id from counted"][0] == "in a transaction"


def test_statements_say_what_is_kept_and_what_hits_save(pooled, judged):
    """With a rule the column agrees with the cache: what says `yes` is answered without PostgreSQL, and nothing else is."""
    pooler = cached(pooled, rules="[cache]\nall = tables=counted ttl_ms=600000\n")
    with pooler.connect() as client:
        cursor = psycopg.ClientCursor(client)
        reads = [text for text in JUDGED if "noted" not in text and not text.startswith("update")]
        for text in reads:
            cursor.execute(text)
        eventually(lambda: cursor.execute(reads[0]) and statements(pooler)[bare(reads[0])][1] > 0, "it is hit")
        for text in reads:
            for _ in range(3):
                cursor.execute(text)
        for text in reads:
            cache, hits, saved_us = statements(pooler)[bare(text)]
            assert cache == (JUDGED[text] or "yes"), text
            assert (hits > 0, saved_us > 0) == (cache == "yes", cache == "yes"), text
        saved_us = statements(pooler)[bare(reads[0])][2]
        pooler.admin("SET query_cache = off")
        assert statements(pooler)[bare(reads[0])][0] == "off" and statements(pooler)[bare(reads[0])][2] == saved_us
        with client.transaction():
            cursor.execute(reads[0])
        pooler.admin("SET query_cache = on")
        with client.transaction():
            cursor.execute("update counted set value = value")
            cursor.execute(reads[0])
        assert statements(pooler)[bare(reads[0])][0] == "in a transaction", "the last execution counts"


def test_statements_of_no_rule(pooled, judged):
    """A rule about other tables: the column says that no rule matches."""
    pooler = cached(pooled, rules="[cache]\nall = tables=other ttl_ms=600000\n")
    with pooler.connect() as client:

        def run():
            client.execute("select value from counted where id = 1", prepare=False)
            return statements(pooler)["select value from counted where id = ?"][0] == "no rule"

        eventually(run, "no rule matches")


@pytest.mark.parametrize("language", ["sql", "plpgsql"])
def test_what_a_function_sets_for_its_transaction_is_set(pooled, counted, language):
    """A STABLE function that sets something for its transaction alone is called each time, and the rest of the transaction has it."""
    body = "select set_config('app.cached', n, true)"
    body = body if language == "sql" else f"begin return (({body})); end"
    counted.sql(f"create function set_for_now(n text) returns text stable language {language} as $${body}$$")
    try:
        pooler = cached(pooled, rules="[cache]\nall = ttl_ms=600000\n")
        with pooler.raw() as session:
            session.query("select 1")
            for number in range(5):
                for text in ("begin", "select set_for_now('x')"):
                    assert not session.query(text).errors
                assert session.query("select current_setting('app.cached', true)").rows == [["x"]], number
                session.query("commit")
    finally:
        counted.sql("drop function set_for_now")

"""Statements of several clients on one server connection: every client gets its own answers, and what pgweir's reader of SQL calls
self-contained leaves nothing behind on a real PostgreSQL."""

import itertools
import os
import pathlib
import random
import re
import signal
import threading

import pytest

from harness import hidden
from harness.machine import eventually
from harness.wire import SYNC, bind, execute, group, parse, query

#: Texts that could deceive a reader of SQL: quotes, comments, transactions in unlikely places, and texts that only begin like one.
HANDWRITTEN = [
    "select 1",
    "select 1;;",
    "select 'begin'",
    "select $$ begin; $$",
    "select $a$ begin $b$ ; $a$",
    "select E'\\'; begin; --'",
    "select '\\'; begin; --'",
    "select U&'\\0027; begin'",
    'select 1 as "begin; commit"',
    "select 1 /* ; begin /* nested */ ; begin */",
    "select 1 -- ; begin",
    "select 1 --\n; begin",
    "select 1; begin",
    "begin; select 1",
    ";begin",
    "/* select */ begin",
    "start transaction",
    "start/**/transaction",
    "values (1), (2)",
    "table pg_catalog.pg_am",
    "(select 1)",
    "with x as (select 1) select * from x",
    "with x as (insert into scratch values (1) returning a) select * from x",
    "insert into scratch values (1)",
    "insert into scratch select 1; begin",
    "update scratch set a = a",
    "delete from scratch where a = 1",
    "prepare transaction 'x'",
    "savepoint a",
    "commit",
    "rollback and chain",
    "commit and chain",
    "end; begin",
    "abort",
    "do $$ begin perform 1; end $$",
    "create table if not exists scratch_2 (a int)",
    "explain select 1",
    "explain analyze select 1",
    "declare c cursor for select 1",
    "lock table scratch",
    "set transaction read only",
    "select begin",
    "select 1 begin",
    "select 1 as begin",
    "select * from (values (1)) as begin",
    "selec 1",
    "select 1/0",
    "select 1 +",
    "select '",
    "begin 'x'",
    "begin read",
    "execute x",
    "fetch 1 from c",
    "copy scratch to stdout",
    "notify x",
    "select 1 \\; begin",
    "select 1;\tbegin\t;",
    "select 1;\vbegin",
    "select 1;begin isolation level serializable",
    "merge into scratch using (values (1)) v(b) on a = b when matched then update set a = b",
]

#: Pieces that generated texts are made of.
PIECES = [
    "select", "1", "begin", ";", "'", "''", "$$", "$a$", "--", "\n", "/*", "*/", "E'", "\\", '"', "insert into scratch values (1)",
    "commit", "with x as", "(", ")", "start transaction", "U&'", ",", "as", "x", "values (1)", "::int", "-1", "end", "from scratch",
]  # fmt: skip


def generated(count):
    chance = random.Random(4711)
    for _ in range(count):
        yield " ".join(chance.choice(PIECES) for _ in range(chance.randint(1, 8)))


@pytest.fixture
def scratch(pg):
    pg.sql("create table if not exists scratch (a int); grant all on scratch to public", database="app")
    return pg


def test_every_client_gets_its_own_answers(pooled):
    """Thirty clients, two servers, both protocols: statements are multiplexed, and no client sees another's row."""
    pooler = pooled(default_pool_size=2)
    wrong = []

    def work(who):
        with pooler.raw("app", "alice") as session:
            for number in range(60):
                value = f"{who}-{number}"
                if number % 2:
                    session.send(group("", "select $1::text", [value]))
                    answer = session.until()
                else:
                    answer = session.query(f"select '{value}'::text")
                if [row[0] for row in answer.rows] != [value] or answer.errors:
                    wrong.append((value, answer))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    [row] = pooler.show("POOLS_EXTENDED", database="app")
    assert int(row["total_multiplexed"]) > 0, row
    assert int(row["total_multiplex_violations"]) == 0, row


@pytest.mark.parametrize("strings", ["on", "off"])
def test_what_is_taken_for_self_contained_leaves_nothing_behind(pooled, scratch, strings):
    """PostgreSQL's own ReadyForQuery is the judge: after a text that was called self-contained, no transaction is open. Each text runs
    on its own connection, in both protocols."""
    pooler = pooled(default_pool_size=2, server_lifetime=3600)
    setup = f"set standard_conforming_strings = {strings}"
    for text in itertools.chain(HANDWRITTEN, generated(250)):
        with pooler.raw("app", "alice") as session:
            session.query(setup)
            session.query(text)
            session.query("rollback")
            session.send(group("", text))
            session.until()
    [row] = pooler.show("POOLS_EXTENDED", database="app")
    assert int(row["total_multiplex_violations"]) == 0, row


def test_a_backend_that_hangs_does_not_keep_its_place(pooled):
    """query_timeout ends every multiplexed client, and the pool's one server with them. While PostgreSQL does not end its statement in spite
    of cancel requests, the server counts; then later clients get another."""
    pooler = pooled(default_pool_size=1)
    pooler.limit(query_timeout=1)
    multiplexed = [pooler.raw() for _ in range(4)]
    for session in multiplexed:
        for _ in range(5):
            session.value("select 1")
    backend = int(multiplexed[0].value("select pg_backend_pid()"))
    os.kill(backend, signal.SIGSTOP)
    try:
        for session in multiplexed:
            session.send(query("select 1"))
        for session in multiplexed:
            session.until_closed()
        pooler.admin("SET query_timeout = 0")
        with pooler.raw(timeout_s=60) as later:
            assert int(later.value("select pg_backend_pid()")) != backend
        eventually(lambda: len(pooler.show("SERVERS", database="app")) == 1, "the old one is gone")
    finally:
        os.kill(backend, signal.SIGCONT)


@pytest.fixture
def accounts(pg):
    """A table of which each row can be locked by itself."""
    pg.sql("create table accounts (id int primary key, balance int)")
    pg.sql("insert into accounts select number, 0 from generate_series(1, 100) as number; grant all on accounts to public")
    yield pg
    pg.sql("drop table accounts")


UPDATE = "update accounts set balance = balance + 1 where id = {}"
READ = "select balance from accounts where id = {}"

#: How a client asks for row 7: as a simple query, as a statement without a name, and as one that it has prepared.
def violations(pooler):
    """Statements that left a transaction open although that was certain not to happen."""
    [row] = pooler.show("POOLS_EXTENDED", database="app")
    return int(row["total_multiplex_violations"])


WAYS_TO_READ = {
    "query": lambda: query(READ.format(7)),
    "unnamed": lambda: group("", READ.format("$1"), [b"7"]),
    "prepared": lambda: bind("", "reading", [b"7"]) + execute() + SYNC,
}


def answered_in_time(session):
    """The answer; `None` if there is none although nothing should keep it."""
    try:
        return session.until()
    except (TimeoutError, ConnectionError):
        return None


class Crowd:
    """Ten clients that change row 1 and eight that read row 7, beside one that holds row 1 until all have read."""

    def __init__(self, pooler):
        self.pooler = pooler
        self.holder = pooler.raw(timeout_s=8)
        self.updaters = [pooler.raw() for _ in range(10)]
        self.readers = [pooler.raw(timeout_s=8) for _ in range(8)]
        for reader in self.readers:
            reader.send(parse("reading", READ.format("$1"), [23]) + SYNC)
            assert not reader.until().errors

    def warm_up(self):
        """Lets the pooler see that these statements are short."""
        for number in range(40):
            session = self.updaters[number % 10]
            session.query(UPDATE.format(2 + number))
            for ask in WAYS_TO_READ.values():
                reader = self.readers[number % 8]
                reader.send(ask())
                reader.until()

    def is_stuck(self, ask):
        """One round: whether a reader, which needs no lock, waits for the lock that the holder has."""
        self.warm_up()
        self.holder.query("begin")
        self.holder.query(UPDATE.format(1))
        for updater in self.updaters:
            updater.send(query(UPDATE.format(1)))
        for reader in self.readers:
            reader.send(ask())
        answered = list(itertools.takewhile(lambda reader: answered_in_time(reader) is not None, self.readers))
        self.holder.query("commit")
        for session in self.readers[len(answered) :] + self.updaters:
            assert not session.until().errors
        return len(answered) < len(self.readers)


@pytest.mark.parametrize("way", WAYS_TO_READ)
@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_no_client_waits_for_a_lock_that_is_not_its_own(pooled, accounts, way, rounds):
    """The holder of a row lock waits in the application for clients that read other rows: each is answered."""
    crowd = Crowd(pooled(default_pool_size=20))
    stuck = sum(crowd.is_stuck(WAYS_TO_READ[way]) for _ in range(rounds))
    assert stuck == 0, f"{stuck} of {rounds} rounds"
    assert violations(crowd.pooler) == 0
    assert len(crowd.pooler.show("CLIENTS", database="app")) == 19


class TableHolder:
    """One client that has locked a table, one whose read waits for that, and five that read another table and were queued behind it."""

    def __init__(self, pooler, pg):
        pg.sql("create table if not exists others (n int); grant all on others to public")
        self.pooler = pooler
        self.holder, self.first, *self.readers = [pooler.raw() for _ in range(7)]
        self.first.query(READ.format(7))
        for number in range(60):
            self.readers[number % 5].query(READ.format(7))
            self.readers[number % 5].query("select count(*) from others")
        self.holder.query("begin")
        self.holder.query("lock table accounts in access exclusive mode")
        self.first.send(query(READ.format(7)))
        for reader in self.readers:
            reader.send(query("select count(*) from others"))

    def end(self):
        self.holder.query("commit")
        assert [row[0] for row in self.first.until().rows] == ["0"]
        assert violations(self.pooler) == 0


def test_what_is_queued_behind_a_read_that_waits_for_a_table_runs_elsewhere(pooled, accounts):
    """A migration holds a table, and waits for clients that read another one: they are answered, by a server that is opened for them."""
    held = TableHolder(pooled(default_pool_size=5, multiplex_servers=1), accounts)
    for reader in held.readers:
        assert [row[0] for row in reader.until().rows] == ["0"]
    held.end()
    for reader in held.readers:
        assert reader.value("select 'mine'") == "mine", "no late answer is left"


def test_a_client_that_is_queued_on_a_server_counts_as_waiting(pooled, accounts):
    """If no other server may be opened, SHOW POOLS and SHOW CLIENTS say which clients wait and for how long."""
    pooler = pooled(default_pool_size=2, multiplex_servers=1)
    held = TableHolder(pooler, accounts)

    def tells():
        row = pooler.pool()
        states = [client["state"] for client in pooler.show("CLIENTS", database="app")]
        return (row["cl_active"], row["cl_waiting"], row["sv_active"], states.count("waiting")) == (2, 5, 2, 5) and row["maxwait"] >= 1

    eventually(tells, "five clients wait")
    held.end()
    for reader in held.readers:
        assert [row[0] for row in reader.until().rows] == ["0"]


SOURCES = pathlib.Path(__file__).resolve().parents[2] / "crates"

#: Built-in functions that are volatile only because their result differs from call to call.
HARMLESS = {"array_sample", "array_shuffle", "clock_timestamp", "current_query", "gen_random_uuid", "random", "random_normal"}
HARMLESS |= {"timeofday", "timezone", "uuidv4", "uuidv7"}


@pytest.fixture(params=["14", "15", "16", "17", "18"])
def any_pg(request, cluster_of):
    return cluster_of(request.param)


def test_the_functions_that_are_taken_to_read_are_not_volatile(any_pg):
    """Each name in pgweir's list of built-in functions stands for such functions only."""
    listed = re.findall(r'"([a-z0-9_]+)"', (SOURCES / "sql/src/reach/built_in.rs").read_text().split("FUNCTIONS")[1])
    assert len(listed) > 300
    with any_pg.connect("app") as connection:
        asked = "select distinct proname from pg_proc where oid < 16384 and provolatile = 'v' and proname = any(%s)"
        found = {name for (name,) in connection.execute(asked, [listed])}
        known = connection.execute("select count(distinct proname) from pg_proc where proname = any(%s)", [listed]).fetchone()[0]
    assert found <= HARMLESS and known > 300


OBJECTS = """
create schema reach;
set search_path = reach;
create function vol() returns int language sql volatile as 'select 1';
create function stab(int) returns int language sql stable as 'select 1';
create function mixed(int) returns int language sql stable as 'select 1';
create function mixed(text) returns int language plpgsql as 'begin return 1; end';
create function trig() returns trigger language plpgsql as 'begin return new; end';
create function step(int, int) returns int language sql volatile as 'select 1';
create function of_both(int, text) returns bool language plpgsql volatile as 'begin return true; end';
create aggregate total(int) (sfunc = int4pl, stype = int);
create aggregate odd_total(int) (sfunc = step, stype = int);
create table plain (a int, b text);
create table guarded (a int);
create policy guard on guarded using (vol() = 1);
create table locked (a int);
create policy locks on locked using (pg_try_advisory_lock(a));
create table harmless (a int);
create policy harmless on harmless using (pg_backend_pid() = a);
create view v_plain as select * from plain where b like '%x' and a > now()::text::int order by random();
create view v_vol as select vol();
create view v_above as select * from v_vol;
create view v_locking as select * from plain for update;
create view v_system as select * from pg_locks;
create view v_draws as select nextval('pg_class'::regclass);
create view v_guarded as select a from plain where exists (select 1 from guarded);
create domain checked as int check (value < vol());
create domain above_checked as checked;
create domain positive as int check (value > 0);
create view v_domain as select 1::above_checked;
create view v_positive as select 1::positive;
create foreign data wrapper nowhere;
create server nowhere foreign data wrapper nowhere;
create foreign table elsewhere (a int) server nowhere;
create table parted (a int) partition by list (a);
create foreign table part partition of parted for values in (1) server nowhere;
create materialized view kept as select vol();
"""

BARRED = {"vol", "of_both", "mixed", "step", "odd_total", "guarded", "locked", "v_vol", "v_above", "v_locking", "v_system", "v_draws"}
BARRED |= {"v_guarded", "checked", "above_checked", "v_domain", "elsewhere", "parted", "part"}


QUESTION = SOURCES / "core/src/pool/catalog/question"
OPERATORS = set("!~* !~ ~* ~ <> >= <= ->> = < > &".split())


def catalog_question():
    """The question that pgweir asks for the names of a database, put together as `question/mod.rs` does."""
    part = {path.stem: path.read_text() for path in QUESTION.glob("*.sql")}
    names = [part["names"].replace("$kind", kind).replace("$marks", marks) for kind, marks in (("v", "v,w"), ("s", "p"))]
    plain = "(WITH RECURSIVE\n" + part["routines"] + part["trees"] + part["edges"] + "UNION ALL ".join([part["sessions"], part["known"], *names]) + ")"
    lines = (line.lstrip().split(" ") for line in plain.splitlines() if not line.startswith("--"))
    text = "".join(f"OPERATOR(pg_catalog.{word}) " if word in OPERATORS else f"{word} " for line in lines for word in line)
    patterns = []
    for line in (QUESTION / "patterns.txt").read_text().splitlines():
        if line.startswith(" "):
            patterns[-1][1] += line[1:]
        elif line.startswith("$"):
            name, value = line.split(" =", 1)
            patterns.append([name, value.lstrip()])
    for name, value in patterns:
        text = text.replace(name, value)
    return f"SELECT 'g', NULL, NULL WHERE false UNION ALL {text}".encode()


def names_of(connection):
    """The answer's names by kind; an object that changes sessions is of kind `o`."""
    found = {}
    for kind, name, value in connection.execute(catalog_question()):
        found.setdefault(kind, set()).update([value] if kind == "o" else (name or "").split("\n"))
    return found


def test_the_catalog_tells_which_names_may_do_more_than_read(any_pg):
    """The question that pgweir asks, on each version, about everything that can run code."""
    with any_pg.connect("app") as connection:
        before = names_of(connection)
        connection.execute(OBJECTS)
        try:
            after = names_of(connection)
            plain = {name for name in after["v"] - before["v"] if not name.startswith("_")}
            assert plain == BARRED and after.keys() >= {"v", "r"}
            assert {"stab", "total"} <= after["r"] and not after["r"] & {"vol", "mixed", "trig", "step"}
            connection.execute("create operator reach.=== (leftarg = int, rightarg = int, function = reach.step)")
            assert "===" in names_of(connection)["v"]
            connection.execute("create operator reach.= (leftarg = int, rightarg = text, function = reach.of_both)")
            assert names_of(connection)["v"] == {""}, "any text may use it"
        finally:
            connection.execute("drop schema reach cascade; drop foreign data wrapper nowhere cascade")


def test_the_catalog_tells_which_names_lead_to_code_that_changes_sessions(any_pg):
    """On each version, one object of each kind; and nothing that leads nowhere."""
    with any_pg.connect("app") as connection:
        act = "create function hunt.act() returns int language plpgsql as 'begin perform set_config(''a.b'', ''c'', false); return 1; end';"
        connection.execute(hidden.GONE)
        connection.execute(hidden.OBJECTS.replace("{act}", act) + "create table hunt.plain (a serial primary key, b text default 'x')")
        try:
            found = {name.replace('"', "") for name in names_of(connection)["o"]}
            texts = [text.replace('"', "").replace("hunt.", "") for text in [*hidden.READS.values(), *hidden.CHANGES.values()]]
            lacking = [text for text in texts if not found & set(re.findall(r"\w+|#+", text))]
            assert lacking == ["select standard()"], "it is not there"
            assert not found & {"plain", "plain_pkey", "plain_a_seq", "wanted", "quiet"}
        finally:
            connection.execute(hidden.GONE)


ORDINARY = """
create schema ordinary;
set search_path = ordinary;
create table pgbench_branches (bid int not null primary key, bbalance int, filler char(88)) with (fillfactor=100);
create table pgbench_accounts (aid int not null primary key, bid int references pgbench_branches, abalance int, filler char(84));
create table pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22)) partition by range (aid);
create table pgbench_history_1 partition of pgbench_history for values from (1) to (100);
create table auth_user (id integer primary key generated by default as identity, password varchar(128) not null, last_login timestamptz,
  is_superuser bool not null, username varchar(150) unique not null, date_joined timestamptz not null default now());
create index auth_user_username_like on auth_user (username varchar_pattern_ops);
create index auth_user_upper on auth_user (upper(username)) where is_superuser;
create table django_session (session_key varchar(40) primary key, session_data text not null, expire_date timestamptz not null);
create type mood as enum ('sad', 'ok');
create domain email as text check (value ~ '@');
create table shop_order (id bigserial primary key, user_id integer not null references auth_user deferrable initially deferred,
  quantity int not null check (quantity >= 0), data jsonb default '{}', token uuid default gen_random_uuid(), mood mood, mail email,
  total numeric generated always as (quantity * 2) stored, tenant text, updated_at timestamptz);
alter table shop_order enable row level security;
create policy tenants on shop_order using (tenant = current_setting('app.tenant', true)) with check (tenant = current_setting('app.tenant'));
create function touch() returns trigger language plpgsql as $$ begin new.updated_at := now(); return new; end $$;
create trigger touch before update on shop_order for each row execute function touch();
create function for_now(t text) returns text language plpgsql as $$ begin return set_config('app.tenant', t, true); end $$;
create function audit() returns trigger language plpgsql as
  $$ begin execute format('insert into ordinary.%I select $1.*', tg_table_name || '_log') using new; return null; end $$;
create trigger audit after insert on auth_user for each row execute function audit();
create view orders as select o.id, u.username from shop_order as o join auth_user as u on u.id = o.user_id;
create materialized view sums as select user_id, sum(quantity) from shop_order group by 1;
"""


def test_ordinary_schemas_lead_to_nothing(any_pg):
    """pgbench's tables, Django's, triggers that note the time or write a log: no statement about them is in doubt."""
    with any_pg.connect("app") as connection:
        before = names_of(connection)
        connection.execute(ORDINARY)
        try:
            after = names_of(connection)
            assert after["v"] - before["v"] <= {"for_now", ""} and after.get("o", set()) <= before.get("o", set())
            assert {name for name in after["s"] - before["s"] if not name.endswith("_seq")} <= {""}
        finally:
            connection.execute("drop schema ordinary cascade")


AT_PRIMARY = """
create schema reach;
set search_path = reach;
create table plain (id serial, a int);
create unlogged table scratch (a int);
create function shows() returns text language plpgsql stable as 'begin return (select max(state) from PG_STAT_ACTIVITY); end';
create function draws() returns bigint language sql stable as 'select last_value from plain_id_seq';
create function types() returns text language sql stable as 'select pg_typeof(1)::text || $$ lo_x $$';
create function names() returns bigint language sql stable as 'select count(*) as xpg_a from plain';
create function tenant() returns text language sql stable as 'select current_setting($$app.tenant$$)';
create function new_style() returns xid8 language sql stable return pg_current_xact_id_if_assigned();
create function calls() returns text language sql stable as 'select shows()';
create function new_plain() returns bigint language sql stable begin atomic select count(*) from plain; end;
create view v_sequence as select last_value from plain_id_seq;
create view v_scratch as select * from scratch;
create view v_above as select * from v_scratch;
create view v_snapshot as select txid_current_snapshot();
create view v_plain as select a from plain;
create table guarded (a text);
create policy guard on guarded using (a = current_setting('app.tenant'));
"""


def test_the_catalog_tells_which_names_mean_something_else_on_a_standby(any_pg):
    """On each version: sequences, unlogged tables, what shows a server's state; not what is the same everywhere."""
    with any_pg.connect("app") as connection:
        before = names_of(connection)
        connection.execute(AT_PRIMARY)
        try:
            after = names_of(connection)
            expected = {"plain_id_seq", "scratch", "shows", "draws", "types", "new_style", "v_sequence", "v_scratch", "v_above", "v_snapshot", "calls"}
            assert {name for name in after["s"] - before["s"] if not name.startswith("_")} == expected
            connection.execute("set standard_conforming_strings = off")
            assert names_of(connection) == after
        finally:
            connection.execute("drop schema reach cascade")

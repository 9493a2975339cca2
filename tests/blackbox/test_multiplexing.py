"""Statements of several clients on one server connection: everybody gets its own answers, and what pgweir's reader of SQL calls
self-contained leaves nothing behind on a real PostgreSQL."""

import itertools
import os
import random
import signal
import threading

import pytest

from harness.machine import eventually
from harness.wire import group, query

#: Texts that could deceive a reader of SQL: quotes, comments, transactions where nobody looks for them, and what only begins like one.
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


def test_everybody_gets_its_own_answers(pooled):
    """Thirty clients, two servers, both protocols: statements ride, and nobody sees another's row."""
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
    """query_timeout ends everybody aboard, and the pool's one server with them: later clients get another."""
    pooler = pooled(default_pool_size=1, query_timeout=1)
    aboard = [pooler.raw() for _ in range(4)]
    for session in aboard:
        for _ in range(5):
            session.value("select 1")
    backend = int(aboard[0].value("select pg_backend_pid()"))
    os.kill(backend, signal.SIGSTOP)
    try:
        for session in aboard:
            session.send(query("select 1"))
        for session in aboard:
            session.until_closed()
        with pooler.raw() as later:
            assert int(later.value("select pg_backend_pid()")) != backend
        eventually(lambda: len(pooler.show("SERVERS", database="app")) == 1, "the old one is gone")
    finally:
        os.kill(backend, signal.SIGCONT)

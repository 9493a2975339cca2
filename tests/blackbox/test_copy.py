"""COPY in, out and failing, small and big, in both protocols."""

import hashlib
import os
import signal
import threading
import time

import pytest

from harness.machine import eventually
from harness.wire import COPY_DONE, SYNC, bind, copy_data, copy_fail, execute, parse, query


def test_copy_out(talk):
    """CopyOutResponse, the data, CopyDone, and ready again."""
    session = talk()
    answer = session.query("copy (select g, 'x' from generate_series(1, 3) g) to stdout")
    assert answer.tags == "HdcCZ"
    assert b"".join(m.body for m in answer.of("d")) == b"1\tx\n2\tx\n3\tx\n"
    assert session.value("select 1") == "1"


def test_two_copies_and_a_select_in_one_query(talk):
    """COPY is one statement among others of a Query."""
    answer = talk().query("copy (select 1) to stdout; select 2; copy (select 3) to stdout")
    assert answer.tags == "HdcCTDCHdcCZ"


def test_copy_in(talk):
    """CopyInResponse, data in several messages (cut anywhere), CopyDone."""
    session = talk()
    assert session.query("delete from scratch where who = 20").errors == []
    session.send(query("copy scratch from stdin"))
    session.until("G")
    for part in (b"20\t1\n20", b"\t2\n", b"", b"20\t3\n"):
        session.send(copy_data(part))
    session.send(COPY_DONE)
    answer = session.until("Z")
    assert answer.commands == ["COPY 3"] and answer.status == "I"
    assert session.value("select sum(n) from scratch where who = 20") == "6"


@pytest.mark.needs("COPY sent ahead of its answer")
def test_copy_in_sent_in_one_write(talk):
    """The query, the data and CopyDone without waiting for the server, and the next query behind it."""
    session = talk()
    assert session.query("delete from scratch where who = 21").errors == []
    session.send(query("copy scratch from stdin") + copy_data(b"21\t1\n") + COPY_DONE + query("select count(*) from scratch where who = 21"))
    assert session.until("Z").commands == ["COPY 1"]
    assert session.until("Z").rows == [["1"]]


def test_copy_fail(talk):
    """CopyFail: the client's reason comes back as an error, nothing is kept."""
    session = talk()
    assert session.query("delete from scratch where who = 22").errors == []
    session.send(query("copy scratch from stdin"))
    session.until("G")
    session.send(copy_data(b"22\t1\n") + copy_fail("changed my mind"))
    answer = session.until("Z")
    assert answer.error["C"] == "57014" and "changed my mind" in answer.error["M"] and answer.status == "I"
    assert session.value("select count(*) from scratch where who = 22") == "0"


def test_copy_in_with_bad_data(talk):
    """The server refuses a row while the client goes on sending: the rest is dropped and the session lives."""
    session = talk()
    session.send(query("copy scratch from stdin"))
    session.until("G")
    session.send(copy_data(b"not a number\t1\n"))
    session.send(copy_data(b"23\t2\n" * 50_000))
    answer = session.until("Z")
    assert answer.error["C"] == "22P02" and answer.status == "I"
    session.send(copy_data(b"23\t3\n" * 1000) + COPY_DONE)
    assert session.value("select count(*) from scratch where who = 23") == "0"
    session.send(copy_data(b"late") + copy_fail("late"))
    assert session.value("select 1") == "1"


def test_copy_that_is_refused_at_once(talk):
    """The error comes instead of CopyInResponse; data already under way is dropped."""
    session = talk()
    session.send(query("copy no_such_table from stdin") + copy_data(b"1\n" * 1000) + COPY_DONE)
    assert session.until("Z").error["C"] == "42P01"
    assert session.value("select 1") == "1"


def test_copy_in_by_the_extended_protocol(talk):
    """Execute starts the COPY; Sync after CopyDone ends the group."""
    session = talk()
    assert session.query("delete from scratch where who = 24").errors == []
    session.send(parse("", "copy scratch from stdin") + bind("", "") + execute() + SYNC)
    assert session.until("G").tags == "12G"
    session.send(copy_data(b"24\t1\n") + COPY_DONE + SYNC)
    answer = session.until("Z")
    assert answer.commands == ["COPY 1"]
    assert session.quiet(0.1), "a Sync inside COPY has no answer of its own"
    assert session.value("select count(*) from scratch where who = 24") == "1"


def test_a_sync_inside_of_a_copy_that_fails(pooled):
    """Whether PostgreSQL answers it is for its sender alone: a client that waits for the same server gets what it asked for."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw() as three:
        for turn in range(40):
            one.send(query("copy scratch from stdin"))
            one.until("G")
            two.send(query(f"select 'two {turn}'"))
            three.send(query(f"select 'three {turn}'"))
            one.send(copy_data(b"bad\n") + SYNC * (turn % 3))
            assert two.until("Z").rows == [[f"two {turn}"]]
            assert three.until("Z").rows == [[f"three {turn}"]]
            told = one.until("Z")
            assert told.error["C"] in ("22P02", "22P04")
            for _ in range(turn % 3):
                assert one.until("Z").tags == "Z"


def test_an_extended_copy_that_fails_before_it_reads(talk):
    """A trigger of the statement: the Sync behind Execute is not ignored."""
    session = talk()
    session.query("create function no_copy() returns trigger language plpgsql as $$ begin raise 'no'; end $$")
    session.query("create table unloved (a int); create trigger no before insert on unloved execute function no_copy()")
    session.send(parse("", "copy unloved from stdin") + bind("", "") + execute() + SYNC)
    answer = session.until("Z")
    assert answer.tags == "12GEZ" and answer.error["C"] == "P0001"
    session.send(COPY_DONE + SYNC)
    assert session.until("Z").tags == "Z"
    assert session.value("select 1") == "1"
    session.query("drop table unloved; drop function no_copy()")


def test_copy_in_by_the_extended_protocol_failing(talk):
    """An error in an extended COPY: everything up to Sync is dropped."""
    session = talk()
    session.send(parse("", "copy scratch from stdin") + bind("", "") + execute())
    session.send(copy_data(b"nonsense\n") + COPY_DONE + SYNC)
    answer = session.until("Z")
    assert answer.error["C"] in ("22P02", "22P04") and answer.status == "I"
    assert session.value("select 1") == "1"


def test_copy_out_by_the_extended_protocol(talk):
    """CopyOut between other statements of a group."""
    session = talk()
    session.send(parse("", "copy (select 1) to stdout") + bind("", "") + execute() + parse("", "select 2") + bind("", "") + execute() + SYNC)
    assert session.until("Z").tags == "12HdcC12DCZ"


def test_copy_inside_a_transaction_keeps_its_server(pooled):
    """COPY in a transaction that another client wants to overtake."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session, pooler.raw() as other:
        session.query("begin")
        session.send(query("copy scratch from stdin"))
        session.until("G")
        other.send(query("select count(*) from scratch where who = 25"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the other client waits")
        session.send(copy_data(b"25\t1\n") + COPY_DONE)
        assert session.until("Z").status == "T"
        assert other.quiet(0.1)
        session.query("rollback")
        assert other.until("Z").rows == [["0"]]


def test_copy_in_outside_a_transaction_keeps_its_server(pooled):
    """Between CopyInResponse and the end of the COPY no other client may use the server."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session, pooler.raw() as other:
        session.send(query("copy scratch from stdin"))
        session.until("G")
        other.send(query("select 1"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the other client waits")
        session.send(copy_fail("done"))
        session.until("Z")
        assert other.until("Z").rows == [["1"]]


def test_big_copy_out_arrives_whole(pooled):
    """60 MB out: length and digest as computed by the server."""
    pooler = pooled()
    with pooler.connect() as client:
        digest, size = hashlib.md5(), 0
        with client.cursor().copy("copy (select g, repeat(md5(g::text), 3) from generate_series(1, 600000) g) to stdout") as copy:
            for block in copy:
                digest.update(block)
                size += len(block)
        wanted = "".join(f"{n}\t{hashlib.md5(str(n).encode()).hexdigest() * 3}\n" for n in range(1, 600_001)).encode()
        assert size == len(wanted) and digest.digest() == hashlib.md5(wanted).digest()
        assert client.execute("select 1").fetchone() == (1,)


def test_big_copy_in_arrives_whole(pooled, pg):
    """40 MB in, in blocks that cut rows anywhere."""
    pg.sql("create unlogged table if not exists big_in (n int, t text)")
    pg.sql("truncate big_in; grant all on big_in to alice")
    pooler = pooled()
    data = "".join(f"{n}\t{'y' * (n % 200)}\n" for n in range(400_000)).encode()
    with pooler.connect() as client:
        with client.cursor().copy("copy big_in from stdin") as copy:
            for at in range(0, len(data), 77_777):
                copy.write(data[at : at + 77_777])
        assert client.execute("select count(*), sum(n), sum(length(t)) from big_in").fetchone() == (
            400_000, sum(range(400_000)), sum(n % 200 for n in range(400_000)),
        )  # fmt: skip
    pg.sql("drop table big_in")


def test_both_directions_by_many_clients(pooled):
    """Eight clients copy in and out at once over two servers; every byte is right."""
    pooler = pooled(default_pool_size=2)
    faults = []

    def work(who):
        try:
            with pooler.connect() as client, client.cursor() as cursor:
                for turn in range(3):
                    with client.transaction():
                        cursor.execute("create temp table t (n int, t text) on commit drop")
                        rows = [f"{n}\t{who}-{turn}-{'z' * (n % 100)}\n" for n in range(5000)]
                        with cursor.copy("copy t from stdin") as copy:
                            copy.write("".join(rows))
                        with cursor.copy("copy (select * from t order by n) to stdout") as copy:
                            back = b"".join(copy).decode()
                        if back != "".join(rows):
                            faults.append((who, turn))
        except Exception as fault:  # noqa: BLE001  # reported by the assertion below
            faults.append((who, repr(fault)))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_a_reader_that_stops_costs_no_memory(pooled, pg):
    """COPY out to a client that does not read: the pooler stops reading from the server instead of buffering."""
    pooler = pooled()
    before = pooler.resident_kib()
    with pooler.raw() as lazy, pooler.raw() as other:
        lazy.send(query("copy (select repeat('q', 1000) from generate_series(1, 500000)) to stdout"))
        stands = "select 1 from pg_stat_activity where query like 'copy (select repeat%' and wait_event = 'ClientWrite'"
        eventually(lambda: pg.sql(stands), "the server cannot send more")
        assert pooler.resident_kib() - before < 32 * 1024
        assert other.value("select 1") == "1"
        answer = lazy.until("Z")
        assert sum(len(m.body) for m in answer.of("d")) == 500_000 * 1001
        assert pooler.resident_kib() - before < 32 * 1024


def stalls(sent):
    """Waits until nothing was sent for half a second."""
    before = None
    while before != len(sent):
        before = len(sent)
        time.sleep(0.5)


def test_a_server_that_stops_reading_costs_no_memory(pooled, pg):
    """COPY in to a server that stands still: the pooler stops reading from the client."""
    pooler = pooled()
    with pooler.raw() as session:
        backend = int(session.value("select pg_backend_pid()"))
        session.query("begin")
        backend = int(session.value("select pg_backend_pid()"))
        session.send(query("create temp table t (x text) on commit drop"))
        session.until("Z")
        session.send(query("copy t from stdin"))
        session.until("G")
        before = pooler.resident_kib()
        os.kill(backend, signal.SIGSTOP)
        try:
            block = copy_data(b"w" * 65_535 + b"\n")
            sent = []

            def push():
                for _ in range(1600):
                    session.send(block)
                    sent.append(len(block))
                session.send(COPY_DONE)

            sender = threading.Thread(target=push, daemon=True)
            sender.start()
            stalls(sent)
            assert sender.is_alive(), "100 MB fit nowhere if the pooler does not hold them"
            assert pooler.resident_kib() - before < 32 * 1024
        finally:
            os.kill(backend, signal.SIGCONT)
        assert session.until("Z").commands == ["COPY 1600"]
        session.query("rollback")


def test_a_client_that_vanishes_in_copy_in(pooled, pg):
    """The half-sent COPY is not kept, its server is not reused, and the next client is served."""
    pooler = pooled(default_pool_size=1)
    session = pooler.raw()
    backend = session.value("select pg_backend_pid()")
    session.send(query("copy scratch from stdin"))
    session.until("G")
    session.send(copy_data(b"26\t1\n" * 100))
    session.hang_up()
    with pooler.raw() as other:
        assert other.value("select count(*) from scratch where who = 26") == "0"
        assert other.value("select pg_backend_pid()") != backend


def test_a_client_that_vanishes_in_copy_out(pooled, pg):
    """The server that still sends is closed; the next client is served by another."""
    pooler = pooled(default_pool_size=1)
    session = pooler.raw()
    backend = int(session.value("select pg_backend_pid()"))
    session.send(query("copy (select repeat('q', 1000) from generate_series(1, 5000000)) to stdout"))
    session.until("d")
    session.reset()
    with pooler.raw() as other:
        assert other.value("select 1") == "1"
    eventually(lambda: backend not in [b[0] for b in pg.backends("app")], "the sending server is gone")


def test_cancel_of_a_copy(talk, pg):
    """A COPY in either direction can be cancelled like any statement."""
    session = talk()
    session.send(query("copy (select pg_sleep(30)) to stdout"))
    eventually(lambda: [b for b in pg.backends("app") if b[2] == "active" and b[3].startswith("copy")], "the COPY runs")
    session.cancel()
    assert session.until("Z").error["C"] == "57014"
    session.send(query("copy scratch from stdin"))
    session.until("G")
    session.cancel()
    session.send(copy_data(b"27\t1\n") + COPY_DONE)
    assert session.until("Z").error["C"] == "57014"
    assert session.value("select 1") == "1"

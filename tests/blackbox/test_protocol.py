"""The simple and the extended protocol, message by message, alone and in pipelines.

Tests with `talk` run three times: with PostgreSQL itself, which proves what they expect, and through the pooler.
"""

import os
import struct
import threading

import pytest

from harness.machine import eventually
from harness.wire import (
    FLUSH,
    SYNC,
    Raw,
    bind,
    close,
    describe,
    execute,
    function_call,
    group,
    message,
    parse,
    query,
    startup,
)  # fmt: skip


def pump(session, data):
    """Sends in the background, so that a long pipeline cannot block against its own answers."""
    sender = threading.Thread(target=session.send, args=(data,), daemon=True)
    sender.start()
    return sender


def test_simple_query(talk):
    """One row and its command tag."""
    answer = talk().query("select 1 as one, null as nothing, 'x' as text")
    assert answer.tags == "TDCZ"
    assert answer.columns == ["one", "nothing", "text"]
    assert answer.rows == [["1", None, "x"]]
    assert answer.commands == ["SELECT 1"] and answer.status == "I"


def test_several_statements_in_one_query(talk):
    """Each statement of one Query has its own result; there is one ReadyForQuery."""
    answer = talk().query("select 1; select 2; begin; select 3; commit; select 4")
    assert answer.rows == [["1"], ["2"], ["3"], ["4"]]
    assert answer.tags == "TDCTDCCTDCCTDCZ"


def test_an_error_ends_a_multi_statement_query(talk):
    """The statements behind an error do not run, and those before it are rolled back."""
    session = talk()
    answer = session.query("insert into scratch values (77, 1); select 1/0; select 3")
    assert answer.tags == "CEZ" and answer.error["C"] == "22012" and answer.status == "I"
    assert session.value("select count(*) from scratch where who = 77") == "0"


def test_empty_query(talk):
    """An empty string, and one of blanks and a comment."""
    session = talk()
    assert session.query("").tags == "IZ"
    assert session.query(" -- nothing\n ;").tags == "IZ"


def test_transaction_status_is_true(talk):
    """ReadyForQuery says I, T and E as PostgreSQL does."""
    session = talk()
    steps = [("begin", "T"), ("select 1", "T"), ("select 1/0", "E"), ("select 1", "E"), ("rollback", "I"), ("select 1", "I")]
    assert [session.query(sql).status for sql, _ in steps] == [status for _, status in steps]


def test_savepoints(talk):
    """A rolled back savepoint takes the transaction from E to T."""
    session = talk()
    steps = ["begin", "savepoint a", "select 1/0", "rollback to a", "select 1", "commit"]
    assert [session.query(sql).status for sql in steps] == list("TTETTI")


def test_one_extended_group(talk):
    """Parse, Bind, Describe, Execute, Sync."""
    session = talk()
    session.send(group("", "select $1::int + 1, $2::text", [41, "x"]))
    answer = session.until("Z")
    assert answer.tags == "12TDCZ" and answer.rows == [["42", "x"]]


def test_describe_of_a_statement(talk):
    """ParameterDescription and RowDescription, or NoData."""
    session = talk()
    session.send(parse("", "select $1::int as a, $2::text as b") + describe("S", "") + SYNC)
    answer = session.until("Z")
    assert answer.tags == "1tTZ" and answer.columns == ["a", "b"]
    assert struct.unpack("!hii", answer.of("t")[0].body) == (2, 23, 25)
    session.send(parse("", "insert into scratch values (0, 0)") + describe("S", "") + SYNC)
    assert session.until("Z").tags == "1tnZ"


def test_flush_brings_answers_without_sync(talk):
    """Flush delivers what is done so far; the group stays open until Sync."""
    session = talk()
    session.send(parse("", "select $1::int") + describe("S", "") + FLUSH)
    assert session.until("T").tags == "1tT"
    assert session.quiet(0.1)
    session.send(bind("", "", [7]) + execute() + FLUSH)
    assert session.until("C").rows == [["7"]]
    session.send(SYNC)
    assert session.until("Z").tags == "Z"


def test_sync_alone(talk):
    """Every Sync has its ReadyForQuery, also when nothing else was sent."""
    session = talk()
    session.send(SYNC)
    assert session.until("Z").status == "I"
    session.send(SYNC * 5)
    for _ in range(5):
        assert session.until("Z").tags == "Z"
    assert session.value("select 1") == "1"


def test_flush_alone_is_harmless(talk):
    """Flush without anything before it has no answer."""
    session = talk()
    session.send(FLUSH)
    assert session.quiet(0.1)
    assert session.value("select 5") == "5"


def test_portal_read_in_pieces(talk):
    """Execute with a row limit suspends the portal; the next Execute goes on."""
    session = talk()
    session.send(parse("", "select generate_series(1, 7)") + bind("p", "") + execute("p", 3) + FLUSH)
    assert session.until("s").rows == [["1"], ["2"], ["3"]]
    session.send(execute("p", 3) + FLUSH)
    assert session.until("s").rows == [["4"], ["5"], ["6"]]
    session.send(execute("p", 3) + close("P", "p") + SYNC)
    answer = session.until("Z")
    assert answer.tags == "DC3Z" and answer.rows == [["7"]]


def test_portal_across_groups_of_a_transaction(talk):
    """Inside a transaction a named portal outlives Sync."""
    session = talk()
    session.query("begin")
    session.send(parse("", "select generate_series(1, 4)") + bind("p", "") + execute("p", 2) + SYNC)
    assert session.until("Z").tags == "12DsZ"
    session.send(execute("p", 2) + SYNC)
    assert session.until("Z").rows == [["3"], ["4"]]
    session.query("commit")
    session.send(execute("p", 2) + SYNC)
    answer = session.until("Z")
    assert answer.error["C"] == "34000" and answer.status == "I"


def test_pipeline_of_a_thousand_groups(talk):
    """A thousand groups in one go: every answer is there, complete and in order."""
    session = talk()
    pump(session, b"".join(group("", "select $1::int", [n]) for n in range(1000)))
    for n in range(1000):
        answer = session.until("Z")
        assert answer.tags == "12TDCZ" and answer.rows == [[str(n)]]


def test_pipeline_of_a_thousand_simple_queries(talk):
    """The same with simple queries, which the protocol allows too."""
    session = talk()
    pump(session, b"".join(query(f"select {n}") for n in range(1000)))
    assert [session.until("Z").rows for _ in range(1000)] == [[[str(n)]] for n in range(1000)]


def test_pipeline_of_mixed_kinds(talk):
    """Simple queries, groups, an empty query, a lone Sync and a FunctionCall in one write."""
    session = talk()
    int4pl = function_call(177, [struct.pack("!i", 20), struct.pack("!i", 22)])
    session.send(query("select 1") + group("", "select 2") + query("") + SYNC + int4pl + query("select 3; select 4"))
    assert [session.until("Z").tags for _ in range(6)] == ["TDCZ", "12TDCZ", "IZ", "Z", "VZ", "TDCTDCZ"]


def test_many_statements_before_one_sync(talk):
    """One Sync makes one transaction of all statements before it."""
    session = talk()
    who = int.from_bytes(os.urandom(3))  # the same test runs beside this one, in another mode
    insert = parse("", f"insert into scratch values ({who}, $1)")
    session.send(b"".join(insert + bind("", "", [n]) + execute() for n in range(100)) + SYNC)
    assert session.until("Z").tags == "12C" * 100 + "Z"
    assert session.value(f"select count(distinct xmin::text) from scratch where who = {who}") == "1"


def test_error_in_a_pipeline_skips_to_sync(talk):
    """After an error the rest of the group is skipped and rolled back; the next group runs."""
    session = talk()
    bad = parse("", "insert into scratch values (6, 1)") + bind("", "") + execute() + parse("", "select 1/0") + bind("", "") + execute()
    skipped = parse("", "select 'never'") + bind("", "") + execute()
    session.send(group("", "select 1") + bad + skipped + SYNC + group("", "select count(*) from scratch where who = 6"))
    assert session.until("Z").rows == [["1"]]
    failed = session.until("Z")
    assert failed.tags in ("12C12EZ", "12C1EZ") and failed.error["C"] == "22012" and failed.status == "I"
    assert session.until("Z").rows == [["0"]]


def test_each_failing_group_fails_alone(talk):
    """Of a hundred pipelined groups every third fails, and only those."""
    session = talk()
    pump(session, b"".join(group("", "select 10 / $1::int", [0 if n % 3 == 0 else 1]) for n in range(100)))
    for n in range(100):
        answer = session.until("Z")
        if n % 3 == 0:
            assert answer.error["C"] == "22012"
        else:
            assert answer.rows == [["10"]]


def test_messages_behind_an_error_wait_for_a_late_sync(talk):
    """The error comes at once; what is sent before Sync, even in later packets, is skipped."""
    session = talk()
    session.send(parse("", "selec 1") + FLUSH)
    assert session.until("E").error["C"] == "42601"
    session.send(group("", "select 1")[:-5])
    assert session.quiet(0.1)
    session.send(SYNC)
    assert session.until("Z").tags == "Z"
    assert session.value("select 2") == "2"


def test_pipelined_transaction(talk):
    """begin, work and commit in groups of their own, sent at once."""
    session = talk()
    session.query("delete from scratch where who = 8")
    session.send(
        group("", "begin")
        + group("", "insert into scratch values (8, $1)", [1])
        + group("", "insert into scratch values (8, 2)")
        + group("", "commit")
    )
    assert [session.until("Z").status for _ in range(4)] == list("TTTI")
    assert session.value("select count(distinct xmin::text) from scratch where who = 8") == "1"


def test_pipelined_transactions_of_many_clients_do_not_mix(pooled):
    """Twenty clients pipeline whole transactions over two servers; each transaction stays whole and on one server."""
    pooler = pooled(default_pool_size=2)
    faults = []

    def work(who):
        with pooler.raw() as session:
            for turn in range(20):
                session.send(
                    group("", "begin")
                    + group("", "select set_config('my.who', $1, true), pg_backend_pid()", [f"{who}-{turn}"])
                    + group("", "select current_setting('my.who'), pg_backend_pid()")
                    + group("", "commit")
                )
                answers = [session.until("Z") for _ in range(4)]
                if answers[1].rows != answers[2].rows or answers[1].rows[0][0] != f"{who}-{turn}":
                    faults.append((who, turn, answers))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:2]


def test_answers_go_to_their_own_client(pooled):
    """Thirty clients with pipelines of different lengths and failures over three servers: no client sees another's answer."""
    pooler = pooled(default_pool_size=3)
    faults = []

    def work(who):
        with pooler.raw() as session:
            for turn in range(15):
                numbers = [who * 100_000 + turn * 1000 + n for n in range(1 + (who + turn) % 20)]
                pump(session, b"".join(group("", "select $1::int, 1 / ($1::int % 7)" if n % 5 == 0 else "select $1::int", [n]) for n in numbers))
                for n in numbers:
                    answer = session.until("Z")
                    if n % 5 == 0 and n % 7 in (0,):
                        right = bool(answer.errors) and answer.error["C"] == "22012"
                    else:
                        right = bool(answer.rows) and answer.rows[0][0] == str(n)
                    if not right:
                        faults.append((who, n, answer))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:2]


def test_bytes_one_by_one(talk):
    """A session whose every byte is a packet of its own."""
    session = talk()
    session.send_slowly(group("", "select $1::int", [9]) + query("select 10"))
    assert session.until("Z").rows == [["9"]]
    assert session.until("Z").rows == [["10"]]


def test_a_group_split_between_its_messages(pooled):
    """A group whose Sync comes late holds its server; no other client gets it in between."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as slow, pooler.raw() as other:
        slow.send(parse("", "select 1") + bind("", "") + execute() + FLUSH)
        slow.until("C")
        other.send(query("select 2"))
        eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the other client waits")
        slow.send(SYNC)
        assert slow.until("Z").status == "I"
        assert other.until("Z").rows == [["2"]]


def test_function_call(talk):
    """FunctionCall: int4pl(20, 22), and its error when the function does not exist."""
    session = talk()
    session.send(function_call(177, [struct.pack("!i", 20), struct.pack("!i", 22)]))
    answer = session.until("Z")
    assert answer.tags == "VZ" and answer.of("V")[0].body == struct.pack("!ii", 4, 42)
    session.send(function_call(1, []))
    assert session.until("Z").tags == "EZ"
    assert session.value("select 1") == "1"


def test_statements_behind_the_startup_packet(pooled, pg):
    """A trusted client may send its first statements together with its startup packet: they are served after the login."""
    pooler = pooled()
    for address in (("127.0.0.1", pg.port), pooler.address, pooler.address):
        with Raw(address) as session:
            session.send(startup({"user": "alice", "database": "app"}) + query("select 1") + group("", "select 2"))
            session.authenticate("alice")
            assert session.until("Z").rows == [["1"]]
            assert session.until("Z").rows == [["2"]]


def test_large_object_through_function_calls(talk):
    """libpq's large object interface is FunctionCall inside a transaction: 300 kB there and back."""
    session = talk()

    def call(oid, *arguments):
        session.send(function_call(oid, arguments))
        answer = session.until("Z")
        assert answer.tags == "VZ", answer.messages
        return answer.of("V")[0].body[4:]

    number = struct.Struct("!i").pack
    data = bytes(range(256)) * 1200
    session.query("begin")
    loid = call(957, number(0x60000))
    fd = call(952, loid, number(0x60000))
    assert struct.unpack("!i", call(955, fd, data))[0] == len(data)
    call(956, fd, number(0), number(0))
    assert call(954, fd, number(len(data))) == data
    call(953, fd)
    call(964, loid)
    assert session.query("commit").status == "I"


def test_notices_keep_their_place(talk):
    """Notices arrive between the results that they belong to, whole."""
    session = talk()
    answer = session.query("select say('one'); select 1; select say(repeat('n', 100000)); select 2")
    kinds = [m.tag for m in answer.messages if m.tag in "NC"]
    assert kinds == ["N", "C", "C", "N", "C", "C"]
    assert answer.notices == ["one", "n" * 100_000]


def test_ten_thousand_notices(talk):
    """Every notice of a loop arrives, in order."""
    answer = talk().query("do $$ begin for i in 1..10000 loop raise notice '%', i; end loop; end $$")
    assert answer.notices == [str(n) for n in range(1, 10_001)]


def test_error_fields_arrive_unchanged(talk):
    """Severity, SQLSTATE, detail, hint, table and constraint names of a server's error."""
    session = talk()
    error = session.query("insert into kv values (1, 'again')").error
    assert error["C"] == "23505" and error["n"] == "kv_pkey" and error["t"] == "kv" and "already exists" in error["D"]
    error = session.query("do $$ begin raise exception 'm' using errcode = 'ABCDE', hint = 'h', detail = 'd'; end $$").error
    assert (error["M"], error["C"], error["H"], error["D"]) == ("m", "ABCDE", "h", "d")


def test_binary_results(talk):
    """Result formats asked for in Bind."""
    session = talk()
    session.send(parse("", "select 258::int, 'é'::bytea") + bind("", "", (), (1,)) + execute() + SYNC)
    body = session.until("Z").of("D")[0].body
    assert body == struct.pack("!hi", 2, 4) + struct.pack("!i", 258) + struct.pack("!i", 2) + "é".encode()


def test_a_wide_row(talk):
    """1600 columns."""
    columns = ", ".join(f"{n} as c{n}" for n in range(1600))
    answer = talk().query(f"select {columns}")
    assert answer.rows == [[str(n) for n in range(1600)]]


def test_many_small_rows(talk):
    """200,000 rows, each of them there once and in order."""
    rows = talk().query("select generate_series(1, 200000)").rows
    assert len(rows) == 200_000 and rows[0] == ["1"] and rows[99_999] == ["100000"] and rows[-1] == ["200000"]


def test_terminate_inside_a_transaction_rolls_back(pooled, pg):
    """Terminate (or the end of the connection) in a transaction rolls it back and is an error for no other client."""
    pooler = pooled(default_pool_size=1)
    session = pooler.raw()
    session.query("begin")
    session.query("insert into scratch values (9, 9)")
    session.terminate()
    with pooler.raw() as other:
        assert other.value("select count(*) from scratch where who = 9") == "0"


def test_disable_pqexec_refuses_simple_queries(pooled):
    """`disable_pqexec`: the simple protocol ends the session, the extended one works."""
    pooler = pooled(disable_pqexec=1)
    with pooler.raw() as session:
        session.send(group("", "select 1"))
        assert session.until("Z").rows == [["1"]]
        session.send(query("select 1"))
        assert "PQexec disallowed" in session.until_closed().errors[-1]["M"]


@pytest.mark.parametrize("tag", ["?", "T", "R", "\xff", pytest.param("\x00", marks=pytest.mark.needs("message type 0 refused"))])
def test_unknown_message_types_end_the_session(pooled, tag):
    """A message type that no client may send: an error, the end of this session, and of no other."""
    pooler = pooled()
    with pooler.raw() as other, pooler.raw() as session:
        session.send(tag.encode("latin-1") + b"\0\0\0\x05\0")
        assert session.until_closed().errors[-1]["S"] == "FATAL"
        assert other.value("select 1") == "1"


def test_malformed_messages_are_answered_or_end_the_session(pooled):
    """Bodies that break their own format: an error from PostgreSQL or the pooler, never a hang, never a crash."""
    pooler = pooled()
    bodies = [
        ("P", b""), ("P", b"name"), ("P", b"n\0select 1\0"), ("P", b"n\0select 1\0\x7f\xff"), ("B", b""), ("B", b"\0"), ("B", b"\0nothere"),
        ("D", b""), ("D", b"X\0"), ("D", b"S"), ("D", b"Sx"), ("E", b""), ("E", b"\0"), ("E", b"\0\0\0"), ("C", b""), ("C", b"Q\0"), ("Q", b""),
        ("Q", b"select 1"), ("S", b"junk"), ("H", b"junk"), ("F", b""), ("F", b"\0\0\0\x01"),
    ]  # fmt: skip
    with pooler.raw() as other:
        for tag, body in bodies:
            with pooler.raw(timeout_s=10) as session:
                session.send(message(tag, body) + SYNC)
                session.hang_up() if tag in "SH" else session.until("EZ")
            assert other.value("select 1") == "1", (tag, body)

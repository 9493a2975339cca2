"""The extended protocol on the console. PgBouncer refuses it; pgweir serves drivers that know no other."""

import struct

import pytest

from harness.pooler import kind
from harness.wire import SYNC, bind, close, describe, execute, group, parse

pytestmark = pytest.mark.needs("extended protocol on the console")


def test_a_group(pooled):
    """Parse, Bind, Describe, Execute, Sync: the same rows as by Query."""
    with pooled().console() as console:
        simple = console.query("SHOW DATABASES")
        console.send(group("", "SHOW DATABASES"))
        answer = console.until()
        assert answer.tags == "12TDCZ" and answer.status == "I"
        assert (answer.columns, answer.rows, answer.commands) == (simple.columns, simple.rows, ["SHOW"])


def test_named_statements(pooled):
    """A statement is described and executed again and again, and closed; a portal gives its rows in pieces."""
    with pooled().console() as console:
        console.send(parse("s", "show lists") + describe("S", "s") + SYNC)
        answer = console.until()
        assert answer.tags == "1tTZ" and answer.columns == ["list", "items"]
        for _ in range(3):
            console.send(bind("", "s") + execute() + SYNC)
            assert len(console.until().rows) == 14
        console.send(bind("p", "s") + execute("p", 10) + execute("p", 10) + execute("p", 10) + SYNC)
        answer = console.until()
        assert answer.tags == "2DsDCCZ" and len(answer.rows) == 14
        console.send(execute("p") + SYNC)
        assert console.until().error["C"] == "34000"  # portals end with Sync
        console.send(close("S", "s") + bind("", "s") + SYNC)
        answer = console.until()
        assert answer.tags == "3EZ" and answer.error["C"] == "26000"


def test_commands(pooled, pg):
    """What acts answers with its tag, and is waited for by what comes behind it in the pipeline."""
    pooler = pooled()
    with pooler.raw() as client, pooler.console() as console:
        client.query("begin")
        console.send(group("", "PAUSE app") + group("", "SHOW STATE"))
        assert console.until("n").tags == "12n"
        assert console.quiet()
        client.query("commit")
        assert console.until().tags == "CZ"
        assert console.until().columns == ["key", "value"]
        console.send(group("", "RESUME app") + group("", "SET default_pool_size = 7") + group("", "SET extra_float_digits = 3"))
        assert [console.until().commands for _ in range(3)] == [["RESUME"], ["SET default_pool_size=7"], ["SET"]]
        console.send(group("", "") + group("", "SHOW HELP"))
        assert console.until().tags == "12nIZ"
        assert console.until().notices == ["Console usage"]


def test_errors_skip_to_sync(pooled):
    """After an error, messages are ignored up to Sync; the session goes on."""
    with pooled().console() as console:
        console.send(parse("", "nonsense") + bind("", "") + execute() + SYNC)
        answer = console.until()
        assert answer.tags == "EZ" and answer.error["M"] == "invalid command 'nonsense', use SHOW HELP;"
        console.send(parse("", "PAUSE nowhere") + bind("", "") + execute() + execute() + SYNC)
        answer = console.until()
        assert answer.tags == "12EZ" and answer.error["M"] == "no such database: nowhere"
        console.send(parse("", "SHOW VERSION") + bind("", "", ["1"]) + SYNC)
        assert "parameters" in console.until().error["M"]
        assert console.query("SHOW VERSION").rows


def test_rights_are_the_same(pooled):
    """A stats user may look and may not act, by either protocol (CVE-2026-6667)."""
    pooler = pooled()
    with pooler.console("stats") as console:
        console.send(group("", "SHOW POOLS") + group("", "KILL app") + group("", "SHOW FDS"))
        assert not console.until().errors
        assert console.until().error["M"] == "admin access needed"
        assert console.until().error["M"] == "admin access needed"


def test_binary_results(pooled):
    """Numbers in binary as PostgreSQL sends them."""
    with pooled().console() as console:
        console.send(parse("", "SHOW LISTS") + bind("", "", (), [0, 1]) + describe("P", "") + execute() + SYNC)
        answer = console.until()
        rows = {row.body[6:6 + struct.unpack_from("!i", row.body, 2)[0]].decode(): row.body[-4:] for row in answer.of("D")}
        assert struct.unpack("!i", rows["databases"]) == (4,)


def test_hostile_messages(pooled):
    """Messages that are cut off or too many: an error each time, and other clients are served."""
    pooler = pooled()
    with pooler.console() as console:
        for what in (parse("", "SHOW VERSION")[:5] + b"", bind("", ""), describe("S", "x"), execute("x")):
            if len(what) > 5:
                console.send(what + SYNC)
                assert console.until().errors
        console.send(b"".join(parse(f"s{n}", "SHOW VERSION") for n in range(200)) + SYNC)
        assert console.until().error["C"] == "54000"
    assert pooler.alive() and kind() == "pgweir"

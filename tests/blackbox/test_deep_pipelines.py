"""Pipelines of more messages than a server may owe answers for (16,384): all of them are answered, whatever they consist of."""

import threading

import pytest

from harness.wire import COPY_DONE, SYNC, bind, copy_data, describe, execute, group, parse, query

MODES = ["transaction", "session"]


def answered(client, data, readies):
    """Sends `data` while another thread reads; returns the messages up to the last of so many ReadyForQuery."""
    seen = []

    def read():
        for _ in range(readies):
            seen.extend(client.until("Z").messages)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    client.send(data)
    reader.join(timeout=120)
    counted = {tag: sum(message.tag == tag for message in seen) for tag in "12TDCEZ"}
    assert not reader.is_alive(), f"the answers stopped after {counted}"
    return counted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["", "named"])
def test_one_group_of_many_messages(pooled, mode, name):
    """4,500 times Parse, Bind, Describe, Execute, and one Sync."""
    pooler = pooled(pool_mode=mode)
    one = bind("", name, ["1"]) + describe("P", "") + execute()
    every = (b"" if name else parse("", "select $1::int")) + one
    with pooler.raw() as client:
        first = parse(name, "select $1::int") if name else b""
        counted = answered(client, first + every * 6000 + SYNC, 1)
        assert (counted["2"], counted["D"], counted["C"], counted["E"]) == (6000, 6000, 6000, 0)
        assert client.value("select 7") == "7"


@pytest.mark.parametrize("mode", MODES)
def test_many_groups(pooled, mode):
    """The same with a Sync after each."""
    pooler = pooled(pool_mode=mode)
    with pooler.raw() as client:
        counted = answered(client, group("", "select $1::int", ["1"]) * 4500, 4500)
        assert (counted["D"], counted["Z"], counted["E"]) == (4500, 4500, 0)
        assert client.value("select 7") == "7"


@pytest.mark.parametrize("mode", MODES)
def test_many_simple_queries(pooled, mode):
    """20,000 simple queries, sent at once."""
    pooler = pooled(pool_mode=mode)
    with pooler.raw() as client:
        counted = answered(client, query("select 1") * 20_000, 20_000)
        assert (counted["D"], counted["Z"], counted["E"]) == (20_000, 20_000, 0)


@pytest.mark.parametrize("mode", MODES)
def test_copies_behind_many_messages(pooled, mode):
    """COPY at the end of a long pipeline, its data included."""
    pooler = pooled(pool_mode=mode)
    with pooler.raw() as client:
        client.query("delete from scratch where who = 77")
        copy = query("copy scratch (who, n) from stdin") + copy_data(b"77\t1\n") * 1000 + COPY_DONE
        counted = answered(client, query("select 1") * 17_000 + copy + query("select 1") + copy, 17_003)
        assert (counted["Z"], counted["E"]) == (17_003, 0)
        assert client.value("select count(*) from scratch where who = 77") == "2000"
        client.query("delete from scratch where who = 77")


@pytest.mark.parametrize("mode", MODES)
def test_an_error_ahead_of_many_messages(pooled, mode):
    """PostgreSQL ignores everything up to the Sync; the next group is answered."""
    pooler = pooled(pool_mode=mode)
    every = parse("", "select 1") + bind("", "") + describe("P", "") + execute()
    with pooler.raw() as client:
        counted = answered(client, parse("", "selec") + every * 4500 + SYNC + every + SYNC, 2)
        assert (counted["E"], counted["D"], counted["Z"]) == (1, 1, 2)


def test_two_clients_with_one_server(pooled):
    """Another client has its turn after a pipeline that was held up."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as client, pooler.raw() as other:
        assert other.value("select 3") == "3"
        counted = answered(client, group("", "select $1::int", ["1"]) * 5000, 5000)
        assert counted["Z"] == 5000
        assert other.value("select 4") == "4"

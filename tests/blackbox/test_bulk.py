"""Big messages and big results: they stream through in bounded memory, in both directions."""

import hashlib
import re
import struct
import time
from pathlib import Path

import pytest

from harness.wire import SYNC, bind, copy_data, execute, parse, query

BOUND_KIB = 24 * 1024
"""How much the pooler's memory may grow while hundreds of megabytes pass."""


def peak_kib(pooler):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pooler.pid}/status").read_text())[1])


def drain(session, pause_every=None):
    """Reads up to ReadyForQuery without keeping anything; returns (bytes of rows, number of rows, md5)."""
    digest, size, rows = hashlib.md5(), 0, 0
    buffer = bytearray()
    while True:
        while len(buffer) < 5:
            buffer += session.socket.recv(1 << 20)
        tag, (length,) = buffer[0:1], struct.unpack_from("!i", buffer, 1)
        del buffer[:5]
        left = length - 4
        if tag == b"D":
            rows += 1
            size += left
        while left:
            if not buffer:
                buffer += session.socket.recv(1 << 20)
            part = bytes(buffer[:left])
            del buffer[: len(part)]
            left -= len(part)
            if tag == b"D":
                digest.update(part)
        assert tag != b"E", part
        if tag == b"Z":
            return size, rows, digest.hexdigest()
        if pause_every and rows % pause_every == 0:
            time.sleep(0.005)


def test_two_hundred_megabytes_of_rows(pooled):
    """200 rows of 1 MB: all there, and the pooler's peak memory hardly moves."""
    pooler = pooled()
    with pooler.raw() as session:
        session.query("select 1")
        before = peak_kib(pooler)
        session.send(query("select repeat('x', 1000000) from generate_series(1, 200)"))
        size, rows, _ = drain(session)
        assert (rows, size) == (200, 200 * (1_000_000 + 6))
        assert peak_kib(pooler) - before < BOUND_KIB
        assert session.value("select 1") == "1"


def test_one_row_of_two_hundred_megabytes(pooled):
    """One message of 200 MB, content verified, read slowly."""
    pooler = pooled()
    with pooler.raw(timeout_s=60) as session:
        session.query("select 1")
        before = peak_kib(pooler)
        session.send(query("select repeat('0123456789', 20000000)"))
        size, rows, digest = drain(session)
        wanted = hashlib.md5(struct.pack("!hi", 1, 200_000_000))
        for _ in range(20):
            wanted.update(b"0123456789" * 1_000_000)
        assert (rows, size, digest) == (1, 200_000_006, wanted.hexdigest())
        assert peak_kib(pooler) - before < BOUND_KIB


@pytest.mark.slow
def test_one_row_of_a_gigabyte(pooled):
    """Almost the biggest row that PostgreSQL makes."""
    pooler = pooled()
    with pooler.raw(timeout_s=300) as session:
        session.query("select 1")
        before = peak_kib(pooler)
        session.send(query("select repeat('0123456789', 107000000)"))
        size, rows, _ = drain(session)
        assert (rows, size) == (1, 1_070_000_006)
        assert peak_kib(pooler) - before < BOUND_KIB


def test_a_big_result_to_a_slow_reader_disturbs_no_other_client(pooled):
    """While one client reads 100 MB slowly, other clients of the same pool get their answers."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as slow, pooler.raw() as other:
        slow.send(query("select repeat('x', 100000) from generate_series(1, 1000)"))
        worst = 0.0
        for n in range(50):
            start = time.monotonic()
            assert other.value(f"select {n}") == str(n)
            worst = max(worst, time.monotonic() - start)
        size, rows, _ = drain(slow, pause_every=100)
        assert rows == 1000 and worst < 5


def test_a_big_query(pooled):
    """A simple query of 50 MB."""
    pooler = pooled()
    with pooler.raw(timeout_s=60) as session:
        session.query("select 1")
        before = peak_kib(pooler)
        session.send(query("select length('" + "q" * 50_000_000 + "')"))
        assert session.until("Z").rows == [["50000000"]]
        growth = peak_kib(pooler) - before
        assert growth < 120 * 1024
        assert session.value("select 1") == "1"


def test_a_big_parameter(pooled):
    """A Bind of 100 MB streams through."""
    pooler = pooled()
    with pooler.raw(timeout_s=60) as session:
        session.query("select 1")
        before = peak_kib(pooler)
        session.send(parse("", "select length($1::text)") + bind("", "", [b"p" * 100_000_000]) + execute() + SYNC)
        assert session.until("Z").rows == [["100000000"]]
        assert peak_kib(pooler) - before < BOUND_KIB


def test_a_big_copy_message(pooled):
    """A single CopyData message of 60 MB: as one line it exceeds nothing but the reader's time limit."""
    pooler = pooled()
    with pooler.raw(timeout_s=60) as session:
        session.query("begin")
        session.query("create temp table t (x text) on commit drop")
        before = peak_kib(pooler)
        session.send(query("copy t from stdin"))
        session.until("G")
        session.send(copy_data((b"c" * 999 + b"\n") * 60_000) + b"c\0\0\0\x04")
        assert session.until("Z").commands == ["COPY 60000"]
        assert session.value("select sum(length(x)) from t") == str(60_000 * 999)
        assert peak_kib(pooler) - before < BOUND_KIB
        session.query("commit")


def test_idle_clients_are_cheap(pooled):
    """400 idle clients: what they cost together is small, before and after they have worked."""
    pooler = pooled(default_pool_size=5)
    with pooler.raw() as first:
        first.value("select 1")
        before = pooler.resident_kib()
        clients = [pooler.raw() for _ in range(400)]
        for client in clients:
            client.send(query("select repeat('x', 10000)"))
        for client in clients:
            client.until("Z")
        assert pooler.resident_kib() - before < 400 * 16
        for client in clients:
            client.hang_up()

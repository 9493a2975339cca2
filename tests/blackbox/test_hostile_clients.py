"""Bytes no honest client sends, before and after login. The pooler survives, other clients notice nothing, nothing leaks."""

import os
import random
import struct
import threading
import time

import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import GSSENC_REQUEST, PROTOCOL_3_0, SSL_REQUEST, Closed, Raw, cancel_request, cstr, message, query, startup


@pytest.fixture
def pooler(pooled):
    """A pooler with a short time limit for logins."""
    return pooled(client_login_timeout=2, default_pool_size=2)


def provoke(pooler, data, timeout_s=6):
    """Sends bytes as a new connection, reads until it is closed or says no more; returns what it said."""
    with Raw(pooler.address, timeout_s) as session:
        try:
            session.send(data)
        except OSError:
            pass
        said = b""
        try:
            while part := session.socket.recv(65536):
                said += part
        except (TimeoutError, ConnectionResetError):
            pass
        return said


PACKETS = {
    "length 0": struct.pack("!i", 0),
    "length 1": struct.pack("!i", 1) + b"x",
    "length 3": struct.pack("!ii", 3, PROTOCOL_3_0),
    "length 4": struct.pack("!i", 4),
    "length 7": struct.pack("!i", 7) + b"abc",
    "length -1": struct.pack("!ii", -1, PROTOCOL_3_0),
    "length -2^31": struct.pack("!ii", -(2**31), PROTOCOL_3_0),
    "length 2^31-1": struct.pack("!ii", 2**31 - 1, PROTOCOL_3_0) + b"user\0alice\0" * 100,
    "length 2^24": struct.pack("!ii", 2**24, PROTOCOL_3_0) + b"user\0alice\0" * 100,
    "no parameters": struct.pack("!ii", 8, PROTOCOL_3_0),
    "only a terminator": struct.pack("!ii", 9, PROTOCOL_3_0) + b"\0",
    "no terminator": struct.pack("!ii", 8 + 11, PROTOCOL_3_0) + b"user\0alice\0",
    "a key without a value": struct.pack("!ii", 8 + 6, PROTOCOL_3_0) + b"user\0\0",
    "rubbish behind the terminator": struct.pack("!ii", 8 + 16, PROTOCOL_3_0) + b"user\0alice\0\0junk",
    "an empty key": startup({"": "x", "user": "alice", "database": "app"}),
    "protocol 2": struct.pack("!ii", 296, 0x00020000) + b"app".ljust(64, b"\0") + b"alice".ljust(224, b"\0"),
    "protocol 4": startup({"user": "alice", "database": "app"}, 0x00040000),
    "protocol 0": startup({"user": "alice", "database": "app"}, 0),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "zeros": b"\0" * 4096,
    "ones": b"\xff" * 4096,
    "a query before login": query("select 1"),
    "a short cancel": struct.pack("!ii", 8, 80877102),
    "a cancel without a key": struct.pack("!iii", 12, 80877102, 1),
    "a cancel with a giant key": cancel_request(1, b"k" * 5000),
    "a cancel with a key of 300": cancel_request(1, b"k" * 300),
    "ssl twice": SSL_REQUEST * 2,
    "gss twice": GSSENC_REQUEST * 2,
    "an ssl request that is too long": struct.pack("!ii", 12, 80877103) + b"more",
}


@pytest.mark.parametrize("name", PACKETS)
def test_first_packets(pooler, name):
    """Every wrong first packet: an error or the end, never a login, never a crash, and other clients go on."""
    with pooler.raw() as other:
        said = provoke(pooler, PACKETS[name])
        assert b"R\0\0\0\x08\0\0\0\0" not in said, "this must not have been let in"
        assert other.value("select 1") == "1"
    assert pooler.alive()


def test_old_protocol_is_told_so(pooler):
    """Protocol 2: a readable error."""
    assert b"protocol" in provoke(pooler, PACKETS["protocol 2"]).lower()


@pytest.mark.parametrize("key", ["user", "database", "application_name"])
@pytest.mark.parametrize("length", [64, 300, 4000, 9000])
def test_long_names(pooled, key, length):
    """Names far beyond any limit: an error, or a working session, and never the end of the process (CVE-2012-4575)."""
    pooler = pooled(databases={"*": "host=127.0.0.1 port=1"}, client_login_timeout=2, query_wait_timeout=2)
    params = {"user": "alice", "database": "app"} | {key: "n" * length}
    with Raw(pooler.address, 8) as session:
        session.send(startup(params))
        try:
            session.until("Z")
            assert key == "application_name"
        except Closed as end:
            assert end.error["S"] == "FATAL"
    with pooler.raw() as other:
        assert other.value("select 1") == "1"


@pytest.mark.parametrize("ignored", ["", "extra_float_digits", "options"])
@pytest.mark.parametrize("options", ["-c=", "-c =", "-c", "--", "--=x", "-c a", "-c work_mem=", "=", "-c" * 500, "\\"])
def test_startup_options_of_every_wrong_form(pooled, options, ignored):
    """Options without a name, without a value, or of nothing else: an answer, and no loop without end (CVE-2026-107349)."""
    pooler = pooled(ignore_startup_parameters=ignored)
    with pooler.raw() as other, Raw(pooler.address, 8) as session:
        session.send(startup({"user": "alice", "database": "app", "options": options}))
        try:
            session.until("Z")
        except Closed as end:
            assert end.error["S"] == "FATAL"
        assert other.value("select 1") == "1"


def test_a_startup_packet_with_a_thousand_keys(pooler):
    """Many keys within the size PostgreSQL allows: an error that names one of them."""
    params = {"user": "alice", "database": "app"} | {f"k{n}": "v" for n in range(1000)}
    with Raw(pooler.address) as session:
        session.send(startup(params))
        assert session.until_closed().errors[-1]["S"] == "FATAL"
    assert pooler.alive()


def test_names_that_are_not_utf8(pooler):
    """Arbitrary bytes in names."""
    body = struct.pack("!i", PROTOCOL_3_0) + cstr(b"user") + cstr(b"\xff\xfe\x80") + cstr(b"database") + cstr(b"\xc3\x28") + b"\0"
    said = provoke(pooler, struct.pack("!i", len(body) + 4) + body)
    assert said[:1] in (b"E", b"R")
    assert pooler.alive()


def test_names_that_look_like_something_else(pooled):
    """Quotes, semicolons, line ends, format characters and escape sequences in names stay names, also in the log."""
    pooler = pooled(databases={"*": "host=127.0.0.1 port=1"}, client_login_timeout=2, query_wait_timeout=2)
    for name in ("a'; drop table kv; --", 'x" y', "a\nFATAL injected", "%s%n%x", "\x1b[31m", "host=evil", "../../etc", "pgbouncer "):
        with Raw(pooler.address, 8) as session:
            session.send(startup({"user": "alice", "database": name}))
            session.until_closed()
    assert pooler.alive()
    assert "\nFATAL injected" not in pooler.log(), "a client must not be able to write log lines"


LENGTHS = [0, 1, 2, 3, -1, -4, -(2**31), 2**31 - 1, 2**30]


@pytest.mark.parametrize("tag", list("QPBDECHSFdcfXp"))
def test_lengths_after_login(pooler, tag):
    """Every message type with every impossible length: this session ends or waits, other clients go on."""
    with pooler.raw() as other:
        for length in LENGTHS:
            with pooler.raw() as session:
                session.send(tag.encode() + struct.pack("!i", length) + b"x" * 100)
                session.socket.settimeout(0.3 if length > 1000 else 3)
                try:
                    while session.socket.recv(65536):
                        pass
                except (TimeoutError, ConnectionResetError):
                    assert length > 1000 or tag == "X", f"{tag} with length {length} is neither answered nor ended"
        assert other.value("select 1") == "1"
    assert pooler.alive()


@pytest.mark.parametrize("tag", list("QPBdF"))
def test_a_huge_announced_length_reserves_nothing(pooler, tag):
    """Two gigabytes announced, one kilobyte sent, fifty times: memory does not follow announcements."""
    before = pooler.resident_kib()
    sessions = [pooler.raw() for _ in range(50)]
    for session in sessions:
        session.send(tag.encode() + struct.pack("!i", 2**31 - 1) + b"n\0" * 512)
    with pooler.raw() as other:
        # It comes behind them, so they are read.
        assert other.value("select 1") == "1"
        assert pooler.resident_kib() - before < 40 * 1024
        for session in sessions:
            session.reset()
        assert other.value("select 1") == "1"


@pytest.mark.needs("half a message holds no server")
def test_a_stopped_half_message_holds_no_server_forever(pooled):
    """A client that stops in the middle of its first message does not keep the only server from other clients."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as lazy, pooler.raw() as other:
        lazy.send(query("select 'lazy'")[:7])
        assert other.value("select 1") == "1"
        lazy.send(query("select 'lazy'")[7:])
        assert lazy.until("Z").rows == [["lazy"]]


@pytest.mark.parametrize("tag, body", [("H", b"\0\0\0\0"), ("S", b"\0"), ("c", b"x" * 12_000), ("f", b"x" * 12_000), ("H", b"x" * 12_000)])
@pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer passes them on, and the next client suffers")
def test_what_postgresql_answers_by_surprise_hurts_its_sender_alone(pooled, tag, body):
    """Such a message would be read when the server works for another client."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        one.send(query("select pg_sleep(0.2)") + message(tag, body))
        two.send(query("select 'two'"))
        with pytest.raises(Closed) as end:
            while True:
                one.until("Z")
        assert end.value.error["C"] == "08P01"
        assert two.until("Z").rows == [["two"]]
        assert two.value("select 2") == "2"


def test_random_bytes_before_login(pooler):
    """Five hundred connections with random first bytes."""
    choice = random.Random(7)
    with pooler.raw() as other:
        for _ in range(500):
            with Raw(pooler.address, 3) as session:
                data = bytearray(choice.randbytes(choice.randrange(1, 60)))
                if choice.random() < 0.5:
                    data[:8] = struct.pack(
                        "!ii", choice.choice([len(data), 8, 9, 40, 10_000]), choice.choice([PROTOCOL_3_0, 80877102, 80877103, 80877104])
                    )
                try:
                    session.send(bytes(data))
                except OSError:
                    pass
        assert other.value("select 1") == "1"
    assert pooler.alive()


def test_damaged_sessions(pooler):
    """Three hundred sessions whose valid pipelines have one bit flipped, a byte lost or doubled."""
    choice = random.Random(11)
    from harness.wire import SYNC, bind, close, copy_data, describe, execute, parse

    whole = (
        parse("s", "select $1::int") + bind("", "s", [1]) + describe("P", "") + execute() + close("S", "s") + SYNC
        + query("select 1; select 2") + copy_data(b"abc") + SYNC
    )  # fmt: skip
    with pooler.raw() as other:
        for turn in range(300):
            data = bytearray(whole)
            at = choice.randrange(len(data))
            kind = turn % 3
            if kind == 0:
                data[at] ^= 1 << choice.randrange(8)
            elif kind == 1:
                del data[at]
            else:
                data.insert(at, choice.randrange(256))
            with pooler.raw() as session:
                try:
                    session.send(bytes(data))
                    session.socket.settimeout(0.02)
                    while session.socket.recv(65536):
                        pass
                except OSError:
                    pass
            if turn % 50 == 0:
                assert other.value(f"select {turn}") == str(turn)
        assert other.value("select 1") == "1"
    assert pooler.alive()


def test_a_flood_of_connections(pooler):
    """Two thousand connections that say nothing and leave: a client inside is served all the time."""
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            try:
                Raw(pooler.address, 2).reset()
            except OSError:
                pass

    threads = [threading.Thread(target=flood) for _ in range(4)]
    with pooler.raw() as inside:
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert inside.value("select 1") == "1"
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    eventually(lambda: pooler.open_files() < 60, "the flood's descriptors are given back")


def test_a_client_that_never_reads(pooler):
    """A client that sends statements and never reads an answer is stopped by back-pressure, not by memory."""
    before = pooler.resident_kib()
    with pooler.raw() as deaf, pooler.raw() as other:
        deaf.socket.settimeout(1)
        block = query("select repeat('x', 10000)") * 200
        try:
            for _ in range(100):
                deaf.send(block)
        except TimeoutError:
            pass
        assert pooler.resident_kib() - before < 64 * 1024
        assert other.value("select 1") == "1"


def test_secrets_of_the_process_do_not_leak(pooler):
    """No error before login repeats the environment, file names or addresses of the process."""
    said = b"".join(provoke(pooler, data, 3) for name, data in PACKETS.items() if "length" in name)
    for secret in (os.environ.get("HOME", "/root").encode(), str(pooler.folder).encode(), b"0x7f"):
        assert secret not in said

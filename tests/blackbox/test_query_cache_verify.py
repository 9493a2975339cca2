"""Kept answers that are compared with PostgreSQL's (`query_cache_verify`, `pgweir cache verify`)."""

import contextlib
import functools
import json
import signal
import subprocess
import threading
import time

import psycopg
from test_query_cache_wal import READ, cached, followed, row, until_followed, until_hit  # noqa: F401: a fixture
from test_takeover import over, successor, with_pid_file

from harness.machine import as_service, eventually, reachable
from harness.pooler import binary


def verify(pooler, *words):
    """Starts `pgweir cache verify` as the pooler's own user."""
    command = [str(reachable(binary(), pooler.folder)), "cache", "verify", "-c", str(pooler.ini), *words]
    return subprocess.Popen(as_service(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")


def ended(process):
    """The exit code, and what was written."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


class Reader(threading.Thread):
    """A client that reads the counters until it is told to stop."""

    def __init__(self, pooler):
        super().__init__()
        self.pooler, self.stops = pooler, threading.Event()

    def run(self):
        with self.pooler.connect() as client:
            while not self.stops.wait(0.001):
                client.execute(READ, [1], prepare=True)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stops.set()
        self.join()


def test_hits_are_compared_while_writers_go_past_the_pooler(pooled, followed):  # noqa: F811
    """The table changes all the time; no answer counts as wrong for that. The setting is as it was afterwards, also after Ctrl-C."""
    pooler = cached(pooled, default_pool_size=4)
    until_followed(pooler)
    setting = lambda: pooler.show("CONFIG", key="query_cache_verify")[0]["value"]  # noqa: E731
    with pooler.connect() as client, Reader(pooler), Reader(pooler):
        until_hit(pooler, client, READ, [2])
        process = verify(pooler, "--every", "3", "--seconds", "600", "--json")
        eventually(lambda: setting() == "3", "the setting is changed", timeout_s=30)
        for value in range(10):
            followed.sql("update counted set value = %s where id = 1", [value])
            before = int(row(pooler)["verified"])
            eventually(lambda: int(row(pooler)["verified"]) > before, "an answer is compared", timeout_s=60)
        process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
    assert code == 0, (out, err)
    told = json.loads(out)
    assert len(told) == 1 and told[0]["verified"] >= 10 and told[0]["wrong"] == 0, told
    assert setting() == "0"


def test_an_answer_that_was_kept_under_another_definition_is_found(pooled, followed):  # noqa: F811
    """A table that hides the followed one for a moment, past the pooler and between two looks at the definitions, is not noticed (documented): the
    answer that was kept meanwhile is wrong, and the comparison says so."""
    followed.sql("drop schema if exists alice cascade; create schema alice authorization alice")
    try:
        pooler = cached(pooled, query_cache_verify=1, default_pool_size=4)
        until_followed(pooler)
        with pooler.connect() as connection:
            # A prepared statement would go on with the table that it was prepared with.
            client = psycopg.ClientCursor(connection)
            read = lambda: client.execute(READ, [1]).fetchone()  # noqa: E731
            eventually(lambda: read() and int(row(pooler)["fills"]) > 0, "an answer is kept", timeout_s=30)

            def is_found():
                followed.sql("create table alice.counted as select id, value + 1000 as value from counted; grant select on alice.counted to alice")
                read()
                followed.sql("drop table alice.counted")
                for _ in range(150):
                    read()
                    time.sleep(0.1)
                    if int(row(pooler)["wrong"]) > 0:
                        return True
                return False

            eventually(is_found, "the wrong answer is found", timeout_s=120)
        assert "a kept answer was wrong" in pooler.log()
    finally:
        followed.sql("drop schema alice cascade")


def test_what_cannot_be_compared_is_told(pooled, followed):  # noqa: F811
    """No rule; nothing that could be answered; a wrong word."""
    pooler = cached(pooled, rules="[cache]\nall = database=app ttl_ms=1000\n")
    code, out, err = ended(verify(pooler, "--seconds", "0"))
    assert (code, out) == (3, "") and "no database is followed" in err, (code, out, err)
    pooler = cached(pooled)
    until_followed(pooler)
    code, out, err = ended(verify(pooler, "--seconds", "0"))
    assert code == 3 and "could answer nothing" in err, (code, out, err)
    assert ended(verify(pooler, "--every", "0"))[0] == 2


def test_hits_are_compared_in_a_successor(pooled, followed):  # noqa: F811
    """-R while many clients wait for the same answers and each hit is compared: the new process compares, too, and nothing is wrong."""
    pooler = cached(functools.partial(with_pid_file, pooled), query_cache_verify=1, default_pool_size=2)
    until_followed(pooler)
    counted = lambda column: int(row(pooler)[column])  # noqa: E731
    with contextlib.ExitStack() as readers:
        for _ in range(8):
            readers.enter_context(Reader(pooler))
        for turn in range(3):
            eventually(lambda: counted("verified") >= 20, "hits are compared", timeout_s=60)
            assert counted("wrong") == 0
            old = successor(pooler)
            followed.sql("update counted set value = %s where id = 1", [turn])
            over(old)
        eventually(lambda: counted("verified") >= 20 and counted("coalesced") > 0, "hits are compared, and misses wait for each other", timeout_s=60)
        assert counted("wrong") == 0
    assert "a kept answer was wrong" not in pooler.log()


def test_a_successor_comes_while_hits_are_compared(pooled, followed):  # noqa: F811
    """The command ends, and tells that its pooler is gone; the new process has the setting of its file."""
    pooler = cached(functools.partial(with_pid_file, pooled))
    until_followed(pooler)
    setting = lambda: pooler.show("CONFIG", key="query_cache_verify")[0]["value"]  # noqa: E731
    with Reader(pooler):
        process = verify(pooler, "--every", "3", "--seconds", "600")
        eventually(lambda: setting() == "3", "the setting is changed", timeout_s=30)
        over(successor(pooler))
        code, out, err = ended(process)
    assert (code, out) == (2, "") and "the console was lost" in err, (code, out, err)
    assert setting() == "0"

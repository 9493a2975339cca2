"""`follow=wal` where it cannot be had, or is lost: SHOW CACHE has the reason and the SQL that mends it, and PostgreSQL keeps no log for pgweir."""

import os
import signal

import pytest
from test_query_cache_wal import MAX_AGE_S, READ, cached, followed, publish_counters, row, until_followed, until_hit  # noqa: F401

from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually

SLOTS = "select count(*) from pg_replication_slots"


@pytest.fixture
def server_of(certificates):
    """A function that starts a PostgreSQL with these lines in its configuration, and a published table."""
    running = []

    def start(*lines):
        server = Cluster(DISTRIBUTION, certificates)
        running.append(server)
        server.stop()
        with open(server.data / "postgresql.conf", "a") as conf:
            conf.write("\n".join(lines) + "\n")
        server.start()
        publish_counters(server)
        return server

    yield start
    for server in running:
        server.discard()


def reason_of(poolers, server, part):
    """Waits until SHOW CACHE has a reason with this part; returns the reason, and the pooler."""
    pooler = cached(lambda **options: poolers({"app": server.at("app")}, **options))
    with pooler.connect() as client:
        client.execute("select 1")
    return eventually(lambda: part in (row(pooler)["follow_reason"] or "") and row(pooler)["follow_reason"], part, timeout_s=30), pooler


def test_no_slot_is_free(poolers, server_of):
    """The only slot is another one's: the reason has PostgreSQL's words, and the SQL."""
    server = server_of("max_replication_slots = 1")
    server.sql("select pg_create_physical_replication_slot('taken')")
    reason, _ = reason_of(poolers, server, "all replication slots are in use")
    assert "ALTER SYSTEM SET max_replication_slots = " in reason, reason


def test_no_replication_connection_is_free(poolers, server_of):
    """`max_wal_senders` is used up: the same."""
    server = server_of("max_wal_senders = 0")
    reason, _ = reason_of(poolers, server, "max_wal_senders")
    assert "ALTER SYSTEM SET max_wal_senders = " in reason, reason


def test_the_right_is_missing(poolers, server_of):
    """A role without REPLICATION: the reason names the statement, and following begins when it was run."""
    server = server_of()
    server.sql("alter role u_repl noreplication")
    reason, pooler = reason_of(poolers, server, "REPLICATION")
    statement = 'ALTER ROLE "u_repl" REPLICATION'
    assert statement in reason, reason
    server.sql(statement)
    eventually(lambda: row(pooler)["follow_state"] == "following", "changes are followed", timeout_s=90)


def test_a_pooler_that_hangs_loses_its_slot(pooled, followed):  # noqa: F811
    """SIGSTOP: PostgreSQL ends the connection after `wal_sender_timeout`, and the slot with it. After SIGCONT no answer of before is given."""
    with followed.configured(wal_sender_timeout="5s"):
        pooler = cached(pooled)
        until_followed(pooler)
        with pooler.connect() as client:
            assert until_hit(pooler, client, READ, [1]) == (0,)
            pooler.signal(signal.SIGSTOP)
            try:
                followed.sql("update counted set value = 7 where id = 1")
                eventually(lambda: followed.sql(SLOTS) == [(0,)], "the slot is gone", timeout_s=60)
            finally:
                pooler.signal(signal.SIGCONT)
            eventually(lambda: client.execute(READ, [1]).fetchone() == (7,), "the change is seen", timeout_s=MAX_AGE_S + 5)
            until_followed(pooler)
            assert until_hit(pooler, client, READ, [1]) == (7,)


def test_a_stream_that_stands_still_is_left(pooled, followed):  # noqa: F811
    """The walsender sends nothing while much is written: pgweir leaves at `query_cache_lag_bytes`, says so, and the slot goes with the connection."""
    pooler = cached(pooled, query_cache_lag_bytes=1 << 20)
    until_followed(pooler)
    with pooler.connect() as client:
        until_hit(pooler, client, READ, [1])
        ((pid,),) = followed.sql("select active_pid from pg_replication_slots")
        os.kill(pid, signal.SIGSTOP)
        try:
            followed.sql("create table filling as select repeat('x', 1000) as text from generate_series(1, 20000)")
            followed.sql("update counted set value = 3 where id = 1")

            def is_left():
                client.execute(READ, [1])
                return "query_cache_lag_bytes" in (row(pooler)["follow_reason"] or "")

            eventually(is_left, "it is left", timeout_s=60)
            assert client.execute(READ, [1]).fetchone() == (3,)
        finally:
            os.kill(pid, signal.SIGCONT)
            followed.sql("drop table if exists filling")
        until_followed(pooler)
        eventually(lambda: followed.sql(SLOTS) == [(1,)], "only the new slot is left", timeout_s=30)
        assert until_hit(pooler, client, READ, [1]) == (3,)

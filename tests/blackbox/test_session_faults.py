"""What can go wrong with a session that a client keeps: each client is told, and no other one notices."""

import threading

import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import Closed

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")


def admin(pg):
    return psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True)


def pinned(pooler):
    return sum(int(row["sv_pinned"]) for row in pooler.show("pools_extended"))


def test_a_pinned_client_is_told_what_it_lost(pooled, pg):
    """Its server is terminated: PostgreSQL's words, and what this client had there."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as one, pooler.raw() as two, admin(pg) as boss:
        one.query("create temp table t (a int)")
        one.query("select pg_advisory_lock(8801)")
        pid = one.value("select pg_backend_pid()")
        boss.execute("select pg_terminate_backend(%s)", (int(pid),))
        with pytest.raises(Closed) as end:
            one.query("select 1")
        told = end.value.error
        assert told["C"] == "57P01" and "temporary objects, advisory locks" in told["D"], told
        assert two.value("select 1") == "1"
        eventually(lambda: pinned(pooler) == 0, "the pin is gone with its client")


def test_discard_all_ends_every_pin(pooled):
    """Temporary table, lock, held cursor, channel, prepared statement and settings: all gone, and the server is free."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        for text in (
            "create temp table t (a int)",
            "select pg_advisory_lock(8802)",
            "declare c cursor with hold for select 1",
            "listen news",
            "prepare p as select 1; prepare q as select 2",
            "set work_mem = '7777kB'",
            "set pgweir.pin = on",
        ):
            one.query(text)
        assert pinned(pooler) == 1
        one.query("discard all")
        assert two.value("select pg_try_advisory_lock(8802)") == "t"
        two.query("select pg_advisory_unlock(8802)")
        eventually(lambda: pinned(pooler) == 0, "no client keeps the server")
        for text, code in (("select * from t", "42P01"), ("fetch c", "34000"), ("execute p", "26000")):
            assert one.query(text).error["C"] == code
        assert one.query("select pg_listening_channels()").rows == []
        assert one.value("show work_mem") != "7777kB"


def test_more_pins_than_servers(pooled):
    """One client too many waits, and query_wait_timeout tells it why; when a pin ends, the next one gets the server."""
    pooler = pooled(default_pool_size=2, query_wait_timeout=2)
    with pooler.raw() as one, pooler.raw() as two:
        for session in (one, two):
            session.query("create temp table t (a int)")
        with pooler.raw() as three:
            with pytest.raises(Closed) as end:
                three.query("select 1")
            assert end.value.error["C"] == "57P03", end.value.error
        two.query("drop table t")
        with pooler.raw() as four:
            assert four.value("select 1") == "1"


def test_max_pinned_leaves_servers_for_other_clients(pooled):
    """With a limit the client that would be one more is told why, and what it had is gone."""
    pooler = pooled(default_pool_size=2, max_pinned=1)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw() as three:
        one.query("select pg_advisory_lock(8803)")
        # That a client keeps its server is found after the answer: on a busy machine the second could be found first.
        eventually(lambda: pinned(pooler) == 1, "the first one keeps its server")
        with pytest.raises(Closed) as end:
            two.query("select pg_advisory_lock(8804)")
            two.query("select 1")
        assert end.value.error["C"] == "53400" and "advisory locks" in end.value.error["M"]
        eventually(lambda: three.value("select pg_try_advisory_lock_shared(8804)") == "t", "the lock went with its client")


def test_a_value_that_is_gone_ends_its_client_alone(pooled, pg):
    """What a setting names was dropped: PostgreSQL refuses it on the next server, in its words."""
    pooler = pooled(default_pool_size=1)
    with admin(pg) as boss:
        boss.execute("drop text search configuration if exists short_lived")
        boss.execute("create text search configuration short_lived (copy = simple)")
        with pooler.raw() as one, pooler.raw() as two:
            one.query("set default_text_search_config = 'public.short_lived'")
            assert two.value("select 2") == "2"
            boss.execute("drop text search configuration short_lived")
            two.query("reset default_text_search_config")
            with pytest.raises(Closed) as end:
                one.query("select 1")
            assert end.value.error["C"] == "22023" and "short_lived" in end.value.error["M"], end.value.error
            assert two.value("select 3") == "3"


def test_a_storm_of_notifications(pooled):
    """Many notifications at once, to clients that listen, transact and idle: each gets all of them, in order."""
    pooler = pooled(default_pool_size=3)
    storm = 200
    per_statement = 50
    heard = {}

    def listen(who, ready):
        with pooler.connect() as session:
            session.autocommit = True
            session.execute("listen storm")
            ready.wait(20)
            got = []
            for note in session.notifies(timeout=60, stop_after=storm * per_statement):
                got.append(int(note.payload))
            heard[who] = got

    ready = threading.Barrier(4)
    threads = [threading.Thread(target=listen, args=(who, ready)) for who in range(3)]
    for thread in threads:
        thread.start()
    with pooler.raw() as speaker:
        ready.wait(20)
        for turn in range(storm):
            first = turn * per_statement
            speaker.query(f"select pg_notify('storm', n::text) from generate_series({first}, {first + per_statement - 1}) n")
    for thread in threads:
        thread.join()
    assert all(heard[who] == list(range(storm * per_statement)) for who in range(3)), {who: len(got) for who, got in heard.items()}

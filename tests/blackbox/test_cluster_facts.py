"""What pgweir takes for granted about a primary and its standbys, asked of PostgreSQL itself, in each version that a cluster may have."""

import pathlib
import re
import signal

import psycopg
import pytest

from harness.cluster import Cluster
from harness.machine import eventually

CLUSTER = pathlib.Path(__file__).resolve().parents[2] / "crates/core/src/cluster"
#: The question that pgweir asks each node, as it stands in its source.
WATCH = re.sub(r"\\\n\s*", "", re.search(r'QUESTION: &str = "(.*?)";', (CLUSTER / "answer.rs").read_text(), re.S).group(1))

#: A primary's position: the end of its last record, so that each standby comes there. Right behind the header of a page (24 bytes, 40 in
#: the first page of a segment) no record ends; the insert position of an idle primary may be there, and a standby stays at the page's
#: start. It is the insert position, as a commit with `synchronous_commit=off` is ahead of what is written.
PRIMARY = """select (case
    when at % pg_size_bytes(current_setting('wal_segment_size')) = 40 then lsn - 40::numeric
    when at % current_setting('wal_block_size')::numeric = 24 then lsn - 24::numeric else lsn end)::text
    from (select lsn, lsn - '0/0' as at from pg_current_wal_insert_lsn() as lsn) as inserts"""
STANDBY = "select pg_last_wal_replay_lsn()::text"


class Pair:
    """A primary and its standby."""

    def __init__(self, major, certificates):
        self.primary = Cluster(major, certificates)
        self.primary.sql("create sequence drawn_numbers; select nextval('drawn_numbers') from generate_series(1, 3)")
        self.primary.sql("create table facts (a int); insert into facts values (1)")
        self.primary.sql("create unlogged table unlogged_one (a int)")
        self.standby = Cluster(major, certificates, follows=self.primary)
        self.wait()

    def wait(self):
        """The standby has everything that was committed."""
        position = self.primary.sql(PRIMARY)[0][0]
        eventually(lambda: self.standby.sql("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [position]) == [(True,)], f"the standby has {position}")
        return position

    def discard(self):
        self.standby.discard()
        self.primary.discard()


@pytest.fixture(scope="module", params=["14", "16", "18"])
def pair(request, certificates):
    pair = Pair(request.param, certificates)
    yield pair
    pair.discard()


@pytest.fixture(params=["14", "18"])
def own_pair(request, certificates):
    """A pair that the test may destroy."""
    pair = Pair(request.param, certificates)
    yield pair
    pair.discard()


REFUSED = {
    "insert into facts values (2)": "25006",
    "select * from facts for update": "25006",
    "select nextval('drawn_numbers')": "25006",
    "listen a": "25006",
    "notify a": "25006",
    "create temporary table x (a int)": "25006",
    "select pg_current_xact_id()": "25006",
    "select * from unlogged_one": "0A000",
    "begin isolation level serializable": "0A000",
    "begin read write": "0A000",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_what_a_standby_refuses(pair, statement):
    """Nothing has happened then: the statement may run on the primary."""
    with pair.standby.connect() as connection:
        with pytest.raises(psycopg.Error) as refused:
            connection.execute(statement)
            connection.execute("select 1")
        assert refused.value.sqlstate == REFUSED[statement]


@pytest.mark.parametrize("statement", ["select pg_advisory_lock(7)", "select pg_export_snapshot()", "do 'begin end'", "select pg_stat_reset()"])
def test_what_a_standby_does_in_its_own_way(pair, statement):
    """No error says that this is something else than on the primary: words and names must keep it away."""
    with pair.standby.connect() as connection:
        connection.execute("begin")
        connection.execute(statement)


def test_a_sequence_is_ahead_on_a_standby(pair):
    """The log has values in advance, so a standby shows another one."""
    pair.wait()
    asked = "select last_value from drawn_numbers"
    assert pair.primary.sql(asked) == [(3,)] and pair.standby.sql(asked) == [(33,)]


def test_the_role_is_told_at_login(pair):
    with pair.primary.connect() as on_primary, pair.standby.connect() as on_standby:
        told = [connection.pgconn.parameter_status(b"in_hot_standby") for connection in (on_primary, on_standby)]
    assert told == [b"off", b"on"]


def test_an_idle_standby_reaches_the_position_that_is_asked_for(pair):
    """Right behind a page's header no record ends: the insert position of an idle primary may be one that no standby reaches."""
    pair.primary.sql("select pg_switch_wal()")
    pair.primary.sql("checkpoint")
    inserted, asked = pair.primary.sql("select pg_current_wal_insert_lsn()::text")[0][0], pair.wait()
    assert int(asked.split("/")[1], 16) <= int(inserted.split("/")[1], 16)

    def at_segment_start():
        # Nothing is inserted behind this by itself for a while: no checkpoint is due.
        pair.primary.sql("select pg_switch_wal()")
        inserted = pair.primary.sql("select pg_current_wal_insert_lsn() - '0/0'")[0][0]
        return inserted % (16 * 1024 * 1024) == 40

    eventually(at_segment_start, "the next record begins behind a segment's header")
    asked = pair.wait()
    assert int(asked.split("/")[1], 16) % (16 * 1024 * 1024) == 0


def test_the_position_covers_what_is_visible(pair):
    """A standby that has replayed the position asked for behind a commit shows what was committed; also a commit that was not flushed."""
    quick = pair.primary.configured(wal_writer_delay="10ms")
    with quick, pair.primary.connect() as writer, pair.standby.connect() as reader:
        writer.execute("create table if not exists seen (n int)")
        writer.execute("set synchronous_commit = off")
        early = 0
        for n in range(200):
            writer.execute("insert into seen values (%s)", [n])
            position = writer.execute(PRIMARY).fetchone()[0]

            def shows(position=position, n=n):
                nonlocal early
                replayed = reader.execute(STANDBY).fetchone()[0]
                rows = reader.execute("select count(*) from pg_class where relname = 'seen'").fetchone()[0]
                found = rows and reader.execute("select count(*) from seen where n = %s", [n]).fetchone()[0]
                if lsn(replayed) >= lsn(position):
                    assert found, f"{replayed} covers {position}"
                    return True
                early += 1
                return False

            eventually(shows, f"row {n} is there", every_s=0)


def lsn(text):
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def watched(node):
    """What a node says to pgweir: role, position, received, replayed, timeline, identifier, start, version."""
    return node.sql(WATCH)[0]


def test_what_a_promotion_changes(own_pair):
    """An old connection is told of its new role before its next answer is over; the new timeline is known at once, and where it began."""
    standby = own_pair.standby
    own_pair.wait()
    identifier = watched(own_pair.primary)[5]
    assert watched(standby)[0] == "true" and int(watched(standby)[4], 16) == 1 and watched(standby)[5] == identifier
    with standby.connect() as old:
        old.execute("begin")
        old.execute("select 1")
        own_pair.primary.stop(signal.SIGQUIT)
        standby.promote()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            old.execute("insert into facts values (3)")
        old.execute("rollback")
        assert old.pgconn.parameter_status(b"in_hot_standby") == b"off"
        old.execute("insert into facts values (3)")
    role, position, _, replayed, timeline, *_ = watched(standby)
    assert (role, int(timeline, 16)) == ("false", 2)
    assert replayed and lsn(replayed) <= lsn(position), "where its history left the other one"
    standby.stop(signal.SIGQUIT)
    standby.start()
    assert int(watched(standby)[4], 16) == 2


def test_a_standby_that_follows_tells_the_new_timeline(own_pair, certificates):
    """To a member of pg_read_all_stats at once; to others it is told by what recovery must reach at least."""
    other = Cluster(own_pair.primary.major, certificates, follows=own_pair.primary)
    try:
        own_pair.primary.sql("create role plain login")
        own_pair.wait()
        own_pair.primary.stop(signal.SIGQUIT)
        own_pair.standby.promote()
        other.stop()
        other.follow(own_pair.standby)
        eventually(lambda: int(watched(other)[4], 16) == 2, "it receives the new timeline")
        own_pair.standby.sql("checkpoint")
        other.sql("select 1")
        with other.connect(user="plain") as plain:

            def tells():
                own_pair.standby.sql("insert into facts values (4)")
                own_pair.standby.sql("checkpoint")
                other.sql("checkpoint")
                return int(plain.execute(WATCH).fetchone()[4], 16) == 2

            eventually(tells, "a checkpoint says so")
    finally:
        other.discard()


def test_an_xid_may_come_again(own_pair):
    """`pg_xact_status` alone proves nothing: the records of a transaction can be lost, and its number is given to another one."""
    primary, standby = own_pair.primary, own_pair.standby
    own_pair.wait()
    standby.sql("select pg_wal_replay_pause()")
    eventually(lambda: standby.sql("select pg_get_wal_replay_pause_state()") == [("paused",)], "replay is paused")
    standby.stop()
    with primary.connect() as writer:
        writer.execute("begin")
        lost = writer.execute("select pg_current_xact_id()::text").fetchone()[0]
        writer.execute("insert into facts values (5)")
        writer.execute("commit")
    primary.stop(signal.SIGQUIT)
    standby.start()
    standby.promote()
    numbers = set()
    for _ in range(4):
        with standby.connect() as writer:
            writer.execute("begin")
            numbers.add(writer.execute("select pg_current_xact_id()::text").fetchone()[0])
            writer.execute("commit")
    assert lost in numbers
    assert standby.sql("select pg_xact_status(%s::xid8)", [lost]) == [("committed",)]
    assert standby.sql("select count(*) from facts where a = 5") == [(0,)]

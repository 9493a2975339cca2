"""causal_reads with real streaming replication: what clients see at standbys that are behind."""

import pytest

from harness import wire
from harness.machine import eventually

from test_cluster_reads import reading  # noqa: F401: a fixture
from test_clusters import nodes  # noqa: F401: a fixture

TABLE = "create table kept (id int primary key); grant all on kept to public"


@pytest.fixture
def kept(nodes, reading):  # noqa: F811
    """A function that makes a primary with standbys and the table, and a pooler with route=auto."""

    def start(count=2, **options):
        made = nodes(count)
        made.primary.sql(TABLE)
        for standby in made.all[1:]:
            eventually(lambda: standby.sql("select to_regclass('kept') is not null") == [(True,)], "the standby has it")  # noqa: B023
        return made, reading(made, options={"route": "auto", "lag_limit_ms": 0, "causal_wait_ms": 10, **options})

    return start


def reads(pooler, node="m2"):
    """The number of reads that this node was sent."""
    return int(pooler.show("NODES", node=node)[0]["reads"])


def pause(standby):
    standby.sql("select pg_wal_replay_pause()")
    eventually(lambda: standby.sql("select pg_get_wal_replay_pause_state()") == [("paused",)], "replay stands")


def resume(standby, primary):
    """Replay goes on, and the standby has all rows."""
    rows = primary.sql("select count(*) from kept")
    standby.sql("select pg_wal_replay_resume()")
    eventually(lambda: standby.sql("select count(*) from kept") == rows, "it has caught up")


def has(session, number):
    return session.value(f"select count(*) from kept where id = {number}") == "1"


def shown_by_standby(pooler, session, number, before, node="m2"):
    """The row is there, and one of the reads since was the node's. A slow machine may take longer than causal_wait_ms."""
    assert has(session, number)
    return reads(pooler, node) > before


def starts_reading(session):
    """The names of the database are known after the first statement, and the next ones go to the standby."""
    session.query("select 1")
    session.query("select 1")


@pytest.mark.parametrize("mode", ["session", "database"])
def test_a_client_sees_its_own_change(kept, mode):
    """While replay stands the primary shows it, and later the standby."""
    two, pooler = kept(causal_reads=mode)
    primary, standby = two.all
    with pooler.raw() as session:
        starts_reading(session)
        for number in range(5):
            pause(standby)
            session.query(f"insert into kept values ({number})")
            before = reads(pooler)
            assert has(session, number) and has(session, number)
            assert reads(pooler) == before, "the standby does not have it"
            resume(standby, primary)
            eventually(lambda: shown_by_standby(pooler, session, number, before), "the standby shows it")  # noqa: B023


def test_with_off_a_client_may_not_see_it(kept):
    """What the other tests are about."""
    two, pooler = kept(causal_reads="off")
    with pooler.raw() as session:
        starts_reading(session)
        pause(two.all[1])
        session.query("insert into kept values (1)")
        assert not has(session, 1)
        resume(two.all[1], two.primary)
        assert has(session, 1)


@pytest.mark.parametrize("words", ["set pgweir.route = 'prefer-standby'", "set pgweir.route = 'any'"])
def test_every_route_obeys(kept, words):
    """Not only what goes to a standby by itself."""
    two, pooler = kept()
    with pooler.raw() as session:
        starts_reading(session)
        pause(two.all[1])
        session.query("insert into kept values (1)")
        session.query(words)
        assert has(session, 1)


def test_a_hint_and_route_standby_wait_for_the_standby(kept):
    """The primary does not take such a statement."""
    two, pooler = kept(causal_wait_ms=0)
    primary, standby = two.all
    for words, hint in [("select 1", "/* pgweir: standby */ "), ("set pgweir.route = 'standby'", "")]:
        with pooler.raw() as session:
            starts_reading(session)
            pause(standby)
            number = 1 + len(primary.sql("select from kept"))
            session.query(f"insert into kept values ({number})")
            session.query(words)
            session.send(wire.query(f"{hint}select id, pg_is_in_recovery() from kept where id = {number}"))
            assert session.quiet()
            resume(standby, primary)
            assert session.until().rows == [[str(number), "t"]]


POSITION = "select substr(pg_walfile_name(at), 1, 8) || '-' || at from pg_current_wal_insert_lsn() as at"


@pytest.mark.parametrize("way", ["set", "option", "hint"])
def test_a_client_says_what_it_must_see(kept, way):
    """A position that another connection has asked the primary for."""
    two, pooler = kept(causal_reads="off")
    primary, standby = two.all
    with pooler.raw() as other:
        starts_reading(other)
        pause(standby)
        primary.sql("insert into kept values (1)")
        ((position,),) = primary.sql(POSITION)
        assert not has(other, 1), "it says nothing"
        with pooler.raw(**({"options": f"-c pgweir.read_after={position}"} if way == "option" else {})) as session:
            if way == "set":
                session.query(f"set pgweir.read_after = '{position}'")
            hint = f"/* pgweir: after={position} */ " if way == "hint" else ""
            read = f"{hint}select count(*) from kept where id = 1"
            before = reads(pooler)
            assert session.value(read) == "1" and reads(pooler) == before, "the primary shows it"
            resume(standby, primary)
            eventually(lambda: session.value(read) == "1" and reads(pooler) > before, "the standby shows it")


def test_what_is_no_position_is_refused(kept):
    """The session goes on, and may take it back."""
    _, pooler = kept(causal_reads="off", causal_wait_ms=60_000)
    with pooler.raw() as session:
        starts_reading(session)
        for text in ("nonsense", "FFFFFF/0"):
            session.send(wire.query(f"select 1 /* pgweir: after={text} */"))
            assert session.until().error["C"] == "22023", text
        session.query("set pgweir.read_after = 'nonsense'")
        session.send(wire.query("select 1"))
        assert session.until().error["C"] == "22023"
        session.query("reset pgweir.read_after")
        assert session.value("select 1") == "1"


def test_another_clients_change(kept):
    """With database a read shows what was committed past pgweir before it came."""
    two, pooler = kept(causal_reads="database")
    with pooler.raw() as session, pooler.raw() as other:
        starts_reading(session)
        starts_reading(other)
        pause(two.all[1])
        two.primary.sql("insert into kept values (1)")
        assert has(session, 1) and has(other, 1)
        resume(two.all[1], two.primary)
        before = reads(pooler)
        eventually(lambda: shown_by_standby(pooler, session, 1, before), "the standby shows it")


@pytest.mark.parametrize("mode", ["off", "session"])
def test_a_client_does_not_go_back_in_time(kept, mode):
    """A client leaves its standby for one that is behind."""
    three, pooler = kept(3, causal_reads=mode)
    ahead, behind = three.all[1:]
    pooler.admin("DRAIN NODE main.m3")
    with pooler.raw() as session:
        starts_reading(session)
        pause(behind)
        three.primary.sql("insert into kept values (1)")
        eventually(lambda: ahead.sql("select id from kept") == [(1,)], "one of them has it")
        assert has(session, 1)
        pooler.admin("ATTACH NODE main.m3")
        pooler.admin("DRAIN NODE main.m2")
        assert has(session, 1) == (mode == "session")
        resume(behind, three.primary)
        before = reads(pooler, "m3")
        eventually(lambda: shown_by_standby(pooler, session, 1, before, "m3"), "the standby shows it")


def test_at_the_start_of_a_page_no_read_waits(kept):
    """An idle primary's position may be behind the header of a page, where its standbys never come."""
    two, pooler = kept(causal_wait_ms=60000)
    primary, standby = two.all
    with pooler.raw() as session:
        starts_reading(session)
        for number in range(5):
            session.query(f"insert into kept values ({number})")
            primary.sql("select pg_switch_wal()")
            asked = primary.sql("select pg_current_wal_insert_lsn()::text")[0][0]
            assert asked.endswith("000028"), asked
            before = reads(pooler)
            assert has(session, number)
            assert reads(pooler) == before + 1
            assert standby.sql(f"select pg_last_wal_replay_lsn() < '{asked}'") == [(True,)]

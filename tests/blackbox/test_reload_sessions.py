"""After a reload or an online restart that changes what pgweir knows of its clients' sessions, no client gets another client's state."""

import pytest

from harness.pooler import kind
from harness.wire import SYNC, bind, execute, parse

from test_cluster_auto import marked, ran_on, shop  # noqa: F401: a fixture
from test_cluster_reading import port_of
from test_cluster_reads import reading  # noqa: F401: a fixture
from test_clusters import nodes  # noqa: F401: a fixture
from test_takeover import over, successor

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer keeps no sessions")

STATES = [
    ("set app.tenant = 'A'", "select current_setting('app.tenant', true)"),
    ("set role bob", "select current_user"),
    ("set search_path = 'pg_catalog'", "show search_path"),
    ("create temporary table kept as select 'of A' as v", "select v from kept"),
]
"""What a client leaves in its session, and how another one would see it."""


@pytest.fixture
def may_be_bob(pg):
    pg.sql("grant bob to alice")
    yield
    pg.sql("revoke bob from alice")


def reload(pooler, **settings):
    """Changes settings by a reload."""
    pooler.write_ini(**settings)
    pooler.reload()


def restart(pooler, **settings):
    """Changes settings by an online restart."""
    pooler.write_ini(**settings)
    over(successor(pooler))


CHANGES = [(reload, "preserve", state) for state in STATES] + [(reload, "error", STATES[1]), (restart, "preserve", STATES[1]), (restart, "preserve", STATES[3])]


@pytest.mark.parametrize(("change", "mode", "state"), CHANGES)
def test_sessions_are_kept_from_now_on(pooled, may_be_bob, change, mode, state):
    """With session_state=pgbouncer a server has the state of the client that used it. When sessions are kept, such a server is closed."""
    (leaves, look), pooler = state, pooled(default_pool_size=1, session_state="pgbouncer", pidfile="pid")
    with pooler.raw() as one, pooler.raw() as two:
        clean = two.query(look).rows
        assert not one.query(leaves).errors
        change(pooler, session_state=mode)
        for _ in range(2):
            assert two.query(look).rows == clean
        with pooler.raw() as three:
            assert three.query(look).rows == clean


@pytest.mark.parametrize(("leaves", "look"), STATES, ids=["setting", "role", "path", "table"])
def test_a_transaction_that_session_pooling_interrupts(pooled, may_be_bob, leaves, look):
    """Transaction, session and transaction pooling in turn, while a transaction is open: no other client gets the state that it leaves."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        clean = two.query(look).rows
        one.query("begin")
        one.query("select 1")
        reload(pooler, pool_mode="session")
        assert not one.query(leaves).errors
        one.query("commit")
        reload(pooler, pool_mode="transaction")
        one.query("select 1")
        for _ in range(2):
            assert two.query(look).rows == clean


def test_names_of_prepared_statements_are_known_from_now_on(pooled):
    """With max_prepared_statements=0 servers have clients' names."""
    pooler = pooled(default_pool_size=1, max_prepared_statements=0)
    with pooler.raw() as one, pooler.raw() as two:
        one.send(parse("x", "select 'of A'") + SYNC)
        one.until("Z")
        reload(pooler, max_prepared_statements=200)
        two.send(bind("", "x", []) + execute("", 0) + SYNC)
        assert two.until("Z").error["C"] == "26000"


def reads_at(two, session):
    """The session reads, at the standby."""
    text, mark = marked("select a from shop")
    assert not session.query(text).errors
    assert ran_on(two.all, mark) == [two.all[1].port]


@pytest.mark.parametrize("state", ["idle", "reads", "only reads"])
def test_a_database_leaves_its_cluster(shop, state):  # noqa: F811
    """Clients that a standby served go on at the database's new place; an open transaction as far as it can."""
    two, pooler = shop({"begin_undeclared": "first"})
    with pooler.raw() as session, pooler.raw() as other:
        for client in (session, other):
            client.query("select 1")
            assert not client.query("select a from shop").errors
        if state != "idle":
            session.query("begin" if state == "reads" else "begin read only")
            reads_at(two, session)
        pooler.databases["app"] = two.primary.at("app")
        reload(pooler)
        for client in (session, other):
            assert not client.query("select a from shop").errors
        if state == "reads":
            answer = session.query("insert into shop values (8)")
            assert not answer.errors, answer
        if state != "idle":
            session.query("commit")
        for client in (session, other):
            answer = client.query("insert into shop values (9)")
            assert not answer.errors, answer
            assert port_of(client) == str(two.primary.port)


def test_session_pooling_while_a_transaction_reads_at_a_standby(shop):  # noqa: F811
    """It goes on at the primary with its first change, as it would have in transaction pooling."""
    two, pooler = shop({"begin_undeclared": "first"})
    with pooler.raw() as session:
        session.query("select 1")
        session.query("begin")
        reads_at(two, session)
        reload(pooler, pool_mode="session")
        answer = session.query("insert into shop values (10)")
        assert not answer.errors, answer
        assert not session.query("commit").errors
        assert session.value("select count(*) from shop where a = 10") == "1"

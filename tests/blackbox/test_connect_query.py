"""connect_query: what it sets is what every client begins with, whichever client had the server before."""

import pytest

from harness.machine import eventually
from harness.pooler import kind

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

STRANGERS = {
    "a routine": ["do $$ begin end $$"],
    "a temporary table": ["create temp table mine ()"],
    "a lock": ["select pg_advisory_lock(7)"],
    "a prepared statement": ["prepare mine as select 1"],
    "the same setting": ["set role none", "set statement_timeout = 5678"],
    "everything": ["discard all"],
    "a failure": ["begin", "set role none", "select 1/0", "rollback"],
}
"""What other clients do with a server before a client gets it, and leave behind when they go."""


@pytest.fixture
def member(pg):
    """alice may become bob."""
    pg.sql("grant bob to alice")
    yield
    pg.sql("revoke bob from alice")


def disturb(pooler, statements, **startup):
    """A client does this and leaves; its server is free again."""
    with pooler.raw("own", **startup) as stranger:
        for statement in statements:
            stranger.query(statement)
    eventually(lambda: pooler.pool("own")["sv_idle"] == 1, "the server is free")


@pytest.mark.usefixtures("member")
@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("does", STRANGERS)
def test_what_it_sets_outlives_other_clients(pooled, pg, does, mode):
    """A role and a timeout that it sets are there for every client, and no client's connection is the worse for it."""
    query = "set statement_timeout = 1234; set pgweir_test.tenant = 'x'; set role bob"
    pooler = pooled(databases={"own": pg.at("app", connect_query=query)}, default_pool_size=1, pool_mode=mode)
    for _ in range(2):
        disturb(pooler, STRANGERS[does])
        with pooler.raw("own") as session:
            assert session.query("select current_user, session_user").rows == [["bob", "alice"]]
            assert session.value("show statement_timeout") == "1234ms"
            assert session.value("show pgweir_test.tenant") == "x"
    assert len(pg.backends("app")) == 1


@pytest.mark.usefixtures("member")
def test_clients_that_stay_keep_their_own(pooled, pg):
    """Two clients on one server: one as it began, one that changed its session."""
    query = "set statement_timeout = 1234; set role bob"
    pooler = pooled(databases={"own": pg.at("app", connect_query=query)}, default_pool_size=1)
    with pooler.raw("own") as one, pooler.raw("own") as two:
        one.query("set role none")
        one.query("set statement_timeout = 0")
        for _ in range(2):
            assert two.query("select current_user, current_setting('statement_timeout')").rows == [["bob", "1234ms"]]
            assert one.query("select current_user, current_setting('statement_timeout')").rows == [["alice", "0"]]
        one.query("do $$ begin perform set_config('work_mem', '7MB', false); end $$")
        assert two.query("select current_user, current_setting('work_mem')").rows == [["bob", "4MB"]]


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_reported_parameters_are_told_as_it_sets_them(pooled, pg, mode):
    """What servers report by themselves: clients are told what is the case, at login and for each later one."""
    query = "set timezone = 'Asia/Tokyo'; set default_transaction_read_only = on; set intervalstyle = iso_8601"
    pooler = pooled(databases={"own": pg.at("app", connect_query=query)}, default_pool_size=1, pool_mode=mode)
    disturb(pooler, ["select 1"])
    disturb(pooler, ["set timezone = 'UTC'", "set default_transaction_read_only = off", "do $$ begin end $$"])
    with pooler.raw("own") as session:
        assert session.parameters["TimeZone"] == "Asia/Tokyo"
        assert session.parameters["IntervalStyle"] == "iso_8601"
        assert session.value("show timezone") == "Asia/Tokyo"
        assert session.value("show transaction_read_only") == "on"
        if "default_transaction_read_only" in session.parameters:
            assert session.parameters["default_transaction_read_only"] == "on"
    assert len(pg.backends("app")) == 1


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_what_a_client_asks_for_goes_before(pooled, pg, mode):
    """Startup parameters win over it, and RESET goes back to them."""
    query = "set timezone = 'Asia/Tokyo'; set work_mem = '7MB'; set search_path = pg_catalog"
    pooler = pooled(databases={"own": pg.at("app", connect_query=query)}, default_pool_size=2, pool_mode=mode)
    disturb(pooler, ["select 1"])
    with pooler.raw("own", options="-c work_mem=9MB", TimeZone="Europe/Paris") as session:
        assert session.parameters["TimeZone"] == "Europe/Paris"
        for _ in range(2):
            assert session.value("show timezone") == "Europe/Paris"
            assert session.value("show work_mem") == "9MB"
            assert session.value("show search_path") == "pg_catalog"
            session.query("set timezone = 'UTC'")
            session.query("set work_mem = '8MB'")
            session.query("reset timezone")
            session.query("reset work_mem")
    with pooler.raw("own") as other:
        assert other.query("select current_setting('work_mem'), current_setting('timezone')").rows == [["7MB", "Asia/Tokyo"]]


def test_a_session_needs_one_server(pooled, pg):
    """In session pooling the client that had the first server opened is the one that gets it."""
    pooler = pooled(databases={"own": pg.at("app", connect_query="set work_mem = '7MB'")}, default_pool_size=5, pool_mode="session")
    with pooler.raw("own") as session:
        assert session.value("select pg_backend_pid()") == str(session.pid)
        assert len(pg.backends("app")) == 1
        assert session.value("show work_mem") == "7MB"


def test_it_runs_again_behind_a_reset(pooled, pg):
    """What a client's leaving takes away with its own comes back: even what only this server has."""
    query = "create temp table if not exists ours as select 42 as answer"
    pooler = pooled(databases={"own": pg.at("app", connect_query=query)}, default_pool_size=1, pool_mode="session")
    disturb(pooler, ["drop table ours"])
    with pooler.raw("own") as session:
        assert session.value("select answer from ours") == "42"
    assert len(pg.backends("app")) == 1

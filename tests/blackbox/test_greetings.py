"""What clients are told at login: the parameters that PostgreSQL reports to a new connection now."""

import psycopg
import pytest
from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually
from harness.wire import Raw

def told(pooler, **startup):
    """The parameters that a client is told at its login."""
    with Raw(pooler.address) as session:
        answer = session.login("alice", "app", **startup)
        return dict(message.body[:-1].decode().split("\0", 1) for message in answer.of("S"))


def soon_told(pooler, ways, **expected):
    """Clients that log in one after the other, in each of these ways, are told this before long, and all of them the same."""

    def seen():
        return [{name: answer.get(name) for name in expected} for answer in (told(pooler, **way) for way in ways)]

    eventually(lambda: seen() == [expected] * len(ways), f"all clients are told {expected}", timeout_s=60)


@pytest.fixture
def standby(certificates):
    """A standby of a cluster of its own."""
    primary = Cluster(DISTRIBUTION, certificates)
    follower = Cluster(DISTRIBUTION, certificates, follows=primary)
    yield follower
    follower.discard()
    primary.discard()


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_promotion(poolers, standby, mode):
    """libpq's target_session_attrs=primary finds the new primary, although no statement ever told the pooler of the promotion."""
    pooler = poolers({"app": standby.at("app")}, pool_mode=mode)
    assert told(pooler)["in_hot_standby"] == "on"
    with pytest.raises(psycopg.OperationalError, match="hot standby"):
        pooler.connect(target_session_attrs="primary")
    standby.promote()

    def finds_it():
        try:
            with pooler.connect(target_session_attrs="primary") as connection:
                return connection.info.parameter_status("in_hot_standby") == "off"
        except psycopg.OperationalError:
            return False

    eventually(finds_it, "a client finds the primary")


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_changed_configuration_file(pooled, pg, mode):
    """ALTER SYSTEM: all clients that log in are told the same, with and without startup parameters."""
    pooler = pooled(pool_mode=mode)
    ways = [{}, {"application_name": "named"}, {"options": "-c work_mem=5MB"}]
    assert {told(pooler, **way)["TimeZone"] for way in ways} == {"Etc/UTC"}
    with pg.configured(timezone="Europe/Berlin", default_transaction_read_only="on"):
        soon_told(pooler, ways, TimeZone="Europe/Berlin", default_transaction_read_only="on")
        with pooler.connect() as connection:
            assert connection.execute("show timezone").fetchone() == ("Europe/Berlin",)
    soon_told(pooler, ways, TimeZone="Etc/UTC", default_transaction_read_only="off")


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_settings_of_the_database(pooled, pg, mode):
    """ALTER DATABASE: open connections keep their values. New clients are told the new ones, and find them."""
    pooler = pooled(pool_mode=mode)
    with pooler.connect(autocommit=True) as before:
        assert before.execute("show timezone").fetchone() == ("Etc/UTC",)
        pg.sql("alter database app set default_transaction_read_only = on", database="postgres")
        pg.sql("alter database app set timezone = 'europe/berlin'", database="postgres")
        try:
            ways = [{}, {"options": "-c work_mem=5MB"}]
            soon_told(pooler, ways, TimeZone="Europe/Berlin", default_transaction_read_only="on")
            with pooler.connect(autocommit=True) as after:
                shown = [after.execute(f"show {name}").fetchone()[0] for name in ("timezone", "default_transaction_read_only")]
                assert shown == ["Europe/Berlin", "on"]
            assert before.execute("show timezone").fetchone() == ("Etc/UTC",), "what it was told is its own"
        finally:
            pg.sql("alter database app reset default_transaction_read_only", database="postgres")
            pg.sql("alter database app reset timezone", database="postgres")
        soon_told(pooler, [{}], TimeZone="Etc/UTC", default_transaction_read_only="off")


def test_nothing_changes(pooled, pg):
    """A look that finds no change replaces no server; clients that log in one after the other share it."""
    pooler = pooled(default_pool_size=1)
    with pooler.connect(autocommit=True) as connection:
        pid = connection.execute("select pg_backend_pid()").fetchone()
        asked = f"select 1 from pg_stat_activity where pid = {pid[0]} and (query like '%pg_db_role_setting%' or query like '%SELECT ''o'', NULL%')"
        eventually(lambda: told(pooler) and pg.sql(asked), "the server is asked")
        assert connection.execute("select pg_backend_pid()").fetchone() == pid
    assert "server settings changed" not in pooler.log()


def test_other_versions(poolers, pg_other):
    """The question suits each version of PostgreSQL, and each says of itself that nothing has changed."""
    pooler = poolers({"app": pg_other.at("app")}, default_pool_size=1)
    told(pooler)
    asked = "select 1 from pg_stat_activity where application_name = '' and (query like '%pg_db_role_setting%' or query like '%SELECT ''o'', NULL%')"
    eventually(lambda: told(pooler) and pg_other.sql(asked), "the server is asked")
    assert "server settings changed" not in pooler.log()
    with pg_other.configured(timezone="Europe/Paris"):
        soon_told(pooler, [{}], TimeZone="Europe/Paris")

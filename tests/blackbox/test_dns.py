"""Names of server hosts: looked up in name servers of our own, remembered, taken in turn, and given up when they change."""

import pytest

from harness.link import Link
from harness.machine import eventually, free_port, give
from harness.nameserver import NameServer
from harness.wire import Closed, Raw


@pytest.fixture
def world(pg, poolers):
    """A function that starts a pooler whose hosts are found by a name server; the cluster is behind 127.0.0.1, .2 and .3 of one port."""
    made = []
    port = free_port()
    relays = [Link(pg.port, f"127.0.0.{n}", port) for n in (1, 2, 3)]
    made += relays

    def start(hosts, databases=None, zones=None, truncates=False, more="", **settings):
        names = NameServer(hosts, zones, truncates)
        made.append(names)
        lines = databases or {"app": "host=db.pgweir.test"}
        pooler = poolers({name: f"{line} port={port} dbname=app" for name, line in lines.items()}, start=False, **settings)
        conf = names.resolv_conf(pooler.folder, more)
        give(conf)
        pooler.write_ini(resolv_conf=conf)
        pooler.start()
        return pooler, names

    start.port = port
    yield start
    for one in made:
        one.close()


def refused(pooler, database):
    """The error of a client whose server cannot be reached."""
    with pytest.raises(Closed) as closed, Raw(pooler.address) as session:
        session.login("alice", database)
    return closed.value.error["M"]


@pytest.mark.parametrize("truncates", [False, True])
def test_our_own_name_server(world, truncates):
    """`resolv_conf`: over UDP, and over TCP when an answer does not fit. The search list makes a short name a long one."""
    pooler, names = world({"db.pgweir.test": ["127.0.0.1"]}, {"app": "host=db", "app2": "host=db.pgweir.test"}, more="search pgweir.test\n", truncates=truncates)
    for database in ("app", "app2"):
        with pooler.raw(database) as session:
            assert session.value("select 1") == "1"
    assert names.asked["A", "db"] == 0 and names.asked["A", "db.pgweir.test"] == 2 + 2 * truncates
    assert {row["addr"] for row in pooler.servers()} == {"127.0.0.1"}
    hosts = {row["hostname"]: row for row in pooler.show("DNS_HOSTS")}
    assert set(hosts) == {"db", "db.pgweir.test"}
    assert hosts["db"]["addrs"] == "127.0.0.1:0" and 0 <= int(hosts["db"]["ttl"]) <= 15
    assert pooler.show("DNS_ZONES") == [{"zonename": "pgweir.test", "serial": "0", "count": "1"}]
    lists = {row["list"]: row["items"] for row in pooler.show("LISTS")}
    assert (lists["dns_names"], lists["dns_zones"], lists["dns_queries"], lists["dns_pending"]) == ("2", "1", "0", "0")


def test_names_that_do_not_exist(world):
    """The log has the reason; the name is asked for once in `dns_nxdomain_ttl`, however often a connection is tried."""
    databases = {"app": "host=none.pgweir.test", "app2": "host=sick.pgweir.test"}
    pooler, names = world({}, databases, server_login_retry=0.1, client_login_timeout=2, dns_nxdomain_ttl=1000)
    names.fails.add("sick.pgweir.test")

    def tried_again():
        assert "server login has been failing" in refused(pooler, "app")
        return pooler.log().count("closing because: server DNS lookup failed") > 1

    eventually(tried_again, "the name is used more than once")
    pooler.logged('could not resolve "none.pgweir.test": no such host')
    assert names.asked["A", "none.pgweir.test"] == 1
    assert pooler.show("DNS_HOSTS", hostname="none.pgweir.test")[0]["addrs"] == ""
    refused(pooler, "app2")
    pooler.logged('could not resolve "sick.pgweir.test": name server 127.0.0.1:[0-9]+: it answers ServerFailure')


def test_addresses_in_turn(world):
    """Each new connection goes to the next address of its host."""
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    pooler, _ = world({"db.pgweir.test": addresses}, {"app": "host=db.pgweir.test"}, default_pool_size=6, multiplex_depth=0)
    sessions = [pooler.raw() for _ in range(6)]
    for session in sessions:
        session.query("begin")
    assert sorted(row["addr"] for row in pooler.servers()) == sorted(addresses * 2)
    for session in sessions:
        session.hang_up()


def test_an_address_that_is_dead(world, pg):
    """The next address of the name is tried at once."""
    pooler, _ = world({"db.pgweir.test": ["127.0.0.4", "127.0.0.2"]})
    for _ in range(2):
        with pooler.raw() as session:
            assert session.value("select 1") == "1"
        pooler.admin("RECONNECT")
    assert {row["addr"] for row in pooler.servers()} <= {"127.0.0.2"}


def test_ipv6(world, pg):
    """A name with an IPv6 address alone."""
    pooler, _ = world({"db.pgweir.test": ["::1"]})
    try:
        relay = Link(pg.port, "::1", world.port)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
        assert {row["addr"] for row in pooler.servers()} == {"::1"}
        pooler.logged(r"S-\S+ app/alice@\[::1\]:[0-9]+ new connection to server")
    assert pooler.show("DNS_HOSTS")[0]["addrs"] == "[::1]:0"
    relay.close()


def test_a_name_that_moves(world):
    """Looked up again after `dns_max_ttl`, when the next connection is opened; servers at the old address end when they are free."""
    pooler, names = world({"db.pgweir.test": ["127.0.0.1"]}, dns_max_ttl=0, default_pool_size=2, multiplex_depth=0)
    with pooler.raw() as one, pooler.raw() as other:
        one.query("begin")
        names.hosts["db.pgweir.test"] = ["127.0.0.2"]
        other.query("begin")
        assert sorted(row["addr"] for row in pooler.servers()) == ["127.0.0.1", "127.0.0.2"]
        assert [row["close_needed"] for row in pooler.servers(addr="127.0.0.1")] == ["1"]
        assert not one.query("commit").errors and not other.query("commit").errors
        eventually(lambda: {row["addr"] for row in pooler.servers()} == {"127.0.0.2"}, "the old server is gone")
        pooler.logged("closing because: host has another address")


def test_name_servers_that_fail(world):
    """The addresses that a name had stay in use; the log says so."""
    pooler, names = world({"db.pgweir.test": ["127.0.0.1"]}, dns_max_ttl=0, dns_nxdomain_ttl=0)
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
        names.fails.add("db.pgweir.test")
        pooler.admin("RECONNECT")
        assert session.value("select 2") == "2"
        pooler.logged("it answers ServerFailure; the addresses that it had stay in use")


def test_a_zone_that_changes(world):
    """`dns_zone_check_period`: a serial number that has risen has the zone's names looked up, however long they would be remembered."""
    pooler, names = world({"db.pgweir.test": ["127.0.0.1"]}, zones={"pgweir.test": 7}, dns_max_ttl=3600, dns_zone_check_period=0.2)
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
        eventually(lambda: pooler.show("DNS_ZONES") == [{"zonename": "pgweir.test", "serial": "7", "count": "1"}], "the zone is known")
        names.hosts["db.pgweir.test"] = ["127.0.0.3"]
        asked = names.asked["SOA", "pgweir.test"]
        eventually(lambda: names.asked["SOA", "pgweir.test"] > asked + 1, "the zone was asked again")
        assert {row["addr"] for row in pooler.servers()} == {"127.0.0.1"}, "nothing changed"
        names.zones["pgweir.test"] = 8
        pooler.logged("closing because: host has another address")
        assert session.value("select 2") == "2"
        assert {row["addr"] for row in pooler.servers()} == {"127.0.0.3"}
    names.zones.clear()
    pooler.logged('zone check of "pgweir.test" failed: there is no such zone')

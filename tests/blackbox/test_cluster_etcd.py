"""`discovery=etcd`: Patroni's keys say what the nodes are and which one leads."""

import os
import signal

import pytest

from harness.machine import eventually
from harness.patroni import Etcd, Patroni, needed
from harness.workload import Pgbench
from test_clusters import FAST, Later, node_states, shown


@pytest.fixture(scope="module")
def etcd():
    """One etcd."""
    needed()
    one = Etcd()
    yield one
    one.discard()


@pytest.fixture(scope="module")
def patroni(certificates, etcd):
    """Two nodes under Patroni."""
    one = Patroni(certificates, etcd, 2)
    yield one
    one.discard()


@pytest.fixture
def start(patroni, etcd, poolers):
    """A function that starts a pooler for these nodes."""
    eventually(patroni.settled, "Patroni's cluster is settled", timeout_s=60)

    def make(options=None, **settings):
        options = {"discovery": "etcd", "etcd_prefix": "/service/main/", "check_user": "checker", **FAST, **(options or {})}
        words = " ".join(f"{key}={value}" for key, value in options.items())
        settings = {"etcd_endpoints": etcd.url, "allow_discovered_hosts": "127.0.0.0/8", **settings}
        pooler = poolers({"app": "cluster=main", "bench": "cluster=main"}, ini_tail=f"[clusters]\nmain = {words}\n", **settings)
        names = {member.name: "primary" if member is patroni.leader else "standby" for member in patroni.members}
        eventually(lambda: node_states(pooler) == names, "pgweir knows the nodes")
        return pooler

    return make


def test_nodes_and_the_primary_are_found(patroni, etcd, start):
    """SHOW has the names that Patroni gives, and says which etcd said so."""
    pooler = start()
    row = shown(pooler)
    assert (row["discovery"], row["source"], row["primary"]) == ("etcd", etcd.url, patroni.leader.name)
    eventually(lambda: int(shown(pooler)["source_age_ms"]) < 1000, "the keys are read again")


def test_patronictl_switchover_under_load(patroni, start):
    """The key `failover` holds new transactions before Patroni stops the old primary: none fails."""
    pooler = start(pool_mode="transaction", default_pool_size=8)
    target = patroni.others[0]
    with Pgbench(pooler, clients=10) as load:
        patroni.switch_over(target)
        eventually(lambda: shown(pooler)["primary"] == target.name, "pgweir has followed", timeout_s=30)
        load.goes_on()
    assert load.failed == 0 and load.disconnected == 0, load.output
    assert "switchover is under way" in pooler.log()


def test_a_primary_that_is_killed(patroni, start):
    """Clients are held, and go on with the next primary."""
    pooler = start()
    old, new = patroni.leader, patroni.others[0]
    with pooler.raw() as session:
        session.query("insert into changes values ('k', 1)")
        eventually(lambda: new.sql("select 1 from changes where who = 'k'"), "the standby has it")
        kill(old)
        eventually(lambda: shown(pooler)["state"] == "held", "there is no primary")
        later = Later(lambda: session.query("insert into changes values ('k', 2)"))
        eventually(lambda: shown(pooler)["primary"] not in ("", None), "there is a primary again", timeout_s=60)
        assert not later.value().errors
    assert patroni.leader.sql("select count(*) from changes where who = 'k'") == [(2,)]


def kill(member):
    """Ends a server without a word; its processes end when they notice."""
    os.kill(member.postmaster(), signal.SIGKILL)


def test_a_silent_source(patroni, etcd, start):
    """With source_lost=trust a node's own word counts; with hold clients wait. Both are said."""
    trusting = start({"primary_max_age_ms": 2000})
    holding = start({"primary_max_age_ms": 2000, "source_lost": "hold"})
    patroni.ctl("pause", "main", "--wait")
    try:
        etcd.freeze()
        eventually(lambda: shown(holding)["state"] == "held", "without the source clients wait")
        assert "source_lost" in shown(holding)["reason"]
        eventually(lambda: shown(trusting)["source_error"], "the source is silent")
        trusting.logged("its source .etcd. does not answer")
        assert shown(trusting)["state"] == "available"
        with trusting.raw() as session:
            assert session.value("select 1") == "1"
    finally:
        etcd.freeze(False)
        eventually(lambda: patroni.ctl("resume", "main", "--wait") is not None, "Patroni goes on")
    eventually(lambda: shown(holding)["state"] == "available", "with the source they go on")
    eventually(lambda: not shown(trusting)["source_error"], "the source is back")


def test_hosts_that_are_not_allowed(patroni, etcd, poolers):
    """A node elsewhere is no node of ours, and SHOW CLUSTERS says why."""
    line = "main = discovery=etcd etcd_prefix=/service/main check_user=checker"
    pooler = poolers({"app": "cluster=main"}, ini_tail=f"[clusters]\n{line}\n", etcd_endpoints=etcd.url, allow_discovered_hosts="10.0.0.0/8")
    eventually(lambda: "not in allow_discovered_hosts" in (shown(pooler)["source_error"] or ""), "it is said")
    assert not pooler.show("NODES")


@pytest.mark.parametrize("way", ["certificate", "password"])
def test_tls(certificates, poolers, way):
    """etcd may have TLS, and want a certificate or a password. A wrong password is said, and is in no log."""
    etcd = Etcd(tls=certificates, wants_certificate=way == "certificate")
    try:
        etcd.ctl("put", "/service/main/members/m1", '{"conn_url":"postgres://127.0.0.1:1/postgres"}')
        settings = {"source_tls_ca_file": certificates.crt("ca")}
        if way == "certificate":
            settings |= {"source_tls_cert_file": certificates.crt("alice"), "source_tls_key_file": certificates.key("alice")}
        else:
            etcd.secure("pw-of-etcd")
            settings |= {"etcd_user": "reader", "etcd_password": "pw-of-etcd"}
        line = "main = discovery=etcd etcd_prefix=/service/main check_user=checker"
        tail = f"[clusters]\n{line}\n"
        pooler = poolers({"app": "cluster=main"}, ini_tail=tail, allow_discovered_hosts="*", etcd_endpoints=etcd.url, **settings)
        eventually(lambda: [row["node"] for row in pooler.show("NODES")] == ["m1"], "the node is found")
        assert "pw-of-etcd" not in str(pooler.show("CONFIG"))
        if way == "password":
            pooler.write_ini(etcd_password="wrong-pw")
            pooler.reload()
            eventually(lambda: "status" in (shown(pooler)["source_error"] or ""), "it is not let in")
            assert "wrong-pw" not in pooler.log() and "wrong-pw" not in shown(pooler)["source_error"]
        else:
            pooler.write_ini(source_tls_cert_file=None, source_tls_key_file=None)
            pooler.reload()
            eventually(lambda: shown(pooler)["source_error"], "without a certificate it is not let in")
    finally:
        etcd.discard()

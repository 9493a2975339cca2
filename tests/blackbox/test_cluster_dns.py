"""`discovery=dns`: a host name has an address for each node, and the nodes are asked what they are."""

import signal

import pytest

from harness.link import Link
from harness.machine import eventually, free_port, give
from harness.nameserver import NameServer
from test_clusters import FAST, Nodes, node_states, shown

NAME = "nodes.pgweir.test"


@pytest.fixture
def world(certificates, poolers):
    """A pooler, its name server, and a primary and a standby behind 127.0.0.1 and 127.0.0.2 of one port."""
    made, port = [], free_port()
    two = Nodes(certificates, 2)
    relays = [Link(node.port, f"127.0.0.{n}", port) for n, node in enumerate(two.all, 1)]
    names = NameServer({NAME: ["127.0.0.1", "127.0.0.2"]})
    made += [*relays, names]

    def start(nodes="", **options):
        options = {"discovery": "dns", "host": NAME, "port": port, "check_user": "checker", **FAST, **options}
        words = " ".join(f"{key}={value}" for key, value in options.items())
        pooler = poolers({"app": "cluster=main"}, ini_tail=f"[clusters]\nmain = {words}\n[nodes]\n{nodes}", start=False)
        conf = names.resolv_conf(pooler.folder)
        give(conf)
        pooler.write_ini(resolv_conf=conf)
        pooler.start()
        return pooler

    yield start, two, names
    for one in made:
        one.close()
    two.discard()


def test_nodes_are_found_by_their_addresses(world):
    """They are named by their addresses, asked what they are, and a promotion is followed."""
    start, two, _ = world
    pooler = start()
    with pooler.raw() as session:
        session.query("insert into changes values ('d', 1)")
        eventually(lambda: node_states(pooler) == {"127.0.0.1": "primary", "127.0.0.2": "standby"}, "both nodes are known")
        row = shown(pooler)
        assert (row["discovery"], row["source"], row["primary"]) == ("dns", NAME, "127.0.0.1")
        assert int(row["source_age_ms"]) < 10_000 and not row["source_error"]
        eventually(lambda: two.all[1].sql("select n from changes") == [(1,)], "the standby has it")
        two.primary.stop(signal.SIGQUIT)
        two.all[1].promote()
        assert not session.query("insert into changes values ('d', 2)").errors
    assert shown(pooler)["primary"] == "127.0.0.2"


def test_a_line_of_nodes_has_options_for_an_address(world):
    """[nodes] may have a line for a node that is found; the commands about nodes take its name."""
    start, _, _ = world
    pooler = start(nodes="127.0.0.2 = attached=0\n")
    eventually(lambda: node_states(pooler) == {"127.0.0.1": "primary", "127.0.0.2": "standby"}, "both nodes are known")
    assert pooler.show("NODES", node="127.0.0.2")[0]["switch"] == "detached"
    pooler.admin("ATTACH NODE main.127.0.0.2")
    assert pooler.show("NODES", node="127.0.0.2")[0]["switch"] == "attached"


def test_addresses_come_and_go_and_a_name_server_that_fails_changes_nothing(world):
    """The name is looked up again and again. Without an answer the nodes stay what they are."""
    start, _, names = world
    names.hosts[NAME] = ["127.0.0.1"]
    pooler = start()
    eventually(lambda: node_states(pooler) == {"127.0.0.1": "primary"}, "one node is known")
    names.hosts[NAME] = ["127.0.0.2", "127.0.0.1"]
    eventually(lambda: node_states(pooler) == {"127.0.0.1": "primary", "127.0.0.2": "standby"}, "the other one is found", timeout_s=20)
    names.fails.add(NAME)
    eventually(lambda: shown(pooler)["source_error"], "the name server fails", timeout_s=20)
    assert "ServerFailure" in shown(pooler)["source_error"]
    assert node_states(pooler) == {"127.0.0.1": "primary", "127.0.0.2": "standby"}
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
    names.fails.clear()
    names.hosts[NAME] = ["127.0.0.1"]
    eventually(lambda: node_states(pooler) == {"127.0.0.1": "primary"}, "the other one is gone", timeout_s=20)
    assert not shown(pooler)["source_error"]

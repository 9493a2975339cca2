"""`discovery=patroni`: an agent has the list of nodes, and each node's own agent says whether it leads."""

import http.server
import json
import os
import signal
import threading

import pytest

from harness.machine import eventually
from harness.patroni import API_PASSWORD, Etcd, Patroni, needed
from harness.workload import Pgbench
from test_clusters import FAST, Later, node_states, shown


@pytest.fixture(scope="module")
def patroni(certificates):
    """Two nodes under Patroni."""
    needed()
    etcd = Etcd()
    one = Patroni(certificates, etcd, 2)
    yield one
    one.discard()
    etcd.discard()


@pytest.fixture
def start(patroni, poolers):
    """A function that starts a pooler for these nodes. `agents`: those that it is told of."""
    eventually(patroni.settled, "Patroni's cluster is settled", timeout_s=60)

    def make(options=None, agents=None, **settings):
        agents = agents or [member.api for member in patroni.members]
        options = {"discovery": "patroni", "patroni_api": ",".join(agents), "check_user": "checker", **FAST, **(options or {})}
        words = " ".join(f"{key}={value}" for key, value in options.items())
        settings = {"allow_discovered_hosts": "127.0.0.0/8", **settings}
        pooler = poolers({"app": "cluster=main", "bench": "cluster=main"}, ini_tail=f"[clusters]\nmain = {words}\n", **settings)
        names = {member.name: "primary" if member is patroni.leader else "standby" for member in patroni.members}
        eventually(lambda: node_states(pooler) == names, "pgweir knows the nodes")
        return pooler

    return make


def test_one_agent_is_enough_to_find_all(patroni, start):
    """The address of one agent leads to the list, and the list to the other agents."""
    pooler = start(agents=[patroni.others[0].api])
    row = shown(pooler)
    assert (row["discovery"], row["primary"]) == ("patroni", patroni.leader.name)
    # The list is taken from the agent of the primary, once that is known.
    eventually(lambda: shown(pooler)["source"] == patroni.leader.api, "the primary's agent is asked")
    assert int(shown(pooler)["source_age_ms"]) < 3000


def test_patronictl_switchover(patroni, start):
    """Clients go on with the new primary; between transactions none of them notices."""
    pooler = start()
    target = patroni.others[0]
    with pooler.raw() as session:
        session.query("insert into changes values ('s', 1)")
        patroni.switch_over(target)
        assert not session.query("insert into changes values ('s', 2)").errors
        assert int(session.value("select inet_server_port()")) == target.port
    assert target.sql("select n from changes where who = 's' order by n") == [(1,), (2,)]


def near(pooler, member):
    """Waits until a node is behind by less than a switchover allows."""

    def is_near():
        lag = pooler.show("NODES", node=member.name)[0]["lag_bytes"]
        return lag is not None and int(lag) < 4_000_000

    eventually(is_near, "the target has nearly caught up", timeout_s=60)


def test_switchover_under_load(patroni, start):
    """SWITCHOVER through pgweir, there and back: no transaction fails, no client is disconnected."""
    login = {"patroni_user": "switcher", "patroni_password": API_PASSWORD}
    pooler = start(login, pool_mode="transaction", default_pool_size=8)
    with Pgbench(pooler, clients=10) as load:
        for _ in range(2):
            target = patroni.others[0]
            near(pooler, target)
            pooler.admin(f"SWITCHOVER main TO {target.name}")
            assert shown(pooler)["primary"] == target.name
            load.goes_on()
            eventually(patroni.settled, "the old primary follows", timeout_s=60)
            eventually(lambda: sorted(node_states(pooler).values()) == ["primary", "standby"], "pgweir knows both")
    assert load.failed == 0 and load.disconnected == 0, load.output
    assert API_PASSWORD not in pooler.log()


def test_a_switchover_that_patroni_refuses(patroni, start):
    """Without the password of the API Patroni refuses; the error says so, and clients go on."""
    pooler = start({"patroni_user": "switcher", "patroni_password": "wrong-pw"})
    near(pooler, patroni.others[0])
    with pytest.raises(AssertionError) as error:
        pooler.admin(f"SWITCHOVER main TO {patroni.others[0].name}")
    said = str(error.value)
    assert "step 3 failed" in said and "status 401" in said and "patroni_password" in said and "wrong-pw" not in said
    with pooler.raw() as session:
        assert session.value("select 1") == "1"


def test_a_primary_that_is_killed(patroni, start):
    """Clients are held, and go on with the next primary."""
    pooler = start()
    old, new = patroni.leader, patroni.others[0]
    with pooler.raw() as session:
        session.query("insert into changes values ('k', 1)")
        eventually(lambda: new.sql("select 1 from changes where who = 'k'"), "the standby has it")
        os.kill(old.postmaster(), signal.SIGKILL)
        eventually(lambda: shown(pooler)["state"] == "held", "there is no primary")
        later = Later(lambda: session.query("insert into changes values ('k', 2)"))
        eventually(lambda: shown(pooler)["state"] == "available", "there is a primary again", timeout_s=60)
        assert not later.value().errors
    assert patroni.leader.sql("select count(*) from changes where who = 'k'") == [(2,)]


def test_silent_agents(patroni, start):
    """With source_lost=trust the node's own word counts; with hold clients wait. Both are said."""
    trusting = start({"primary_max_age_ms": 2000})
    holding = start({"primary_max_age_ms": 2000, "source_lost": "hold"})
    patroni.ctl("pause", "main", "--wait")
    try:
        for member in patroni.members:
            member.signal(signal.SIGSTOP)
        eventually(lambda: shown(holding)["state"] == "held", "without the agents clients wait")
        assert "source_lost" in shown(holding)["reason"]
        eventually(lambda: shown(trusting)["source_error"], "the agents are silent")
        trusting.logged("its source .patroni. does not answer")
        with trusting.raw() as session:
            assert session.value("select 1") == "1"
    finally:
        for member in patroni.members:
            member.signal(signal.SIGCONT)
        patroni.ctl("resume", "main", "--wait")
    eventually(lambda: shown(holding)["state"] == "available", "with the agents they go on")


class Agent:
    """An agent that says what the test wants: the answer to each path, as status and text."""

    def __init__(self):
        self.answers, owner = {}, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, text = owner.answers.get(self.path, (404, ""))
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", text)
                    text = ""
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.api = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def lists(self, members):
        """It answers with this list: name, port, agent."""
        entries = [{"name": n, "host": "127.0.0.1", "port": port, "api_url": f"{api}/patroni", "role": "leader"} for n, port, api in members]
        self.answers["/cluster"] = (200, json.dumps({"members": entries, "scope": "main"}))

    def close(self):
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def agents():
    """Two agents that are ours."""
    both = [Agent(), Agent()]
    yield both
    for one in both:
        one.close()


@pytest.fixture
def told(poolers, agents):
    """A pooler that knows the first of the two agents."""

    def make(nodes, **options):
        options = {"discovery": "patroni", "patroni_api": agents[0].api, "check_user": "checker", **FAST, **options}
        words = " ".join(f"{key}={value}" for key, value in options.items())
        return poolers({"app": "cluster=main"}, ini_tail=f"[clusters]\nmain = {words}\n", allow_discovered_hosts="127.0.0.1")

    return make


def test_an_isolated_agent_with_an_old_list(patroni, agents, told):
    """Its list names itself as the leader. What counts is what each node's own agent says."""
    eventually(patroni.settled, "Patroni's cluster is settled", timeout_s=60)
    leader, other = patroni.leader, patroni.others[0]
    # m2's agent is cut off: its list is of the time when m2 led. The real leader's agent says that its node leads.
    agents[0].lists([(leader.name, leader.port, agents[1].api), (other.name, other.port, agents[0].api)])
    agents[0].answers["/primary"] = (503, "{}")
    agents[1].answers["/primary"] = (200, "{}")
    pooler = told(patroni)
    eventually(lambda: node_states(pooler) == {leader.name: "primary", other.name: "standby"}, "the nodes are known")
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
        # The source names the other one: the leader's own word alone does not make it the primary.
        agents[1].answers["/primary"] = (503, "{}")
        agents[0].answers["/primary"] = (200, "{}")
        eventually(lambda: node_states(pooler)[leader.name] == "unsure", "the source contradicts")
        assert "does not name it" in pooler.show("NODES", node=leader.name)[0]["last_error"]
        later = Later(lambda: session.value("select 1"))
        eventually(lambda: shown(pooler)["held_clients"] == "1", "the client waits")
        agents[1].answers["/primary"] = (200, "{}")
        agents[0].answers["/primary"] = (503, "{}")
        assert later.value() == "1"


def test_hostile_answers(patroni, agents, told):
    """A redirect, a huge answer, deep JSON, hosts elsewhere, too many members: each is said, and nothing else comes of it."""
    eventually(patroni.settled, "Patroni's cluster is settled", timeout_s=60)
    leader = patroni.leader
    agents[0].lists([(leader.name, leader.port, agents[0].api)])
    agents[0].answers["/primary"] = (200, "{}")
    pooler = told(patroni, primary_max_age_ms=20000)
    eventually(lambda: node_states(pooler) == {leader.name: "primary"}, "the node is known")
    agents[0].answers["/primary"] = (500, "{}")
    many = [{"name": f"m{n}", "host": "127.0.0.1", "port": 1} for n in range(65)]
    elsewhere = {"members": [{"name": "m1", "host": "169.254.169.254", "port": 80}]}
    agents[1].answers["/cluster"] = agents[0].answers["/cluster"]
    for answer, said in [
        ((302, f"{agents[1].api}/cluster"), "status 302"),
        ((200, "[" * 100_000), "nested"),
        ((200, '"' + "a" * (1 << 21) + '"'), "limit"),
        ((200, json.dumps({"members": many})), "65 members"),
        ((200, json.dumps(elsewhere)), "allow_discovered_hosts"),
        ((200, "{}"), "no members"),
        ((200, "\0\1"), "no JSON"),
    ]:
        agents[0].answers["/cluster"] = answer
        eventually(lambda said=said: said in (shown(pooler)["source_error"] or ""), f"{said} is said")
        assert list(node_states(pooler)) == [leader.name]

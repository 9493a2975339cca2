"""deploy/: what Prometheus and Grafana are given works with a real Prometheus that scrapes the pooler under load."""

import json
import math
import re
import subprocess
import sys
import time
import urllib.request

import pytest
import yaml
from harness.machine import REPOSITORY, eventually, free_port
from harness.monitoring import Prometheus, program
from test_clusters import clustered, node_states, nodes  # noqa: F401

DEPLOY = REPOSITORY / "deploy"
CHOICES = {"$__rate_interval": "4s", "$instance": ".*", "$postgres": ".*", "$database": "bench", "$user": "alice", "$cluster": "main"}
"""What Grafana puts for the variables of a dashboard."""

ROUNDS = 30
"""How often the panels are asked, with a second between, before what has no data counts as missing."""


def test_alerts_hold_to_their_examples():
    """promtool takes the scrape configuration and the rules, and each alert fires for what it is meant for."""
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "pgweir.rules.test.yml"]):
        done = subprocess.run([program("promtool"), *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_are_what_their_source_writes():
    """The committed JSON files are those that make.py writes."""
    done = subprocess.run([sys.executable, DEPLOY / "grafana" / "make.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def queries(name):
    """(panel's title, PromQL) of each query of a dashboard, with its variables filled in."""
    found = []
    for panel in json.loads((DEPLOY / "grafana" / "dashboards" / f"{name}.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in CHOICES.items():
                expression = expression.replace(variable, value)
            found.append((panel["title"], expression))
    return found


@pytest.mark.needs("metrics over HTTP")
def test_every_panel_shows_data(poolers, pg):
    """Each query of the dashboards for pools has a result with a number while pgbench runs through the pooler; so has each alert's subject."""
    if not pg.sql("select 1 from pg_database where datname = 'bench'"):
        pg.sql("create database bench owner alice")
        subprocess.run(["pgbench", "-i", "-q", "-h", "127.0.0.1", "-p", str(pg.port), "-U", "alice", "bench"], check=True, capture_output=True)
    http = free_port()
    pooler = poolers({"bench": pg.at("bench")}, default_pool_size=4, http_listen=f"127.0.0.1:{http}", http_anonymous="all")
    # -C: logins go on for as long as the load does. Each client once asks for a table that is not there.
    script = pooler.folder / "load.sql"
    script.write_text("select abalance from pgbench_accounts where aid = 1;\nselect pg_sleep(0.001);\n")
    load = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-c", "12", "-j", "2", "-T", "60", "-C", "-M", "prepared"]
    process = subprocess.Popen([*load, "-f", str(script), "bench"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    prometheus = Prometheus(http, pg)
    try:
        wanted = queries("pgweir") + queries("benchmark") + [("an alert", name) for name in alerted_on() if not name.startswith(ELSEWHERE)]
        missing = []

        def all_there():
            with pooler.connect("bench") as connection, pytest.raises(Exception, match="does not exist"):
                connection.execute("select * from nowhere")
            pooler.admin("RECONNECT")  # new server connections, as some of the panels are about their opening
            missing[:] = [(title, expression) for title, expression in wanted if not has_number(prometheus.query(expression))]
            return not missing

        for _ in range(ROUNDS):
            if all_there():
                break
            time.sleep(1)
        assert not missing, "no data for:\n" + "\n".join(f"{title}: {expression}" for title, expression in missing)
        assert prometheus.query('up{job="pgweir"}') == [({"__name__": "up", "instance": f"127.0.0.1:{http}", "job": "pgweir"}, 1.0)]
    finally:
        process.kill()
        process.wait()
        prometheus.stop()


@pytest.mark.needs("metrics over HTTP")
def test_every_panel_of_clusters_shows_data(nodes, clustered, pg):  # noqa: F811
    """The same for the dashboard of clusters, and for the alerts on them."""
    http = free_port()
    pooler = clustered(nodes(2), http_listen=f"127.0.0.1:{http}", http_anonymous="all")
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    prometheus = Prometheus(http, pg)
    try:
        all_have_data(prometheus, queries("clusters") + [("an alert", name) for name in alerted_on() if name.startswith(OF_CLUSTERS)])
    finally:
        prometheus.stop()


@pytest.mark.needs("metrics over HTTP")
def test_every_panel_of_the_cache_shows_data(poolers, pg):
    """Every query of the query cache's dashboard and alerts has data while pgbench reads by a few keys."""
    if not pg.sql("select 1 from pg_database where datname = 'bench'"):
        pg.sql("create database bench owner alice")
        subprocess.run(["pgbench", "-i", "-q", "-h", "127.0.0.1", "-p", str(pg.port), "-U", "alice", "bench"], check=True, capture_output=True)
    http = free_port()
    rules = "[cache]\nhot = ttl_ms=100\n"
    pooler = poolers({"bench": pg.at("bench")}, query_cache="on", ini_tail=rules, http_listen=f"127.0.0.1:{http}", http_anonymous="all")
    script = pooler.folder / "load.sql"
    script.write_text("\\set key random(1, 10)\nselect abalance from pgbench_accounts where aid = :key;\n")
    load = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-c", "4", "-T", "300", "-f", str(script), "bench"]
    process = subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    prometheus = Prometheus(http, pg)
    try:
        wanted = queries("cache") + [("an alert", name) for name in alerted_on() if name.startswith(OF_CACHE)]
        assert len(wanted) > 10
        all_have_data(prometheus, wanted)
    finally:
        process.kill()
        process.wait()
        prometheus.stop()


def all_have_data(prometheus, wanted):
    """Waits until each of these queries, given with titles, has had a number once."""
    missing = wanted
    for _ in range(ROUNDS):
        missing = [(title, expression) for title, expression in missing if not has_number(prometheus.query(expression))]
        if not missing:
            break
        time.sleep(1)
    assert not missing, "no data for:\n" + "\n".join(f"{title}: {expression}" for title, expression in missing)


OF_CLUSTERS = ("pgweir_cluster_", "pgweir_node_")
OF_CACHE = ("pgweir_cache_",)
ELSEWHERE = (*OF_CLUSTERS, *OF_CACHE)


def alerted_on():
    """The metrics that the alerts look at."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "pgweir.rules.yml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return sorted({name for expression in expressions for name in re.findall(r"\b(?:pgbouncer_|pgweir_)\w+|\bup\b", expression)})


def has_number(result):
    """Whether there is a result that is a number."""
    return any(not math.isnan(value) for _, value in result)

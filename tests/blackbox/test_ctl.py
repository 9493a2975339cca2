"""`pgweir ctl`: the console for scripts. Also the day of a pgpool administrator, by the commands of docs/migrate/pgpool.md."""

import json
import os
import re
import shlex
import signal
import subprocess
import threading

import pytest

from harness.machine import REPOSITORY, as_service, eventually, reachable
from harness.pooler import binary, kind
from test_clusters import clustered, node_states, nodes  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such command")


def ctl(pooler, *words, code=0, url=None, account=True):
    """Runs `pgweir ctl` as the pooler's own user, or by a URL; gives standard output and standard error."""
    where = ["--url", url] if url else ["-c", str(pooler.ini)]
    command = [str(reachable(binary(), pooler.folder)), "ctl", *where, *words]
    command = as_service(*command) if account else command
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=os.environ | {"PGPASSWORD": "pw-of-admin"}, timeout=80)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def test_tables_as_text_and_as_json(pooled):
    """Text has the main columns, JSON has all of them, with numbers as numbers; a name leaves its rows."""
    pooler = pooled()
    with pooler.raw() as session:
        session.query("begin")
        head, row = [line.split() for line in ctl(pooler, "pools", "app")[0].splitlines()]
        assert dict(zip(head, row, strict=True)) | {"database": "app", "user": "alice", "cl_active": "1", "sv_active": "1"} == dict(zip(head, row, strict=True))
        [pool] = json.loads(ctl(pooler, "pools", "app", "--json")[0])
        assert pool["cl_active"] == 1 and pool["sv_active"] == 1 and pool["load_balance_hosts"] is None
        [client] = json.loads(ctl(pooler, "clients", "app", "--json")[0])
        ctl(pooler, "kill_client", str(client["id"]))
    assert json.loads(ctl(pooler, "clients", "app", "--json")[0]) == []
    assert "version" in ctl(pooler, "show version")[0]
    assert {row["name"] for row in json.loads(ctl(pooler, "databases", "--json")[0])} >= {"app", "app2"}


def test_commands_take_effect(pooled):
    pooler = pooled()
    assert ctl(pooler, "pause", "app2")[0] == "PAUSE\n"
    assert [row["paused"] for row in pooler.show("DATABASES", name="app2")] == ["1"]
    assert json.loads(ctl(pooler, "resume", "app2", "--json")[0]) == {"done": "RESUME", "notices": []}
    assert [row["paused"] for row in pooler.show("DATABASES", name="app2")] == ["0"]
    ctl(pooler, "log-level", "2")
    assert ctl(pooler, "log-level")[0].split() == ["key", "value", "verbose", "2"]
    assert ctl(pooler, "reload")[0] == "RELOAD\n"


def test_exit_codes(pooled):
    """1: pgweir says no. 2: there is no console, or the command line is wrong. JSON has the reason, too."""
    pooler = pooled()
    assert "invalid command" in ctl(pooler, "frobnicate", code=1)[1]
    out, _ = ctl(pooler, "pause", "no_such_db", "--json", code=1)
    assert "no_such_db" in json.loads(out)["error"]["message"] and json.loads(out)["error"]["code"]
    assert "there is no node m9" in ctl(pooler, "drain", "m9", code=1)[1]
    assert "needs a node" in ctl(pooler, "drain", code=2)[1]
    url = f"postgres://admin@127.0.0.1:{pooler.port}"
    assert "app" in ctl(pooler, "databases", url=url, account=False)[0]
    assert "admin" in ctl(pooler, "reload", url=f"postgres://stats:pw-of-stats@127.0.0.1:{pooler.port}", code=1)[1]
    _, said = ctl(pooler, "databases", url=f"postgres://nobody:s3cret@127.0.0.1:{pooler.port}", code=2, account=False)
    assert said and "s3cret" not in said
    assert ctl(pooler, "databases", url="postgres://admin@127.0.0.1:1", code=2)[1]
    assert "No such file" in subprocess.run([binary(), "ctl", "-c", "/nowhere.ini", "reload"], capture_output=True, text=True).stderr


def test_stop_waits_for_the_end(pooled):
    """With --wait it answers when the process has ended; while a transaction is open that is not so."""
    pooler = pooled()
    session = pooler.raw()
    session.query("begin")
    assert "has not ended" in ctl(pooler, "stop", "--wait", "--timeout", "1", code=3)[1]
    assert pooler.process.poll() is None
    session.query("commit")
    assert pooler.wait_exit() == 0
    again = pooled()
    again.expect_exit = True
    ctl(again, "stop", "immediate", "--wait")
    assert again.process.wait(1) == 0


def pcp_table():
    """(pcp command, words of `pgweir ctl`) of each row in the page."""
    page = (REPOSITORY / "docs/migrate/pgpool.md").read_text()
    table = page[page.index("<!-- table: pcp -->") : page.index("<!-- end of the pcp table -->")]
    rows = re.findall(r"^\| `(pcp_[^`]+)` \| `pgweir ctl ([^`]+)` \|", table, re.M)
    assert len(rows) == table.count("| `pcp_")
    return [(pcp, shlex.split(words)) for pcp, words in rows]


def test_the_day_of_a_pgpool_administrator(nodes, clustered):  # noqa: F811
    """Each command of the page is run on a cluster, and has the effect that the page says."""
    two = nodes(2)
    pooler = clustered(two, {"warm_up_ms": 200})
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")

    def switch(node):
        return pooler.show("NODES", node=node)[0]["switch"]

    seen = set()
    for pcp, words in pcp_table():
        seen.add(pcp.split()[0])
        if pcp.startswith("pcp_promote_node"):
            # Without Patroni an administrator promotes while the command waits; the old primary is stopped first, as the page of clusters says.
            def promote():
                eventually(lambda: pooler.show("CLUSTERS")[0]["switchover"], "the switchover is under way", timeout_s=20)
                two.primary.stop(signal.SIGINT)
                two.all[1].promote()

            helper = threading.Thread(target=promote)
            helper.start()
            ctl(pooler, *words)
            helper.join(30)
            assert pooler.show("CLUSTERS")[0]["primary"] == "m2"
            continue
        if pcp == "pcp_stop_pgpool":
            pooler.expect_exit = True
            ctl(pooler, *words)
            assert pooler.process.wait(1) == 0
            continue
        out, _ = ctl(pooler, *words)
        match pcp.split()[0], words[0]:
            case "pcp_node_count", _:
                assert [node["node"] for node in json.loads(out)] == ["m1", "m2"]
            case "pcp_node_info", _:
                assert re.search(r"^main +m1 .* primary ", out, re.M) and re.search(r"^main +m2 .* standby ", out, re.M)
            case "pcp_health_check_stats", _:
                assert "last_check" in out.splitlines()[0]
            case "pcp_detach_node", "drain":
                assert switch("m2") == "draining"
            case "pcp_detach_node", _:
                assert switch("m2") == "detached"
            case "pcp_attach_node", _:
                assert switch("m2") == "attached" and int(pooler.show("NODES", node="m2")[0]["share"]) >= 1000
            case "pcp_proc_count", _:
                assert out.startswith("database")
            case "pcp_proc_info", _:
                assert out.startswith("id")
            case "pcp_pool_status", _:
                assert re.search(r"^default_pool_size", out, re.M)
            case ("pcp_log_rotate" | "pcp_reload_config"), _:
                assert out == "RELOAD\n"
            case "pcp_invalidate_query_cache", _:
                assert out == "CACHE PURGE\n"
            case "pcp_watchdog_info", _:
                assert out.startswith("peer_id")
            case other:
                raise AssertionError(f"the page has a command that is not tried: {other}")
    assert len(seen) == 14

"""psql, as people use it, through the pooler: its catalog queries, \\copy, variables, errors and exit codes."""

import subprocess

import pytest

from harness.cluster import PASSWORDS


@pytest.fixture(params=["transaction", "session"])
def psql(request, pooled):
    """A function that runs a psql script through a pooler and returns the finished process."""
    pooler = pooled(pool_mode=request.param, default_pool_size=2, auth_type="scram-sha-256")

    def run(script, *options, database="app"):
        command = ["psql", "-X", "-qAt", "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "-d", database, *options]
        environment = {"PATH": "/usr/bin:/bin", "PGPASSWORD": PASSWORDS["alice"], "PGCONNECT_TIMEOUT": "10"}
        return subprocess.run(command, input=script, capture_output=True, text=True, timeout=30, env=environment)

    return run


def test_a_script(psql):
    """Several statements, a transaction, variables."""
    done = psql("select 1;\nbegin;\nselect 2 as two \\gset\ncommit;\nselect :two + 1;\n\\echo done\n")
    assert (done.returncode, done.stdout.split()) == (0, ["1", "3", "done"]), done.stderr


@pytest.mark.parametrize("command", ["\\d", "\\d kv", "\\dt+", "\\df say", "\\l", "\\du", "\\conninfo", "\\encoding", "\\dn", "\\dconfig work_mem"])
def test_meta_commands(psql, command):
    """Catalog queries of psql."""
    done = psql(command + "\n")
    assert done.returncode == 0 and done.stdout and not done.stderr, done.stderr


def test_copy_in_and_out(psql, tmp_path):
    """\\copy in both directions."""
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("".join(f"{n},{n * n}\n" for n in range(5000)))
    done = psql(
        "begin;\ncreate temp table t (a int, b int) on commit drop;\n"
        f"\\copy t from '{source}' csv\n\\copy (select * from t order by a) to '{target}' csv\ncommit;\n"
    )
    assert done.returncode == 0, done.stderr
    assert target.read_text() == source.read_text()


def test_errors_and_exit_codes(psql):
    """An error is shown and the script goes on; with ON_ERROR_STOP it ends with 3."""
    done = psql("select 1/0;\nselect 'after';\n")
    assert done.returncode == 0 and "division by zero" in done.stderr and done.stdout == "after\n"
    assert psql("select 1/0;\nselect 'after';\n", "-v", "ON_ERROR_STOP=1").returncode == 3


def test_one_transaction(psql):
    """-1 wraps the whole script in a transaction."""
    done = psql("create temp table t (n int);\ninsert into t values (1);\nselect count(*) from t;\n", "-1")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_reconnect(psql):
    """\\c to another database and back."""
    done = psql("select current_database();\n\\c app2\nselect current_database();\n\\c app\nselect current_database();\n")
    assert (done.returncode, done.stdout.split()) == (0, ["app", "app2", "app"]), done.stderr


def test_a_wrong_password_and_a_wrong_database(psql):
    """Exit code 2 and the reason."""
    assert "no such database: nowhere" in psql("", database="nowhere").stderr
    assert psql("", database="nowhere").returncode == 2


def test_fetch_count(psql):
    """FETCH_COUNT reads through a cursor."""
    done = psql("\\set FETCH_COUNT 100\nselect generate_series(1, 1000);\n")
    assert done.returncode == 0 and len(done.stdout.split()) == 1000


def test_a_big_result(psql):
    """A hundred thousand rows through psql's formatter."""
    done = psql("select g, repeat('x', 50) from generate_series(1, 100000) g;\n")
    assert done.returncode == 0 and done.stdout.count("\n") == 100_000

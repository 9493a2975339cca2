"""What completes a configuration that an operator writes: conf.d, --overlay, variables; who may have written it; RELOAD and -R."""

import os
import re
import subprocess

import pytest

from harness.machine import REPOSITORY, as_service, free_port, give
from harness.monitoring import fetch
from harness.pages import blocks
from test_takeover import over, successor

pytestmark = pytest.mark.needs("online restart over a unix socket")


@pytest.fixture
def completed(pooled, monkeypatch):
    """A function that starts a pooler with a directory of ini files and variables; returns the pooler and the directory."""

    def start(files=(), variables=(), wait=True, **settings):
        pooler = pooled(start=False, server_tls_sslmode="disable", **settings)
        folder = pooler.folder / "conf.d"
        folder.mkdir(mode=0o755)
        give(folder)
        for name, text in dict(files).items():
            write(folder / name, text)
        for name, text in dict(variables).items():
            monkeypatch.setenv(name, text)
        pooler.write_ini(pidfile=str(pooler.folder / "pid"))
        pooler.arguments = ["--quiet", f"--overlay={folder}"]
        pooler.start(wait)
        return pooler, folder

    return start


def write(path, text, mode=0o644):
    """Writes a file that belongs to the pooler's user."""
    path.write_text(text)
    path.chmod(mode)
    give(path)


def source(pooler, key):
    """Value and source of a setting."""
    [row] = pooler.show("CONFIG_EXTENDED", key=key)
    return row["value"], row["source"]


def test_the_last_source_wins(completed, pg):
    """File, conf.d by bytes, PGWEIR_INI, PGWEIR_NAME, in this order; a line replaces a line, += adds; each says where it is from."""
    files = {
        "20-b.ini": "[pgbouncer]\ndefault_pool_size = 22\nreserve_pool_size = 22\n",
        "10-a.ini": "[pgbouncer]\ndefault_pool_size = 11\nmin_pool_size = 1\n[databases]\napp += pool_size=3\n",
        ".hidden.ini": "[pgbouncer]\ndefault_pool_size = 99\n",
        "10-a.ini.dpkg-old": "broken",
    }
    ini = f"[databases]\nmy-db = host=127.0.0.1 port={pg.port} dbname=app\n[pgbouncer]\nreserve_pool_size = 33\n"
    variables = {"PGWEIR_INI": ini, "PGWEIR_MIN_POOL_SIZE": "0"}
    pooler, folder = completed(files, variables | {"DEFAULT_POOLSIZE": "5"})
    assert source(pooler, "default_pool_size") == ("22", f"{folder}/20-b.ini:2")
    assert source(pooler, "reserve_pool_size") == ("33", "PGWEIR_INI:4")
    assert source(pooler, "min_pool_size") == ("0", "PGWEIR_MIN_POOL_SIZE")
    assert source(pooler, "pool_mode")[1].startswith(f"{pooler.ini}:") and source(pooler, "tcp_keepcnt")[1] == "default"
    assert [row["pool_size"] for row in pooler.show("DATABASES", name="app")] == ["3"]
    for database in ("app", "my-db"):
        with pooler.connect(database) as client:
            assert client.execute("select current_database()").fetchone() == ("app",)
    log = pooler.log()
    assert f"configuration file {pooler.ini}" in log
    assert f"configuration: {folder}/10-a.ini sets default_pool_size, min_pool_size, [databases] app" in log
    assert "configuration: PGWEIR_MIN_POOL_SIZE sets min_pool_size" in log
    assert 'unknown variable DEFAULT_POOLSIZE; did you mean "PGWEIR_DEFAULT_POOL_SIZE"?' in log
    pooler.admin("SET reserve_pool_size = 4")
    assert source(pooler, "reserve_pool_size") == ("4", "SET")


def test_reload_reads_the_files_again(completed):
    """A changed file counts at RELOAD, a new one too; one bad file leaves everything as it was; variables are those of the start."""
    pooler, folder = completed({"a.ini": "[pgbouncer]\ndefault_pool_size = 6\n"}, {"PGWEIR_RESERVE_POOL_SIZE": "7"})
    write(folder / "a.ini", "[pgbouncer]\ndefault_pool_size = 8\n")
    write(folder / "b.ini", "[users]\nbob = pool_size=2\n")
    pooler.reload()
    assert source(pooler, "default_pool_size")[0] == "8" and source(pooler, "reserve_pool_size") == ("7", "PGWEIR_RESERVE_POOL_SIZE")
    assert f"{folder}/b.ini sets [users] bob" in pooler.log()
    for text, mode, words in (
        ("[pgbouncer]\ndefault_pool_size = many\n", 0o644, f"{folder}/b.ini:2"),
        ("[pgbouncer]\ndefault_pool_size = 9\n", 0o666, f"{folder}/b.ini: all users can write it"),
    ):
        write(folder / "b.ini", text, mode)
        with pooler.console() as console:
            assert console.query("RELOAD").errors
        pooler.logged(re.escape(words))
        assert source(pooler, "default_pool_size")[0] == "8"
    (folder / "b.ini").unlink()
    (folder / "a.ini").unlink()
    pooler.reload()
    assert source(pooler, "default_pool_size") == ("20", "default")


@pytest.mark.parametrize("change", ["world-writable file", "world-writable directory", "fault", "missing directory", "variable"])
def test_a_start_is_refused(completed, change):
    """One source that cannot be used: the start is refused, and the fault names it; no secret is in the log."""
    text = "[databases]\napp = host=h password=hunter2 pool_size=x\n" if change == "fault" else "[pgbouncer]\ndefault_pool_size = 6\n"
    variables = {"PGWEIR_DEFAULT_POOL_SIZE": "many"} if change == "variable" else {}
    with pytest.MonkeyPatch.context():
        pooler, folder = completed({"a.ini": text}, variables, wait=False) if change in ("fault", "variable") else completed({"a.ini": text})
        if change not in ("fault", "variable"):
            pooler.process.terminate()
            pooler.process.wait(20)
            if change == "world-writable file":
                (folder / "a.ini").chmod(0o646)
            elif change == "world-writable directory":
                folder.chmod(0o757)
            else:
                (folder / "a.ini").unlink()
                folder.rmdir()
            pooler.start(wait=False)
        pooler.expect_exit = True
        assert pooler.process.wait(20) == 1
    words = {"fault": f"{folder}/a.ini:2", "variable": "PGWEIR_DEFAULT_POOL_SIZE", "missing directory": f"{folder}: there is no such directory"}
    assert words.get(change, "all users can write it") in pooler.output() and "hunter2" not in pooler.output()


def test_a_successor_gets_the_overlay(completed, monkeypatch):
    """-R from a shell without the variables and options of the old process: the new one has the same sources, and its own variables win."""
    pooler, folder = completed({"a.ini": "[pgbouncer]\ndefault_pool_size = 6\n"}, {"PGWEIR_RESERVE_POOL_SIZE": "7", "PGWEIR_MIN_POOL_SIZE": "1"})
    client = pooler.raw()
    monkeypatch.delenv("PGWEIR_RESERVE_POOL_SIZE")
    monkeypatch.setenv("PGWEIR_MIN_POOL_SIZE", "2")
    old = successor(pooler)
    over(old)
    assert source(pooler, "default_pool_size") == ("6", f"{folder}/a.ini:2")
    assert source(pooler, "reserve_pool_size") == ("7", "PGWEIR_RESERVE_POOL_SIZE")
    assert source(pooler, "min_pool_size") == ("2", "PGWEIR_MIN_POOL_SIZE")
    assert client.value("select 1") == "1"
    write(folder / "a.ini", "[pgbouncer]\ndefault_pool_size = 9\n")
    pooler.reload()
    assert source(pooler, "default_pool_size")[0] == "9"
    with pooler.console() as console:
        assert "only a process of the same user" in str(console.query("SHOW OVERLAY").errors)
    # Without an overlay the successor reads the file alone.
    old = successor(pooler, "--no-overlay")
    over(old)
    assert source(pooler, "default_pool_size") == ("20", "default")


def test_the_pages_example(completed):
    """docs/configure/overlay.md: what an operator writes becomes a cluster with a dashboard; `check` prints what the page shows."""
    page = REPOSITORY / "docs" / "configure" / "overlay.md"
    [example] = [text for text in blocks(page, "ini") if "discovery=dns" in text]
    port = free_port()
    example = example.replace("shop-nodes.default.svc", "localhost").replace("0.0.0.0:9128", f"127.0.0.1:{port}")
    pooler, folder = completed({"10-cluster.ini": example}, databases={"*": "host=shop-rw"})
    [cluster] = pooler.show("CLUSTERS")
    assert (cluster["cluster"], cluster["discovery"]) == ("main", "dns")
    assert fetch(f"http://127.0.0.1:{port}/")[0] == 200
    # The lines of `check` that the page shows, with this folder's names.
    write(folder / "50-pools.ini", "[pgbouncer]\npool_mode = session\n")
    line = next(number for number, text in enumerate(pooler.ini.read_text().splitlines(), 1) if text.startswith("pool_mode"))
    command = as_service(*pooler.command("check", f"--overlay={folder}", str(pooler.ini)))
    pooler.write_ini(max_client_conn=None)
    said = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PGWEIR_MAX_CLIENT_CONN": "2000"}, timeout=60).stdout
    shown = re.findall(r"^ *(overlay: .*)$", page.read_text(), re.MULTILINE)
    assert len(shown) == 2
    for text in shown:
        text = text.replace("/etc/pgweir/conf.d", str(folder)).replace("/etc/pgbouncer/pgbouncer.ini:7", f"{pooler.ini}:{line}")
        assert f"{text}\n" in said, said


def test_check_says_where_a_value_comes_from(completed):
    """`pgweir check` reads what a start reads, and says which line each source replaces."""
    pooler, folder = completed({"a.ini": "[pgbouncer]\npool_mode = session\nmin_pool_size = 1\n"})
    line = next(number for number, text in enumerate(pooler.ini.read_text().splitlines(), 1) if text.startswith("pool_mode"))

    def check(*arguments, **variables):
        command = as_service(*pooler.command("check", *arguments, str(pooler.ini)))
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, timeout=60)
        return done.returncode, done.stdout

    code, text = check(f"--overlay={folder}", PGWEIR_MAX_CLIENT_CONN="9", MAX_CLIENT_CON="9")
    assert code == 0, text
    assert f"overlay: {folder}/a.ini: pool_mode, in place of {pooler.ini}:{line}\n" in text
    assert f"overlay: {folder}/a.ini: min_pool_size, in place of the default\n" in text
    assert "overlay: PGWEIR_MAX_CLIENT_CONN: max_client_conn, in place of" in text
    assert 'warning: unknown variable MAX_CLIENT_CON; did you mean "PGWEIR_MAX_CLIENT_CONN"?' in text
    code, text = check("--no-overlay", PGWEIR_MAX_CLIENT_CONN="many")
    assert code == 0 and "overlay" not in text
    code, text = check(PGWEIR_MAX_CLIENT_CONN="many")
    assert code == 1 and "in configuration (PGWEIR_MAX_CLIENT_CONN)" in text

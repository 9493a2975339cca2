"""`pgweir check`: every fault in one run without a password, warnings for what cannot work, and logins to a real PostgreSQL with --connect."""

import json
import os
import resource
import subprocess

import pytest

from harness.cluster import PASSWORDS
from harness.machine import free_port
from harness.pooler import binary

pytestmark = pytest.mark.needs("pgweir check")

ROW = ("database", "host", "user", "result", "server", "time", "reason")


def check(pooler, *options, password=None):
    """Runs `pgweir check` on the pooler's file; returns the finished process."""
    environment = os.environ | ({"PGPASSWORD": password} if password else {})
    return subprocess.run([binary(), "check", *options, pooler.ini], capture_output=True, text=True, timeout=120, env=environment)


def logins(pooler, *options, **environment):
    """The rows of `check --connect --json`, by database and whether auth_query was run."""
    done = check(pooler, "--connect", "--json", *options, **environment)
    rows = json.loads(done.stdout)["logins"]
    return done.returncode, {(row["database"], row["host"], row["auth_query"]): row for row in rows}


def test_all_faults_at_once_and_no_password(pooled, pg, certificates):
    """A wrong auth_type hides neither a missing certificate nor a misspelled setting; no value that may be a password is shown."""
    pooler = pooled(
        {
            "url": "postgres://alice:s3cret@127.0.0.1/app",
            "typo": "host=127.0.0.1 pasword=s3cret",
            "odd": "host=127.0.0.1 port=many password=s3cret",
        },
        start=False, auth_type="md6", pool_mod="session", client_tls_sslmode="require",
        client_tls_cert_file="/no/such/cert", client_tls_key_file=certificates.key("server"), server_tls_ciphers="nonsense",
        otlp_endpoint="http://collector:s3cret@127.0.0.1", stats_period="http://me:s3cret@127.0.0.1",
    )  # fmt: skip
    done = check(pooler)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    for words in (
        'invalid value "md6" for "auth_type"',
        ': unknown setting "pool_mod"; did you mean "pool_mode"?',
        "invalid client_tls_cert_file: /no/such/cert",
        "server_tls_ciphers",
        'for "url": a URL is not understood here; write host=... port=... dbname=...',
        'did you mean "password"?',
        'invalid value "http://***@127.0.0.1" for "stats_period"',
    ):
        assert words in said, f"{words}\n{said}"
    assert "s3cret" not in said
    assert "8 errors and no warnings" in said, said


def test_a_key_of_another_certificate(pooled, certificates):
    """The key has to belong to the certificate."""
    pooler = pooled(
        start=False, client_tls_sslmode="require", client_tls_cert_file=certificates.crt("server"), client_tls_key_file=certificates.key("ca")
    )
    done = check(pooler)
    assert done.returncode == 1 and "client_tls_cert_file" in done.stdout, done.stdout


def test_what_parses_and_cannot_work(pooled):
    """Each is a warning with its line; they count with --strict only."""
    pooler = pooled(
        {"twice": "host=127.0.0.1,,127.0.0.1", "asked": "host=127.0.0.1 auth_query='select 1, 2'"},
        start=False, admin_users="root", min_pool_size=30, http_listen="0.0.0.0:9127", http_anonymous="all",
        auth_query="select usename, passwd from pg_shadow", logfile="/no/such/folder/pgweir.log", auth_type="md5", auth_hba_file="/no/such/hba",
    )  # fmt: skip
    done = check(pooler)
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    for words in (
        "the host list has an empty host",
        'admin user "root" is not in auth_file',
        "min_pool_size (30) is above default_pool_size (20)",
        "http_anonymous=all on 0.0.0.0:9127",
        'database "asked": auth_query has no parameter $1',
        "logfile: there is no directory /no/such/folder",
        "auth_hba_file /no/such/hba cannot be read",
    ):
        assert sum(words in line for line in lines) == 1, f"{words}\n{done.stdout}"
    assert sum(": auth_query has no parameter $1" in line and "asked" not in line for line in lines) == 1, done.stdout
    assert sum("auth_query has no effect without auth_user" in line for line in lines) == 2, done.stdout
    assert len(lines) == 10 and all(f"{pooler.ini}:" in line for line in lines), done.stdout
    assert check(pooler, "--strict").returncode == 1


def test_what_newcomers_do(pooled):
    """Lines that are there twice, no address, no database, no passwords, passwords for all, and more clients than files: a warning each."""
    pooler = pooled(start=False)
    file = pooler.folder / "new.ini"
    file.write_text(
        f"[databases]\n[pgbouncer]\nauth_type = scram-sha-256\nlisten_port = 1\nlisten_port = {pooler.port}\nunix_socket_dir = {pooler.folder}\n"
        "max_client_conn = 600\n[users]\nbob = pool_size=1\nbob = pool_size=2\n"
    )
    done = subprocess.run([binary(), "check", file], capture_output=True, text=True, preexec_fn=few_files, env={})
    lines = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    for words in (
        "listen_port is set twice: line 4 has no effect",
        '[users] "bob" is set twice: line 9 has no effect',
        "listen_addr is not set: clients reach pgweir over the unix socket only",
        "[databases] has no line: clients can connect to the console only",
        "auth_type=scram-sha-256, but there is no source of passwords, so no client can log in",
        "max_client_conn (600) is above the limit of open files (512)",
    ):
        assert sum(words in line for line in lines) == 1, f"{words}\n{done.stdout}"
    assert len(lines) == 6 and done.returncode == 0, done.stdout
    pooler.userlist_path.chmod(0o644)
    assert "has passwords in plain text, and every user of this machine can read it: chmod 640" in check(pooler).stdout


def test_a_url_on_the_line_of_a_database(pooled):
    """Both schemes are refused with what to write instead, and without the password in them."""
    for scheme in ("postgres", "postgresql"):
        pooler = pooled(start=False, databases={"shop": f"{scheme}://bob:hunter2@db.example:5433/shop"})
        done = check(pooler)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and "hunter2" not in said
        assert "a URL is not understood here; write host=... port=... dbname=..., and user=... password=..." in said


def test_one_line_in_two_files_is_no_slip(pooled):
    """A file may replace lines of a file that it includes, and a layer those of the file."""
    pooler = pooled(start=False)
    base = pooler.folder / "base.ini"
    base.write_text("default_pool_size = 7\n")
    pooler.ini.write_text(pooler.ini.read_text() + f"\n[pgweir]\n%include {base}\ndefault_pool_size = 9\n")
    assert "twice" not in check(pooler).stdout


def few_files():
    """A process that may open 512 files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))


def test_logins_in_one_table(pooled, pg, poolers):
    """Each host of each database is a row: with PostgreSQL's version, or with its own words for why not."""
    closed = free_port()
    pooler = pooled(
        {
            "app2": f"host=127.0.0.1 port={pg.port} user=u_scram",
            "app3": f"host=127.0.0.1 port={pg.port} user=u_scram password=wr0ng",
            "none": f"host=127.0.0.1 port={pg.port} dbname=nothere",
            "two": f"host=127.0.0.1,{pg.folder} port={pg.port} dbname=app",
            "away": f"host=127.0.0.1 port={closed}",
        },
        start=False, auth_type="md5",
    )  # fmt: skip
    done = check(pooler, "--connect")
    assert done.returncode == 1, done.stdout
    header, *lines = done.stdout.split("\n\n")[0].splitlines()
    assert tuple(header.split()) == ROW
    assert len(lines) == 7 and done.stdout.endswith("\n3 of 7 logins failed\n"), done.stdout
    said = done.stdout + done.stderr
    assert not any(secret in said for secret in ("wr0ng", *PASSWORDS.values())), said

    code, rows = logins(pooler)
    assert code == 1
    server = pg.sql("show server_version")[0][0].split()[0]
    for database, host in (("app", "127.0.0.1"), ("app2", "127.0.0.1"), ("two", "127.0.0.1"), ("two", str(pg.folder))):
        row = rows[database, f"{host}:{pg.port}", False]
        assert (row["result"], row["server_version"]) == ("ok", server), row
    assert rows["app2", f"127.0.0.1:{pg.port}", False]["user"] == "u_scram"
    wrong = rows["app3", f"127.0.0.1:{pg.port}", False]
    assert (wrong["result"], wrong["reason"]) == ("failed", 'password authentication failed for user "u_scram" (SQLSTATE 28P01)')
    assert rows["none", f"127.0.0.1:{pg.port}", False]["reason"] == 'database "nothere" does not exist (SQLSTATE 3D000)'
    assert "refused" in rows["away", f"127.0.0.1:{closed}", False]["reason"]


def test_all_logins_succeed(pooled, pg):
    """Then the exit code is 0; a user whose password is a SCRAM secret cannot be tried, and is no failure."""
    done = check(pooled(start=False), "--connect")
    assert done.returncode == 0 and done.stdout.endswith("\nall logins succeeded (3)\n"), done.stdout
    secret = pg.sql("select rolpassword from pg_authid where rolname = 'u_scram'")[0][0]
    pooler = pooled(start=False, userlist={"u_scram": secret, "admin": "x", "stats": "y"}, auth_type="scram-sha-256")
    code, rows = logins(pooler, "--user", "u_scram")
    assert code == 0
    row = rows["app", f"127.0.0.1:{pg.port}", False]
    assert (row["result"], "which only clients know" in row["reason"]) == ("not tested", True), row
    code, rows = logins(pooler, "--user", "u_scram", password=PASSWORDS["u_scram"])
    assert (code, rows["app", f"127.0.0.1:{pg.port}", False]["result"]) == (0, "ok")
    code, rows = logins(pooler, "--user=u_nobody")
    assert code == 1 and "u_nobody" in rows["app", f"127.0.0.1:{pg.port}", False]["reason"]


def test_auth_query_is_run(pooled, pg):
    """As auth_user in auth_dbname; an error, and a result of another form, are failures."""
    at = f"127.0.0.1:{pg.port}"
    good = {"auth_user": "poolauth", "auth_dbname": "app", "auth_query": "select rolname::text, 'x'::text from pg_roles where rolname = $1"}
    code, rows = logins(pooled(start=False, **good))
    assert code == 0 and rows["app", at, True]["reason"] == "auth_query gives a row", rows
    code, rows = logins(pooled(start=False, **good | {"auth_query": "select $1::text"}))
    assert code == 1 and "must give 2" in rows["app", at, True]["reason"], rows
    code, rows = logins(pooled(start=False, **good | {"auth_query": "select * from no_such where a = $1"}))
    assert code == 1 and 'auth_query: relation "no_such" does not exist (SQLSTATE 42P01)' == rows["app", at, True]["reason"], rows


def test_tls_as_a_pool_speaks_it(pooled, pg, certificates):
    """A role that PostgreSQL lets in over TLS alone; a wrong authority is told, and a server without TLS is refused where it is required."""
    at = f"127.0.0.1:{pg.port}"
    database = {"app": f"host=127.0.0.1 port={pg.port} dbname=app user=u_ssl password={PASSWORDS['u_ssl']}"}
    verified = {"server_tls_sslmode": "verify-ca", "server_tls_ca_file": certificates.crt("ca")}
    for settings in ({"server_tls_sslmode": "require"}, {}, verified):
        _, rows = logins(pooled(database, start=False, **settings))
        assert rows["app", at, False]["result"] == "ok", rows["app", at, False]
    _, rows = logins(pooled(database, start=False, server_tls_sslmode="disable"))
    assert rows["app", at, False]["result"] == "failed"
    _, rows = logins(pooled(database, start=False, **verified | {"server_tls_ca_file": certificates.crt("stranger")}))
    assert rows["app", at, False]["reason"].startswith("TLS: "), rows["app", at, False]


def test_faults_come_before_logins(pooled):
    """A file with faults has no pools: no login is tried."""
    done = check(pooled(start=False, pool_mode="often"), "--connect")
    assert done.returncode == 1 and "no login was tried" in done.stdout and "database  host" not in done.stdout


def test_a_report_for_machines(pooled):
    """Places and texts are fields."""
    pooler = pooled(start=False, pool_mod="session")
    done = check(pooler, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["warnings"] == [] and report["logins"] == []
    [error] = report["errors"]
    assert error["file"] == str(pooler.ini) and error["text"] == 'unknown setting "pool_mod"; did you mean "pool_mode"?'
    assert pooler.ini.read_text().splitlines()[error["line"] - 1] == "pool_mod = session"

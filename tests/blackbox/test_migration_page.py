"""docs/migrate/pgbouncer.md is followed to the letter: its commands run in their order, with three configuration files, from a running
PgBouncer to pgweir and back.
"""

import shutil

import pytest

from harness.machine import ACCOUNT, ACCOUNT_NAME, REPOSITORY, accepts, eventually, give
from harness.pages import PASSWORD, PGBOUNCER, Machine, blocks
from harness.pooler import kind

PAGE = REPOSITORY / "docs" / "migrate" / "pgbouncer.md"

pytestmark = [
    pytest.mark.skipif(kind() == "pgbouncer", reason="the page is about pgweir"),
    pytest.mark.skipif(ACCOUNT is None, reason="the page's commands need root"),
    pytest.mark.skipif(PGBOUNCER is None, reason="Debian's pgbouncer is not installed"),
]

#: As Debian's package has it (comments left out), with a database.
DEBIAN = """
[databases]
shop = host=127.0.0.1 port={pg} dbname=shop
[users]
[pgbouncer]
logfile = /var/log/postgresql/pgbouncer.log
pidfile = /var/run/postgresql/pgbouncer.pid
listen_addr = localhost
listen_port = 6432
unix_socket_dir = /var/run/postgresql
auth_type = md5
auth_file = /etc/pgbouncer/userlist.txt
"""

#: As the entry point of a container image writes it from DB_HOST, DB_USER and DB_PASSWORD.
IMAGE = """
[databases]
* = host=127.0.0.1 port={pg} auth_user=shop

[pgbouncer]
listen_addr = 0.0.0.0
listen_port = 6432
unix_socket_dir =
user = {account}
auth_file = /etc/pgbouncer/userlist.txt
auth_type = scram-sha-256
ignore_startup_parameters = extra_float_digits
pool_mode = transaction
max_client_conn = 200
server_tls_sslmode = prefer
admin_users = shop
"""

#: Users in the database, TLS on both sides.
QUERY_TLS = """
[databases]
shop = host=127.0.0.1 port={pg} dbname=shop auth_user=asker

[pgbouncer]
logfile = /var/log/postgresql/pgbouncer.log
pidfile = /var/run/postgresql/pgbouncer.pid
listen_addr = 127.0.0.1
listen_port = 6432
unix_socket_dir = /var/run/postgresql
auth_type = scram-sha-256
auth_file = /etc/pgbouncer/userlist.txt
auth_query = SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1
client_tls_sslmode = require
client_tls_key_file = /etc/pgbouncer/tls/server.key
client_tls_cert_file = /etc/pgbouncer/tls/server.crt
server_tls_sslmode = require
pool_mode = transaction
default_pool_size = 5
"""

FILES = {"debian": DEBIAN, "image": IMAGE, "auth_query and TLS": QUERY_TLS}


@pytest.fixture
def shop(pg):
    """A database and a user of this name, and one that may read the passwords."""
    pg.sql(f"create role shop login password '{PASSWORD}'")
    pg.sql(f"create role asker login superuser password '{PASSWORD}'")
    pg.sql("create database shop owner shop")
    yield pg
    pg.sql("drop database shop with (force)")
    pg.sql("drop role shop")
    pg.sql("drop role asker")


@pytest.fixture
def machine(request, shop, certificates):
    """The machine with one of the three files."""
    name = "asker" if "asker" in FILES[request.param] else "shop"
    ini = FILES[request.param].format(pg=shop.port, account=ACCOUNT_NAME)
    machine = Machine()
    machine.write("etc/pgbouncer/pgbouncer.ini", machine.move(ini))
    machine.write("etc/pgbouncer/userlist.txt", f'"{name}" "{PASSWORD}"\n')
    for found, kept in (("server.key", certificates.key("server")), ("server.crt", certificates.crt("server"))):
        shutil.copy(kept, machine.root / "etc/pgbouncer/tls" / found)
    give(machine.root / "etc")
    yield machine
    machine.end()


@pytest.mark.parametrize("machine", FILES, indirect=True)
def test_the_page_leads_from_pgbouncer_to_pgweir_and_back(machine):
    """Every command succeeds; at each point the right program serves the port."""
    machine.run("systemctl start pgbouncer")
    steps = blocks(PAGE)
    trial = next(number for number, step in enumerate(steps) if "pgweir-trial.pid)" in step)
    for step in steps[: trial + 1]:
        machine.run(step)
    assert machine.serving() == "pgbouncer"
    eventually(lambda: not accepts(machine.trial_port), "the trial has ended")
    for step in steps[trial + 1 :]:
        machine.run(step)
        if "start pgweir" in step:
            assert machine.serving() == "pgweir"
            log = machine.root / "var/log/pgweir/pgweir.log"
            assert "login attempt: db=shop user=shop" in log.read_text()
    assert machine.serving() == "pgbouncer"


def test_the_page_has_all_steps():
    """The blocks that the test runs are those of the page: none is lost by a change of its form."""
    text = "\n".join(blocks(PAGE))
    for command in ("apt-get install", "pgweir check", "pgweir -d", "psql", "pgbench", "systemctl stop pgbouncer", "systemctl start pgweir"):
        assert command in text
    assert len(blocks(PAGE)) == PAGE.read_text().count("```sh")

"""The commands of the documentation's pages are run in their order, on a machine with pgweir from its package."""

import re
import shutil
from pathlib import Path

import psycopg
import pytest

from harness.machine import ACCOUNT, REPOSITORY, eventually, give
from harness.pages import PASSWORD, Machine, blocks
from harness.pooler import kind
from test_migration_page import shop  # noqa: F401  (a fixture)

DOCS = REPOSITORY / "docs"

pytestmark = [
    pytest.mark.skipif(kind() == "pgbouncer", reason="the pages are about pgweir"),
    pytest.mark.skipif(ACCOUNT is None, reason="the pages' commands need root"),
]

INI = """
[databases]
shop = host=127.0.0.1 port={pg} dbname=shop

[pgbouncer]
logfile = /var/log/pgweir/pgweir.log
pidfile = /run/pgweir/pgweir.pid
unix_socket_dir = /run/pgweir
listen_addr = 127.0.0.1
listen_port = 6432
auth_type = scram-sha-256
auth_file = /etc/pgweir/userlist.txt
admin_users = admin
pool_mode = transaction
default_pool_size = 5
max_client_conn = 200
idle_transaction_timeout = 60
http_listen = 127.0.0.1:9127
"""

PAGES = {
    "faq.md": {"SHOW POOLS": "cl_waiting", "SHOW STATEMENTS": "mean", "SHOW CLIENTS_EXTENDED": "pinned", "pgweir doctor": "no errors"},
    "versions.md": {"--version": "PgBouncer 1.25", "SHOW VERSION": "PgBouncer 1.25"},
    "metrics.md": {"curl": "pgweir_build_info{"},
    "operate/troubleshooting.md": {"pgweir doctor": "no errors", "check --connect": "no errors"},
    "operate/checklist.md": {"--strict": "no errors and no warnings", "readyz": "ok", "chmod": ""},
}
"""Each page with commands, and what the commands print: a word of the command, and what its output has."""


@pytest.fixture
def machine(shop):  # noqa: F811
    """A machine on which pgweir is installed and serves the database shop."""
    machine = Machine()
    machine.run("apt-get install ./pgweir.deb")
    machine.write("etc/pgweir/pgweir.ini", machine.move(INI.format(pg=shop.port)))
    machine.write("etc/pgweir/userlist.txt", f'"shop" "{PASSWORD}"\n"admin" "{PASSWORD}"\n')
    give(machine.root / "etc")
    (machine.root / "etc/pgweir/userlist.txt").chmod(0o600)
    machine.run("systemctl start pgweir")
    # A client has been there: the pool exists.
    machine.run('psql -h 127.0.0.1 -p 6432 -U shop -d shop -c "select 1"')
    yield machine
    machine.end()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(machine, page):
    """Every command succeeds, and prints what the page says."""
    expected = dict(PAGES[page])
    for step in blocks(DOCS / page):
        said = machine.run(step)
        for word in [word for word in expected if word in step]:
            assert expected.pop(word) in said, f"{step}\n{said}"
    assert not expected, f"the page has no command with {expected}"


def test_the_page_on_upgrades(machine):
    """A client with a session goes through the upgrades by package and by hand; the restart of the way back disconnects it."""
    steps = blocks(DOCS / "operate" / "upgrade.md")
    back = next(number for number, step in enumerate(steps) if "systemctl stop" in step)
    pid = machine.root / "run/pgweir/pgweir.pid"
    client = psycopg.connect(host="127.0.0.1", port=machine.port, user="shop", password=PASSWORD, dbname="shop", sslmode="disable", autocommit=True)
    with client:
        client.execute("set application_name to 'kept'")
        processes = [pid.read_text()]
        for step in steps[:back]:
            machine.run(step)
            if "apt-get install" in step or " -R " in step:
                # The old process takes its file away, and the new one writes its own.
                processes.append(eventually(lambda: pid.exists() and pid.read_text() not in ("", *processes) and pid.read_text(), "another process runs"))
                assert client.execute("show application_name").fetchone() == ("kept",)
        # The package's reload, and -R by hand.
        assert len(processes) == 3
        machine.run(steps[back])
        with pytest.raises(psycopg.OperationalError):
            client.execute("select 1")
    for step in steps[back + 1 :]:
        machine.run(step)
    machine.run('psql -h 127.0.0.1 -p 6432 -U shop -d shop -c "select 1"')


def test_the_page_on_managed_clouds(machine, shop, certificates):  # noqa: F811
    """RDS's configuration with the downloaded authority: PostgreSQL on this machine stands for the service, with a certificate for its name."""
    page = DOCS / "start" / "clouds.md"
    service = "shop.abcdefghijkl.eu-west-1.rds.amazonaws.com"
    machine.moved |= {f"{service} port=5432": f"localhost port={shop.port}"}
    machine.program("curl", f'[[ $4 == https://truststore.pki.rds.amazonaws.com/* ]] && cp "{certificates.crt("ca")}" "$3"')
    [ini] = [text for text in blocks(page, "ini") if service in text and "[pgbouncer]" in text]
    steps = blocks(page)
    [authority] = [step for step in steps if "curl" in step]
    machine.run(authority)
    machine.write("etc/pgweir/pgweir.ini", machine.move(ini) + machine.move("pidfile = /run/pgweir/pgweir.pid\nadmin_users = admin\n"))
    machine.run("systemctl stop pgweir")
    machine.run("systemctl start pgweir")
    for step in steps:
        if step != authority:
            machine.run(step)
    query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
    assert machine.run(f'psql -h 127.0.0.1 -p 6432 -U shop -d shop -Atc "{query}"') == "t\n"
    shutil.copy(certificates.crt("stranger"), machine.root / "etc/pgweir/ca.crt")
    with pytest.raises(AssertionError, match="certificate"):
        machine.run("sudo -u pgweir pgweir check --connect /etc/pgweir/pgweir.ini")


def test_the_first_page(machine, shop):  # noqa: F811
    """Five minutes: the page's files and commands, from the check to a hundred clients."""
    page = DOCS / "start" / "five-minutes.md"
    machine.run("systemctl stop pgweir")
    machine.moved |= {"host=127.0.0.1 port=5432": f"host=127.0.0.1 port={shop.port}", "-T 10": "-T 1"}
    # The page's commands name no configuration directory: they are typed where the two files are.
    [ini], [users] = blocks(page, "ini"), blocks(page, "text")
    machine.write("pgweir.ini", machine.move(ini))
    machine.write("userlist.txt", re.sub("the password of shop|a password for the console", PASSWORD, users))
    started, *others = blocks(page)
    *before, start = started.splitlines()
    assert "no errors" in machine.run("\n".join(before))
    # It runs in the reader's first terminal.
    give(machine.root / "pgweir.ini"), give(machine.root / "userlist.txt")
    machine.program("first-terminal", f'exec setpriv --reuid {ACCOUNT.pw_uid} --regid {ACCOUNT.pw_gid} --clear-groups -- "$@"')
    machine.run(f"first-terminal {start} > first.log 2>&1 < /dev/null & echo $! > tmp/first.pid")
    machine.run("until (: > /dev/tcp/127.0.0.1/6432) 2> /dev/null; do sleep 0.05; done")
    for step in others:
        said = machine.run(f"{step.rstrip()} < /dev/null")
    assert "number of clients: 100" in said and "number of failed transactions: 0" in said


def test_the_page_on_high_availability(machine):
    """keepalived's configuration is printed, the drop-in is installed, and the signal for a drain ends the pooler."""
    steps = blocks(DOCS / "operate" / "high-availability.md")
    [pair] = [step for step in steps if "pair keepalived" in step]
    assert "virtual_ipaddress" in machine.run(pair) and "10.0.0.9/24" in machine.run(pair)
    for step in steps:
        if step != pair:
            machine.run(step)
    assert "CAP_NET_ADMIN" in (machine.root / "etc/systemd/system/pgweir.service.d/pgweir-vip.conf").read_text()
    pid = (machine.root / "units/pgweir.pid").read_text().strip()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text(), "it has ended")


def test_every_page_with_commands_is_known():
    """A block of commands that is added to one of these pages is run; none is lost by a change of its form."""
    for page in [*PAGES, "operate/upgrade.md", "operate/high-availability.md", "start/clouds.md", "start/five-minutes.md"]:
        text = (DOCS / page).read_text()
        assert len(blocks(DOCS / page)) == text.count("```sh") > 0, page

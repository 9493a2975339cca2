"""A table changes past the pooler under statements that real drivers have prepared, and the next execution runs on another server.

Each driver is a program that runs one statement for each line that it reads, and prints `value <b>` or `error <SQLSTATE>`. A driver may
heal by itself or report the error of a direct connection; it never reads a wrong value, and what it writes is there once.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivers import toolchains
from harness.cluster import PASSWORDS

HERE = Path(__file__).resolve().parent

CHANGED = "0A000"


def go():
    """The command that runs the pgx program."""
    toolchains.need("go")

    def build(target):
        toolchains.run("go", "build", "-mod=readonly", "-o", str(target / "changed"), ".", folder=HERE / "go-changed")

    return [str(toolchains.once("go-changed", build) / "changed")]


def java():
    """The command that runs the pgjdbc program."""
    battery = toolchains.java()
    jar = battery[battery.index("-cp") + 1].split(":")[1]

    def build(target):
        toolchains.run("javac", "-encoding", "UTF-8", "-cp", jar, "-d", str(target), "Changed.java", folder=HERE / "java-changed")

    return ["java", "-Xshare:auto", "-cp", f"{toolchains.once('java-changed', build)}:{jar}", "Changed"]


DRIVERS = {
    "psycopg": lambda: [sys.executable, str(HERE / "changed_psycopg.py")],
    "asyncpg": lambda: [sys.executable, str(HERE / "changed_asyncpg.py")],
    "pgx": go,
    "pgjdbc": java,
}


class Driver:
    """A running program."""

    def __init__(self, driver, port):
        environment = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(port),
            "PGDATABASE": "app",
            "PGUSER": "alice",
            "PGPASSWORD": PASSWORDS["alice"],
            "PGSSLMODE": "disable",
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(DRIVERS[driver](), env=os.environ | environment, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(30)

    def runs(self, line):
        """Runs one statement: its value as a number, or an SQLSTATE."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        kind, said = self.process.stdout.readline().split(maxsplit=1)
        assert kind in ("value", "error"), said
        return float(said) if kind == "value" else said.strip()

    def heals(self, line):
        """Runs one statement until it runs: returns how often it ran, and its value. It must have healed after two errors."""
        for _ in range(3):
            said = self.runs(line)
            if not isinstance(said, str):
                return said
            assert said == CHANGED, said
        raise AssertionError("it does not heal")


@pytest.fixture
def table(pg):
    """A function that changes the table directly on PostgreSQL."""
    pg.sql("drop table if exists changing")
    pg.sql("create table changing (a int, b int default 5)")
    pg.sql("insert into changing values (1)")
    pg.sql("grant all on changing to public")
    return lambda change: pg.sql(f"alter table changing {change}")


CHANGES = ["alter b type real", "add c int", "alter b type numeric", "alter b type smallint", "drop c", "alter b type bigint"]


def plays(driver, port, pg, change, reconnect):
    with Driver(driver, port) as client:
        writes = 1
        for _ in range(2):
            assert client.runs("read") == 5
            assert client.runs("write") == 5
            client.runs("plain")
            writes += 1
        for step in CHANGES:
            change(step)
            reconnect()
            assert client.heals("read") == 5, step
            assert client.heals("write") == 5, step
            writes += 1
            client.heals("plain")
            assert pg.sql("select count(*), min(a), max(a) from changing") == [(writes, 1, 1)], step


@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", [driver for driver in DRIVERS if driver != "psycopg"])
def test_directly(pg, table, driver):
    """With PostgreSQL itself: this proves the programs. psycopg does not heal by itself, and need not with the pooler."""
    plays(driver, pg.port, pg, table, lambda: None)


@pytest.mark.needs("prepared statements")
@pytest.mark.needs("changed results noticed")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("few", [False, True])
def test_on_another_server(pg, pooled, table, driver, few):
    """Each time on a server that has not prepared the statements; with `few`, servers keep one statement."""
    settings = {"max_prepared_statements": 1} if few else {}
    pooler = pooled(default_pool_size=2, ignore_startup_parameters="extra_float_digits", **settings)
    plays(driver, pooler.port, pg, table, lambda: pooler.admin("RECONNECT"))

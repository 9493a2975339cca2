"""Drivers that use the extended protocol read the console."""

import asyncio
import decimal
import os
import subprocess

import asyncpg
import psycopg
import pytest

from drivers import toolchains

pytestmark = pytest.mark.needs("extended protocol on the console")


def test_psycopg(pooled):
    """psycopg 3 with prepared statements, binary results, a server-side pipeline, and errors."""
    pooler = pooled()
    with pooler.connect("pgbouncer", "admin", password="pw-of-admin") as console:
        for binary in (False, True):
            rows = console.execute("SHOW LISTS", prepare=True, binary=binary).fetchall()
            assert len(rows) == 14 and all(isinstance(items, int) for _, items in rows)
            stats = console.execute("SHOW STATS", binary=binary).fetchone()
            assert isinstance(stats[1], decimal.Decimal)
        with console.pipeline():
            first, second = console.execute("SHOW DATABASES"), console.execute("SHOW VERSION")
            assert len(first.fetchall()) == 4 and second.fetchone()[0].startswith("PgBouncer ")
        with pytest.raises(psycopg.errors.ProtocolViolation, match="no such database"):
            console.execute("PAUSE nowhere", prepare=True)
        assert console.execute("RELOAD", prepare=True).statusmessage == "RELOAD"


def test_asyncpg(pooled):
    """asyncpg, which prepares everything and takes numbers in binary only."""
    pooler = pooled()

    async def read():
        console = await asyncpg.connect(host="127.0.0.1", port=pooler.port, user="admin", password="pw-of-admin", database="pgbouncer", ssl=False)
        for _ in range(2):
            lists = {row["list"]: row["items"] for row in await console.fetch("SHOW LISTS")}
            assert lists["databases"] == 4
            (stats, *_) = await console.fetch("SHOW STATS")
            assert isinstance(stats["total_xact_count"], decimal.Decimal)
        assert await console.execute("RECONNECT") == "RECONNECT"
        with pytest.raises(asyncpg.ProtocolViolationError):
            await console.fetch("nonsense")
        await console.close()

    asyncio.run(read())


@pytest.mark.timeout(300)
def test_pgx(pooled):
    """pgx with its default of cached prepared statements and binary results."""
    pooler = pooled()
    environment = {
        "PGHOST": "127.0.0.1", "PGPORT": str(pooler.port), "PGDATABASE": "pgbouncer", "PGUSER": "admin",
        "PGPASSWORD": "pw-of-admin", "PGSSLMODE": "disable",
    }  # fmt: skip
    done = subprocess.run([*toolchains.go(), "console"], capture_output=True, text=True, timeout=60, env=os.environ | environment)
    said = [line.removeprefix("ok ") for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert done.returncode == 0 and said == ["connect", "ping", "show", "commands"], done.stdout + done.stderr

"""Real drivers of five languages run the same battery: with PostgreSQL itself, and through the pooler in two modes.

Each battery is a program of its own (folders beside this file; psycopg and asyncpg as Python scripts) that prints `ok <step>`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivers import toolchains
from harness.cluster import PASSWORDS
from harness.pooler import kind

STEPS = [
    "connect", "simple", "params", "prepared", "transaction", "rollback", "errors", "big", "copy", "notices", "pipeline", "cancel", "session", "concurrent",
]  # fmt: skip

KEEPS_SESSIONS = kind() != "pgbouncer"
"""Whether transaction pooling leaves a client its settings, temporary tables, locks and channels."""

HERE = Path(__file__).resolve().parent

DRIVERS = {
    "psycopg": lambda: [sys.executable, str(HERE / "psycopg_battery.py")],
    "asyncpg": lambda: [sys.executable, str(HERE / "asyncpg_battery.py")],
    "pgx": toolchains.go,
    "node-postgres": toolchains.node,
    "pgjdbc": toolchains.java,
    "tokio-postgres": toolchains.rust,
}


def battery(driver, port, session=True):
    """Runs a driver's battery against this port; every step must have been done, in order. `session`: what a session keeps, too."""
    environment = {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(port),
        "PGDATABASE": "app",
        "PGUSER": "alice",
        "PGPASSWORD": PASSWORDS["alice"],
        "PGSSLMODE": "disable",
        "BATTERY_SESSION": "1" if session else "0",
    }
    steps = [step for step in STEPS if session or step != "session"]
    done = subprocess.run(DRIVERS[driver](), capture_output=True, text=True, timeout=80, env=os.environ | environment)
    said = [line.removeprefix("ok ") for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert done.returncode == 0 and said == steps, f"steps done: {said}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", DRIVERS)
def test_directly(pg, driver):
    """With PostgreSQL itself: this proves the battery."""
    battery(driver, pg.port)


HASTY = pytest.param("tokio-postgres", marks=pytest.mark.needs("cancel requests of senders that do not wait"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", [*(driver for driver in DRIVERS if driver != "tokio-postgres"), HASTY])
def test_in_session_pooling(pooled, driver):
    """A server for each client."""
    pooler = pooled(pool_mode="session", default_pool_size=15, ignore_startup_parameters="extra_float_digits", auth_type="scram-sha-256")
    battery(driver, pooler.port)


@pytest.mark.needs("prepared statements")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", DRIVERS)
def test_in_transaction_pooling(pooled, driver):
    """Three servers for more than ten connections, with each driver's own statement cache at work."""
    pooler = pooled(default_pool_size=3, ignore_startup_parameters="extra_float_digits", auth_type="scram-sha-256")
    battery(driver, pooler.port, session=KEEPS_SESSIONS)


@pytest.mark.needs("prepared statements")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", DRIVERS)
def test_with_few_prepared_statements(pooled, driver):
    """The same with servers that keep two statements: nearly every use has to prepare again.

    Two servers, since asyncpg prepares with Flush and no Sync: its open group holds one while another connection prepares.
    """
    pooler = pooled(default_pool_size=2, max_prepared_statements=2, ignore_startup_parameters="extra_float_digits")
    battery(driver, pooler.port, session=KEEPS_SESSIONS)

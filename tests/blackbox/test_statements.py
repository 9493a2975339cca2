"""SHOW STATEMENTS, SHOW PERCENTILES and the slow log, against a real PostgreSQL."""

import time

import psycopg
import pytest
from harness.wire import query



def statements(pooler):
    """SHOW STATEMENTS by text."""
    return {row["query"]: row for row in pooler.show("STATEMENTS", database="app")}


@pytest.mark.parametrize("settings", [{"pool_mode": "transaction"}, {"pool_mode": "session"}, {"pool_mode": "transaction", "multiplex_depth": 0}])
def test_simple_extended_and_prepared(pooled, settings):
    """A driver's statements in every form are one line each, with their rows, and without their values."""
    pooler = pooled(**settings)
    with pooler.connect() as connection:
        for number in range(3):
            connection.execute(f"select generate_series(1, {number + 2}) as simple", prepare=False)
        for number in range(4):
            connection.execute("select 'Wert' || %s::text as extended", [f"secret{number}"], prepare=False)
        for number in range(5):
            connection.execute("select %s::int as prepared", [number], prepare=True)
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0 as failed", prepare=False)
    seen = statements(pooler)
    expected = {
        "select generate_series(?, ?) as simple": (3, 9, 0),
        "select ? || ?::text as extended": (4, 4, 0),
        "select ?::int as prepared": (5, 5, 0),
        "select ? / ? as failed": (1, 0, 1),
    }
    # Lists in parentheses are one value.
    expected = {text.replace("(?, ?)", "(?)"): numbers for text, numbers in expected.items()}
    for text, (calls, rows, errors) in expected.items():
        row = seen[text]
        assert (int(row["calls"]), int(row["rows"]), int(row["errors"])) == (calls, rows, errors), row
        assert int(row["p50_us"]) <= int(row["p95_us"]) <= int(row["p99_us"]) <= int(row["max_us"]) <= int(row["total_us"])
        assert int(row["wait_us"]) + int(row["server_us"]) + int(row["client_us"]) == int(row["total_us"])
        assert int(row["bytes"]) > 0
    assert not any("secret" in text or "Wert" in text for text in seen)
    parts = {row["part"]: row for row in pooler.show("PERCENTILES", database="app", user="alice")}
    assert set(parts) == {"total", "wait", "server", "client", "transaction"}
    assert int(parts["total"]["count"]) == int(parts["server"]["count"]) >= 13


@pytest.mark.parametrize("defer_begin", ["packet", "server", "off"])
def test_the_wait_of_a_begin_is_measured(pooled, defer_begin):
    """A client that waits for a server with its BEGIN waits as SHOW PERCENTILES says, also if pgweir answers the BEGIN in the queue."""
    pooler = pooled(pool_mode="transaction", default_pool_size=1, defer_begin=defer_begin)
    with pooler.raw() as first, pooler.raw() as second:
        first.query("begin; select 1")
        second.send(query("begin"))
        if defer_begin == "server":
            second.until("Z")
            second.send(query("select 1"))
        time.sleep(0.3)
        first.query("commit")
        second.until("Z")
        second.query("select 1; commit" if defer_begin != "server" else "commit")
    wait = next(row for row in pooler.show("PERCENTILES", database="app", user="alice") if row["part"] == "wait")
    assert int(wait["max_us"]) >= 290_000, wait


def test_the_slow_log(pooled):
    """log_min_duration_ms: from there on, with the split, without values; SET changes it."""
    pooler = pooled(log_min_duration_ms=300, default_pool_size=1)
    with pooler.connect() as connection:
        connection.execute("select 'quick'")
        connection.execute("select pg_sleep(0.4), 'secret'")
    found = pooler.logged(
        r"LOG C-0x[0-9a-f]+: app/alice@\S+ duration: (\d+)\.\d{3} ms \(wait \d+\.\d{3} ms, server (\d+)\.\d{3} ms, client \d+\.\d{3} ms\), "
        r"1 rows, \d+ bytes  statement: select pg_sleep\(\?\), \?\n"
    )
    assert int(found[1]) >= int(found[2]) >= 400
    assert "quick" not in pooler.log() and "secret" not in pooler.log()
    pooler.admin("SET log_min_duration_ms = 0")
    with pooler.connect() as connection:
        connection.execute("select pg_sleep(0.4) as unsaid")
        connection.execute("select 1")
    assert "unsaid" not in pooler.log()


def test_memory_stays_flat(pooled):
    """statement_stats_bytes: many more different statements than fit take no more memory, and the common one stays."""
    pooler = pooled(statement_stats_bytes=200_000, workers=1)

    def run(session, first, count):
        for number in range(first, first + count):
            session.query(f"select 1 as c{number}")
            if number % 10 == 0:
                session.query("select 1 as common")

    with pooler.raw(timeout_s=60) as session:
        run(session, 0, 2_000)
        before = pooler.resident_kib()
        run(session, 2_000, 10_000)
        grown = pooler.resident_kib() - before
    assert grown < 1_500, f"{grown} kB more"
    rows = pooler.show("STATEMENTS", database="app")
    assert 50 < len(rows) <= 200
    assert int(next(row for row in rows if row["query"] == "select ? as common")["calls"]) > 1


def test_off(pooled):
    """statement_stats_bytes = 0: nothing is followed, and what is slow is logged without a text."""
    pooler = pooled(statement_stats_bytes=0, log_min_duration_ms=1)
    with pooler.connect() as connection:
        connection.execute("select pg_sleep(0.01)")
    assert pooler.show("STATEMENTS") == []
    pooler.logged(r"duration: \d+\.\d{3} ms .* statement: \(not known\)")


def test_stats_users_may_look_and_other_users_not(pooled):
    """As every SHOW."""
    pooler = pooled()
    for what in ("STATEMENTS", "PERCENTILES"):
        assert pooler.admin(f"SHOW {what}", user="stats") == []
    with pooler.console("stats") as console:
        assert "SHOW PERCENTILES|STATEMENTS" in console.query("SHOW HELP").of("N")[0].fields()["D"]

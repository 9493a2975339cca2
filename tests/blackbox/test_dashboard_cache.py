"""The dashboard's page of the query cache, and the API behind it, with a real PostgreSQL."""

import threading
from contextlib import contextmanager

import pytest
import yaml
from harness.machine import REPOSITORY, eventually, free_port
from harness.pooler import kind
from test_dashboard_clusters import story
from test_http import Http, with_labels
from test_query_cache import cached, counted, row  # noqa: F401: a fixture
from test_query_cache_wal import cached as cached_wal
from test_query_cache_wal import followed, until_followed  # noqa: F401: a fixture

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no query cache")

LONG = "[cache]\nall = ttl_ms=600000\n"
READ = "select value from counted where id = 1"


def watched(pooled, rules=LONG, **settings):
    """A pooler with the cache on, and a client of its HTTP server."""
    port = free_port()
    return Http(cached(pooled, rules=rules, http_listen=str(port), **settings), port)


def watched_wal(pooled, **settings):
    """The same with a rule that has the database app followed. The question for definitions may take long beside a browser."""
    port = free_port()
    return Http(cached_wal(pooled, http_listen=str(port), query_cache_ddl_ms=30_000, **settings), port)


@contextmanager
def reading(pooler, text=READ):
    """A client that sends the same read again and again."""
    over = threading.Event()

    def read():
        with pooler.connect(prepare_threshold=None) as client:
            while not over.is_set():
                client.execute(text)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()


def documented():
    return yaml.safe_load((REPOSITORY / "docs" / "openapi.yaml").read_text())


def schema(name):
    return documented()["components"]["schemas"][name]


def answer_of(path):
    """The schema of the answer to a GET."""
    return documented()["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]


def test_api(pooled, counted):  # noqa: F811
    """The page gets the numbers of SHOW CACHE, each reason why an answer is not given is counted once, and names are for readers that see them."""
    http = watched(pooled)
    pooler = http.pooler
    with pooler.connect(prepare_threshold=None) as client, pooler.connect(prepare_threshold=None) as other:
        read = lambda: client.execute(READ).fetchone()[0]  # noqa: E731
        one = lambda: http.get("/api/v1/cache")["pools"][0]  # noqa: E731
        other.execute("select 1")
        eventually(lambda: read() == 0 and one()["hits"] > 0, "it is answered from the cache")
        before = one()
        client.execute("update counted set value = 1")
        assert read() == 1
        after = one()
        assert (after["own_changes"] - before["own_changes"], after["redefined"], after["expired"]) == (1, before["redefined"], 0)
        assert read() == 1 and one()["hits"] == after["hits"] + 1
        counted.sql("grant create on schema public to alice")
        before = one()
        other.execute("create table redefined (id int)")
        other.execute("drop table redefined")
        assert read() == 1
        assert one()["redefined"] == before["redefined"] + 1
        eventually(lambda: one()["answers"] > 0, "it is kept")
        before = one()
        pooler.admin("CACHE PURGE app")
        assert one()["purged"] == before["purged"] + before["answers"] and one()["answers"] == 0
    shown = row(pooler)
    told = one()
    names = {"database", "user", "states"}
    assert {name: str(value) for name, value in told.items() if name not in names} == {name: shown[name] for name in told if name not in names}
    assert told["states"] == ["on"] and told["saved_us"] > 0
    assert set(told) == set(schema("CachePool")["required"]) == set(schema("CachePool")["properties"])
    whole = http.get("/api/v1/cache")
    assert set(whole) == set(answer_of("/api/v1/cache")["required"]) == set(answer_of("/api/v1/cache")["properties"])
    assert (whole["query_cache"], whole["rules_total"], whole["bytes_max"]) == ("on", 1, 64 << 20)
    assert (whole["query_cache_verify"], whole["followed"]) == (0, [])
    assert whole["rules"] == [{"name": "all", "database": None, "user": None, "application_name": None, "tables": [], "follow": "time", "ttl_ms": 600_000}]
    assert set(whole["rules"][0]) == set(schema("CacheRule")["required"])
    stranger = http.get("/api/v1/cache", user=None)
    assert (stranger["rules"], stranger["rules_total"], stranger["pools"][0]["user"], stranger["pools"][0]["hits"]) == ([], 1, None, told["hits"])
    metrics = http.metrics()
    for name in ("hits", "misses", "expired", "own_changes", "redefined", "purged"):
        assert with_labels(metrics, f"pgweir_cache_{name}_total", database="app", user="alice") == [told[name]], name
    assert with_labels(metrics, "pgweir_cache_saved_seconds_total", database="app", user="alice") == [told["saved_us"] / 1e6]
    first = http.get("/api/v1/statements?sort=cache_saved_us")["statements"][0]
    assert (first["text"], first["cache_hits"]) == ("select value from counted where id = ?", told["hits"])


def test_series(pooled, counted):  # noqa: F811
    """Hits, misses, ages and bytes are in the series, and answers that reach their age are counted."""
    http = watched(pooled, "[cache]\nall = ttl_ms=100\n")
    columns = lambda: http.get("/api/v1/series?window=300")["columns"]  # noqa: E731
    with reading(http.pooler):
        names = ("cache_hits", "cache_misses", "cache_aged", "cache_age_us", "cache_saved_us", "cache_bytes")
        eventually(lambda: all(sum(value or 0 for value in columns()[name]) > 0 for name in names), "all columns have values")
        eventually(lambda: http.get("/api/v1/cache")["pools"][0]["expired"] > 1, "answers reach their age")
    assert set(columns()) == set(schema("Series")["properties"]["columns"]["properties"])
    pool = http.get("/api/v1/cache")["pools"][0]
    assert 0 <= pool["age_p50_ms"] <= pool["age_max_ms"] <= 100
    assert pool["expired"] <= pool["misses"]


def test_page(pooled, pg, counted):  # noqa: F811
    """The page of a cache that answers, of one pool that it cannot serve, and of statements with what stands in their way."""
    http = watched(pooled, databases={"kept": f"{pg.at('app')} pool_mode=session"})
    with reading(http.pooler), http.pooler.connect("kept") as session, http.pooler.connect() as drawing:
        session.execute("select 1")
        for _ in range(3):
            drawing.execute("select random(), pg_sleep(0.05)")
        story("cache", http)


def test_page_of_a_cache_that_is_off(pooled, counted):  # noqa: F811
    """With the cache off, the page says so, and names the statements that would gain."""
    port = free_port()
    http = Http(pooled(http_listen=str(port)), port)
    with reading(http.pooler):
        story("cache_off", http)


def test_api_of_a_followed_database(pooled, followed):  # noqa: F811
    """The state of following is that of SHOW CACHE, and the counters of `follow=wal` move."""
    http = watched_wal(pooled, query_cache_verify=2)
    until_followed(http.pooler)
    told = http.get("/api/v1/cache")
    (one,) = told["followed"]
    assert set(one) == set(schema("FollowedDatabase")["required"]) == set(schema("FollowedDatabase")["properties"])
    assert (one["database"], one["state"], one["reason"], one["tables"]) == ("app", "following", None, 1)
    assert 0 <= told["time_s"] - one["since_s"] < 600 and one["lag_bytes"] >= 0
    assert (told["query_cache_verify"], told["rules"][0]["follow"], told["rules"][0]["ttl_ms"]) == (2, "wal", None)
    with reading(http.pooler):

        def moves():
            followed.sql("update counted set value = value + 1 where id = 1")
            pool = http.get("/api/v1/cache")["pools"][0]
            return pool["dropped_by_write"] > 0 and pool["dropped_by_key"] > 0 and pool["verified"] > 0

        eventually(moves, "changes end answers by key, and answers are compared", timeout_s=30)
    pool = http.get("/api/v1/cache")["pools"][0]
    assert pool["dropped_by_key"] <= pool["dropped_by_write"] <= pool["misses"] and pool["wrong"] == 0


def test_api_tells_why_a_database_is_not_followed(pooled, followed):  # noqa: F811
    """The reason names the role and what mends it, for readers that may see names."""
    http = watched_wal(pooled, query_cache_user="alice")
    shown = lambda user: http.get("/api/v1/cache", user=user)["followed"][0]  # noqa: E731
    with http.pooler.connect() as client:
        client.execute("select 1")
    eventually(lambda: 'ALTER ROLE "alice" REPLICATION' in (shown("stats")["reason"] or ""), "the reason is told", timeout_s=30)
    one = shown(None)
    assert one["state"] in ("off", "opening") and (one["reason"], one["tables"], one["lag_bytes"]) == (None, None, None)


def test_page_of_a_followed_database(pooled, followed):  # noqa: F811
    """The page of a database whose changes are followed, while it is written without the pooler."""
    http = watched_wal(pooled, query_cache_verify=2)
    until_followed(http.pooler)
    over = threading.Event()

    def write():
        with followed.connect() as writer:
            while not over.wait(0.3):
                writer.execute("update counted set value = value + 1 where id = 1")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with reading(http.pooler):
            story("cache_followed", http)
    finally:
        over.set()
        writer.join()


def test_page_of_a_database_that_cannot_be_followed(pooled, followed):  # noqa: F811
    """The page tells why nothing is kept, and what mends it."""
    http = watched_wal(pooled, query_cache_user="alice")
    with reading(http.pooler):
        story("cache_not_followed", http)

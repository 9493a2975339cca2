"""The HTTP server: metrics that agree with SHOW, the API, which reader sees what, actions, hostile requests."""

import base64
import json
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPConnection

import pytest

from harness.cluster import PASSWORDS
from harness.machine import eventually, free_port, scratch_folder
from harness.pooler import kind
from harness.wire import query

pytestmark = pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no HTTP server")

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5"


class Http:
    """A client of the pooler's HTTP server."""

    def __init__(self, pooler, port, context=None):
        self.pooler, self.port, self.context = pooler, port, context
        self.base = f"{'https' if context else 'http'}://127.0.0.1:{port}"

    def ask(self, path, method="GET", user=None, body=None, headers=(), timeout_s=10):
        """Status, headers and text of an answer."""
        request = urllib.request.Request(self.base + path, method=method, headers=dict(headers))
        if user:
            password = user if ":" in user else f"{user}:pw-of-{user}"
            request.add_header("Authorization", "Basic " + base64.b64encode(password.encode()).decode())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=self.context) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers, refused.read().decode()

    def get(self, path, user="stats"):
        """A JSON answer that has to be good."""
        status, _, text = self.ask(path, user=user)
        assert status == 200, f"{path}: {status} {text}"
        return json.loads(text)

    def metrics(self, user="stats"):
        """Name with labels to value."""
        status, _, text = self.ask("/metrics", user=user)
        assert status == 200, text
        return parse_metrics(text)

    def act(self, action, user="admin", **body):
        """Status and answer of an action."""
        status, _, text = self.ask(f"/api/v1/actions/{action}", "POST", user, body, {"X-CSRF-Token": "1"})
        return status, json.loads(text)


def parse_metrics(text):
    """(name, labels as a frozenset) to value."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line).groups()
            pairs = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
            assert (name, pairs) not in found, f"twice: {line}"
            found[name, pairs] = float(value)
    return found


@pytest.fixture
def http(pooled):
    """A pooler with an HTTP server."""

    def make(**settings):
        port = free_port()
        pooler = pooled(http_listen=str(port), **settings)
        client = Http(pooler, port)
        # Where clients get in, the page is there.
        assert client.ask("/readyz")[0] == 200
        return client

    return make


def with_labels(metrics, metric, /, **labels):
    """The values of a metric whose labels have these values."""
    return [v for (n, pairs), v in metrics.items() if n == metric and frozenset(labels.items()) <= pairs]


def test_http_is_there_before_clients_get_in(pooled):
    """Its address is opened first: a scraper that sees the process start is never refused. So if that fails, no client was let in."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        pooler = pooled(start=False, http_listen=str(port))
        pooler.start(wait=False)
        assert pooler.wait_exit() == 1
        assert f"http_listen: could not listen on 127.0.0.1:{port}" in pooler.output()
        assert f"listening on 127.0.0.1:{pooler.port}" not in pooler.output()


BY_POOL = (
    "client_active_connections client_active_cancel_connections client_waiting_connections client_waiting_cancel_connections "
    "server_active_connections server_active_cancel_connections server_being_canceled_connections server_idle_connections "
    "server_used_connections server_testing_connections server_login_connections client_maxwait_seconds"
)
BY_DATABASE = (
    "queries_pooled queries_duration_seconds received_bytes sent_bytes client_wait_seconds sql_transactions_pooled "
    "server_in_transaction_seconds client_parses server_parses binds server_assignments"
)
OF_THE_EXPORTER = {
    ("gauge", ""): "up databases users pools free_clients used_clients login_clients free_servers used_servers cached_dns_names "
    "cached_dns_zones in_flight_dns_queries config_max_client_connections config_max_user_connections",
    ("gauge", "version"): "version_info",
    ("gauge", "database user application_name state"): "client_connections",
    ("gauge", "name host port database force_user pool_mode"): " ".join(
        f"databases_{name}" for name in "pool_size reserve_pool max_connections current_connections paused disabled".split()
    ),
    ("counter", "database"): " ".join(f"stats_totals_{name}_total" for name in BY_DATABASE.split()),
    ("gauge", "database user"): " ".join(f"pools_{name}" for name in BY_POOL.split()),
}
"""The metrics of prometheus-community's pgbouncer_exporter, by type and labels. One more, `stats_totals_queries_total`, it has for a
column that PgBouncer gave up with 1.8."""


def test_every_metric_of_the_exporter(http):
    """Dashboards and alerts that were made for pgbouncer_exporter find each name here, of the same type and with the same labels."""
    http = http()
    with http.pooler.connect() as client:
        client.execute("select 1")
        status, _, text = http.ask("/metrics", user="stats")
        metrics = parse_metrics(text)
    assert status == 200
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for (kind_of, labels), names in OF_THE_EXPORTER.items():
        for name in (f"pgbouncer_{name}" for name in names.split()):
            assert types.get(name) == kind_of, name
            found = {frozenset(label for label, _ in pairs) for known, pairs in metrics if known == name}
            assert found == {frozenset(labels.split())}, name


def test_metrics_agree_with_show(http):
    http = http()
    with http.pooler.connect() as busy, http.pooler.connect(application_name='a"b\\c') as idle:
        idle.execute("SELECT 1")
        busy.execute("BEGIN; SELECT pg_sleep(0.01)")
        metrics = http.metrics()
        for row in http.pooler.admin("SHOW POOLS"):
            if row["database"] == "pgbouncer":
                continue
            names = {
                "cl_active": "client_active", "cl_waiting": "client_waiting", "sv_active": "server_active", "sv_idle": "server_idle",
                "sv_used": "server_used", "sv_tested": "server_testing", "sv_login": "server_login", "sv_being_canceled": "server_being_canceled",
                "cl_active_cancel_req": "client_active_cancel", "cl_waiting_cancel_req": "client_waiting_cancel",
                "sv_active_cancel": "server_active_cancel",
            }  # fmt: skip
            for column, name in names.items():
                value = with_labels(metrics, f"pgbouncer_pools_{name}_connections", database=row["database"], user=row["user"])
                assert value == [float(row[column])], (column, row)
        busy.execute("COMMIT")
    eventually(lambda: int(http.pooler.pool()["cl_active"]) == 0, "clients are gone")
    metrics = http.metrics()
    columns = {
        "query_count": ("queries_pooled_total", 1), "query_time": ("queries_duration_seconds_total", 1e6), "xact_count": ("sql_transactions_pooled_total", 1),
        "xact_time": ("server_in_transaction_seconds_total", 1e6), "wait_time": ("client_wait_seconds_total", 1e6),
        "bytes_received": ("received_bytes_total", 1), "bytes_sent": ("sent_bytes_total", 1), "client_parse_count": ("client_parses_total", 1),
        "server_parse_count": ("server_parses_total", 1), "bind_count": ("binds_total", 1), "server_assignment_count": ("server_assignments_total", 1),
    }  # fmt: skip
    for row in http.pooler.admin("SHOW STATS_TOTALS"):
        for column, (name, unit) in columns.items():
            [value] = with_labels(metrics, f"pgbouncer_stats_totals_{name}", database=row["database"])
            assert value * unit == pytest.approx(float(row[column])), (column, row)
    for row in http.pooler.admin("SHOW DATABASES"):
        where = {"name": row["name"], "host": row["host"] or "", "port": row["port"], "database": row["database"], "pool_mode": row["pool_mode"] or ""}
        for column, name in {"pool_size": "pool_size", "current_connections": "current_connections", "paused": "paused"}.items():
            assert with_labels(metrics, f"pgbouncer_databases_{name}", **where) == [float(row[column])], row
    assert with_labels(metrics, "pgbouncer_up") == [1]
    assert with_labels(metrics, "pgweir_statement_server_seconds_count", database="app", user="alice")[0] >= 3
    assert with_labels(metrics, "pgweir_statement_server_seconds_bucket", database="app", user="alice", le="+Inf")[0] >= 3


def test_both_formats_are_well_formed(http):
    http = http()
    with http.pooler.connect() as connection:
        connection.execute("SELECT 1")
    status, headers, text = http.ask("/metrics", headers={"Accept": OPENMETRICS})
    assert status == 200 and headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n") and "# TYPE pgbouncer_stats_totals_binds counter\n" in text
    plain = http.ask("/metrics")[2]
    assert "# EOF" not in plain and "# TYPE pgbouncer_stats_totals_binds_total counter\n" in plain
    families = re.findall(r"^# TYPE (\S+)", plain, re.M)
    assert len(families) == len(set(families)), "a family stands in one place"
    parse_metrics(plain)


def test_anonymous_readers_see_numbers_and_no_names(http):
    http = http()
    with http.pooler.connect(application_name="secret_app") as connection:
        connection.execute("SELECT 1")
        for path in ["/metrics", "/api/v1/overview", "/api/v1/pools", "/api/v1/databases", "/api/v1/users", "/api/v1/percentiles", "/api/v1/settings"]:
            status, _, text = http.ask(path)
            assert status == 200, f"{path}: {text}"
            assert "alice" not in text and "secret_app" not in text, path
            assert "127.0.0.1" not in text or path == "/api/v1/settings", path
        assert http.get("/api/v1/overview", user=None)["clients"]["total"] == 1
        assert http.get("/api/v1/pools")["pools"][0]["user"] == "alice"
        assert with_labels(http.metrics(), "pgbouncer_client_connections", application_name="secret_app", user="alice", state="idle") == [1]
        assert http.ask("/api/v1/series?database=app&user=alice")[0] == 403


def test_nothing_is_shown_where_nothing_is_to_be_shown(http):
    http = http(http_anonymous="none")
    for path in ["/metrics", "/api/v1/overview", "/api/v1/live", "/api/v1/settings", "/no/such/thing"]:
        assert http.ask(path)[0] == 401, path
    assert "WWW-Authenticate" in http.ask("/metrics")[1], "scrapers sign in so"
    assert "WWW-Authenticate" not in http.ask("/api/v1/overview")[1], "a browser does not ask over the page"
    for path in ["/healthz", "/readyz", "/", "/api/v1/session"]:
        assert http.ask(path)[0] == 200, path
    assert http.ask("/metrics", user="alice:x")[0] == 401
    assert http.ask("/metrics", user="stats")[0] == 200
    http.pooler.write_ini(http_anonymous="all")
    http.pooler.reload()
    eventually(lambda: http.ask("/metrics")[0] == 200, "RELOAD reaches the HTTP server")


def test_only_an_administrator_acts(http):
    http = http()
    body, token = {"database": "app"}, {"X-CSRF-Token": "1"}
    assert http.ask("/api/v1/actions/pause", "POST", None, body, token)[0] == 401
    assert http.ask("/api/v1/actions/pause", "POST", "stats", body, token)[0] == 403
    assert http.ask("/api/v1/actions/pause", "POST", "admin", body)[0] == 403, "without the header that no foreign page can send"
    foreign = {**token, "Origin": "http://evil.example"}
    assert http.ask("/api/v1/actions/pause", "POST", "admin", body, foreign)[0] == 403
    assert http.ask("/api/v1/actions/pause", "GET", "admin")[0] == 405
    assert http.pooler.show("DATABASES", name="app", paused=0), "nothing has happened"

    assert http.act("pause", database="app") == (200, {"done": True, "message": "PAUSE app"})
    assert http.pooler.show("DATABASES", name="app", paused=1)
    assert http.act("resume", database="app")[0] == 200
    assert http.act("pause", database="nope")[0] in (404, 409)
    assert http.act("resume", database="app")[0] == 409
    assert http.act("shutdown")[0] == 404
    with http.pooler.connect() as connection:
        connection.execute("SELECT 1")
        [row] = http.pooler.show("CLIENTS", database="app")
        assert http.act("kill_client", client=int(row["id"]))[0] == 200
        assert http.act("kill_client", client=int(row["id"]))[0] == 404
        assert not http.pooler.show("CLIENTS", database="app")
    http.pooler.write_ini(query_timeout="not a number")
    assert http.act("reload")[0] == 409
    http.pooler.write_ini(query_timeout="7")
    assert http.act("reload")[0] == 200
    assert http.pooler.show("CONFIG", key="query_timeout", value=7)
    assert '"PAUSE app" over HTTP by admin' in http.pooler.log()


def test_a_pause_that_takes_long_goes_on_by_itself(http):
    http = http()
    with http.pooler.connect() as connection:
        connection.execute("BEGIN; SELECT 1")
        status, answer = http.act("pause", database="app")
        assert (status, answer["done"]) == (202, False)
        connection.execute("COMMIT")
    eventually(lambda: not http.pooler.servers(database="app"), "the pause closed the servers")
    assert http.act("resume", database="app")[0] == 200


def test_sessions_sign_in_and_out(http):
    http = http(http_anonymous="none")
    anonymous = json.loads(http.ask("/api/v1/session")[2])
    assert (anonymous["role"], anonymous["sign_in"]) == ("anonymous", True)
    wrong = {"user": "admin", "password": "guess"}
    assert http.ask("/api/v1/session", "POST", body=wrong)[0] == 401
    status, headers, text = http.ask("/api/v1/session", "POST", body={"user": "admin", "password": "pw-of-admin"})
    session, cookie = json.loads(text), headers["Set-Cookie"]
    assert status == 200 and session["may_act"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    signed_in = {"Cookie": cookie.split(";")[0]}
    assert http.ask("/api/v1/overview", headers=signed_in)[0] == 200
    act = lambda token: http.ask("/api/v1/actions/reconnect", "POST", None, {}, {**signed_in, "X-CSRF-Token": token})[0]  # noqa: E731
    assert (act("1"), act(session["csrf"])) == (403, 200)
    out = http.ask("/api/v1/session", "DELETE", None, {}, {**signed_in, "X-CSRF-Token": session["csrf"]})
    assert out[0] == 200 and http.ask("/api/v1/overview", headers=signed_in)[0] == 401
    for _ in range(25):
        status, headers, _ = http.ask("/api/v1/session", "POST", body=wrong)
    assert status == 429 and int(headers["Retry-After"]) > 0


def test_guessing_elsewhere_locks_no_user_out(http):
    """Wrong passwords make the address wait from which they come, and no other."""
    http = http(http_anonymous="none")

    def sign_in(source, password):
        connection = HTTPConnection("127.0.0.1", http.port, timeout=10, source_address=(source, 0))
        body = json.dumps({"user": "admin", "password": password})
        connection.request("POST", "/api/v1/session", body, {"Content-Type": "application/json"})
        return connection.getresponse().status

    answers = [sign_in("127.0.0.9", "guess") for _ in range(25)]
    assert set(answers) == {401, 429} and answers[-1] == 429
    assert sign_in("127.0.0.9", "pw-of-admin") == 429
    assert sign_in("127.0.0.1", "pw-of-admin") == 200


def test_another_password_ends_sign_ins(http):
    """A session ends when its user's password is changed; those of other users go on."""
    http = http(http_anonymous="none")

    def signed_in(user):
        _, headers, _ = http.ask("/api/v1/session", "POST", body={"user": user, "password": f"pw-of-{user}"})
        return {"Cookie": headers["Set-Cookie"].split(";")[0]}

    admin, stats = signed_in("admin"), signed_in("stats")
    sees = lambda who: http.ask("/api/v1/overview", headers=who)[0]  # noqa: E731
    http.pooler.reload()
    assert (sees(admin), sees(stats)) == (200, 200)
    http.pooler.write_userlist(PASSWORDS | {"admin": "pw-of-admin", "stats": "another"})
    http.pooler.reload()
    eventually(lambda: sees(stats) == 401, "the session is over")
    assert sees(admin) == 200


def test_numbers_move_and_series_grow(http):
    http = http()
    with http.pooler.connect() as connection:
        for _ in range(50):
            connection.execute("SELECT 1")
        overview = eventually(lambda: (o := http.get("/api/v1/overview"))["totals"]["queries"] >= 50 and o, "queries are counted")
        assert overview["servers"]["total"] == 1 and overview["latency"]["total"]["p50_us"] > 0
        assert [d["name"] for d in overview["databases"]] == ["app"]
        shown = lambda: (s := http.get("/api/v1/series?database=app&user=alice"))["time_s"] and s  # noqa: E731
        series = eventually(lambda: (s := shown()) and sum(q or 0 for q in s["columns"]["queries"]) > 0 and s, "the series has them")
        assert series["step_s"] == 1 and all(len(c) == len(series["time_s"]) for c in series["columns"].values())
        later = http.get(f"/api/v1/series?database=app&since={series['time_s'][-1]}")
        assert all(t > series["time_s"][-1] for t in later["time_s"])
        assert http.ask("/api/v1/series?database=nope", user="stats")[0] == 404
        assert http.ask("/api/v1/series?window=5", user="stats")[0] == 400
    rows = http.get("/api/v1/percentiles")["rows"]
    assert rows[0]["database"] is None and rows[1]["latency"]["server"]["p99_us"] >= rows[1]["latency"]["server"]["p50_us"]
    [errors] = [0, *(e["total"] for e in http.get("/api/v1/overview")["errors"] if e["class"] == "42")][-1:]
    with http.pooler.connect() as connection, pytest.raises(Exception, match="no_such_table"):
        connection.execute("SELECT * FROM no_such_table")
    overview = eventually(lambda: (o := http.get("/api/v1/overview"))["errors"] and o, "errors are counted")
    assert {"class": "42", "name": "syntax error or access rule violation", "total": errors + 1} in overview["errors"]


def test_clients_and_servers_are_listed(http):
    http = http()
    with http.pooler.connect(application_name="first") as first, http.pooler.connect(application_name="second") as second:
        second.execute("SELECT 1")
        first.execute("BEGIN; SELECT 1")
        answer = http.get("/api/v1/clients?database=app")
        assert answer["total"] == 2
        assert [(c["state"], c["application_name"]) for c in answer["clients"]] == [("idle_in_transaction", "first"), ("idle", "second")]
        client = answer["clients"][0]
        assert client["user"] == "alice" and client["address"].startswith("127.0.0.1:") and client["since_s"] > 1_700_000_000
        assert client["transaction_us"] > 0 and answer["clients"][1]["transaction_us"] == 0
        [server] = http.get("/api/v1/servers?state=idle_in_transaction")["servers"]
        assert (server["id"], server["client_id"]) == (client["server_id"], client["id"])
        assert server["backend_pid"] == first.execute("SELECT pg_backend_pid()").fetchone()[0]
        limited = http.get("/api/v1/clients?database=app&limit=1")
        assert limited["total"] == 2 and len(limited["clients"]) == 1
        assert http.get("/api/v1/clients?state=waiting")["total"] == 0
        by_name = http.get("/api/v1/clients?application_name=second")
        assert [c["application_name"] for c in by_name["clients"]] == ["second"]
        assert by_name["choices"]["application_name"] == ["first", "second"] and "alice" in by_name["choices"]["user"]
        counted = "idle_in_transaction"
        eventually(lambda: [pool["clients"][counted] for pool in http.get("/api/v1/pools")["pools"]] == [1], "it is counted")
        second.execute("create temporary table pinning (a int)")

        def pinned():
            clients = http.get("/api/v1/clients")["clients"]
            return next((c for c in clients if c["application_name"] == "second" and (c["reason"] or "").startswith("keeps")), None)

        client = eventually(pinned, "the client has a reason")
        assert (client["state"], client["reason"]) == ("active", "keeps its server: temporary objects")
        [server] = [s for s in http.get("/api/v1/servers")["servers"] if s["id"] == client["server_id"]]
        assert server["reason"] == "kept by its client: temporary objects"
        eventually(lambda: [pool["clients"]["pinned"] for pool in http.get("/api/v1/pools")["pools"]] == [1], "the pin is counted")
        assert 'pgweir_pool_clients_pinned{database="app",user="alice"} 1' in http.ask("/metrics", user="admin")[2]
        assert 'pgweir_session_pins_total{database="app",user="alice"} 1' in http.ask("/metrics", user="admin")[2]
        status, _, text = http.ask("/api/v1/clients")
        assert status == 200 and "alice" not in text and "first" not in text and "127.0.0.1" not in text
        assert http.ask("/api/v1/clients?user=alice")[0] == 403
        assert http.ask("/api/v1/clients?application_name=first")[0] == 403
        assert http.ask("/api/v1/clients?state=asleep")[0] == 400
        first.execute("ROLLBACK")


def test_the_last_warnings_are_shown_to_readers_that_may_see_names(http):
    http = http()
    http.pooler.write_ini(query_timeout="not a number")
    assert http.act("reload")[0] == 409
    lines = http.get("/api/v1/log")["lines"]
    assert any("query_timeout" in line["message"] and line["level"] == "error" for line in lines), lines
    assert lines == sorted(lines, key=lambda line: -line["time_s"])
    assert http.ask("/api/v1/log")[0] == 403


def test_the_log_can_be_followed(http):
    """With `level=log` usual lines are in it, too; `after` gives those that are new; a warning stays when many usual lines come."""
    http = http()
    http.pooler.connect().close()

    def ends():
        return [line for line in http.get("/api/v1/log?level=log")["lines"] if "closing because" in line["message"]]

    first = eventually(ends, "the client's end")
    lines = http.get("/api/v1/log?level=log")["lines"]
    assert [line["id"] for line in lines] == sorted((line["id"] for line in lines), reverse=True)
    assert any("login attempt: db=app user=alice" in line["message"] and line["level"] == "log" for line in lines)
    assert not any(line["level"] == "log" for line in http.get("/api/v1/log")["lines"])
    last = lines[0]["id"]
    assert last >= first[0]["id"]
    http.pooler.write_ini(query_timeout="not a number")
    assert http.act("reload")[0] == 409
    news = http.get(f"/api/v1/log?level=log&after={last}")["lines"]
    assert any("query_timeout" in line["message"] for line in news) and all(line["id"] > last for line in news)
    assert http.get(f"/api/v1/log?level=log&after={news[0]['id'] + 1000}")["lines"][-1]["id"] == lines[-1]["id"], "the number of an earlier process"
    assert http.ask("/api/v1/log?level=log")[0] == 403 and http.ask("/api/v1/log?level=debug", user="admin")[0] == 400


def test_clients_by_application(http):
    """/api/v1/applications: what the clients of each name do; users of the console are in none, and only readers of names see it."""
    http = http(default_pool_size=2)
    with (
        http.pooler.connect(application_name="shop") as shop,
        http.pooler.connect(application_name="shop") as idle,
        http.pooler.connect(application_name="", user="bob") as bob,
        http.pooler.connect("pgbouncer", "admin", password="pw-of-admin", application_name="console"),
    ):
        idle.execute("select 1")
        shop.execute("begin; select 1")
        bob.execute("select 1")
        answer = http.get("/api/v1/applications")
        assert (answer["total"], [one["name"] for one in answer["applications"]]) == (2, ["shop", ""])
        first, second = answer["applications"]
        assert [first[name] for name in ("clients", "active", "idle_in_transaction", "waiting", "idle")] == [2, 0, 1, 0, 1]
        assert first["transaction_oldest_us"] > 0 == first["wait_oldest_us"]
        assert (first["databases"], first["users"]) == (["app"], ["alice"]) and second["users"] == ["bob"]
        status, _, text = http.ask("/api/v1/applications")
        assert status == 403 and "shop" not in text
        shop.execute("rollback")


def test_statements_and_the_slow_ones(http):
    """/api/v1/statements: as SHOW STATEMENTS, for readers that may see names; literals nowhere."""
    http = http(log_min_duration_ms=50)
    with http.pooler.connect(application_name="checkout") as connection:
        for number in range(3):
            connection.execute(f"select {number} as often, 'secret'")
        connection.execute("select pg_sleep(0.1) as seldom")
    answer = http.get("/api/v1/statements?sort=calls")
    assert answer["enabled"] and answer["tracked"] >= 2 and answer["slow_ms"] == 50
    first = answer["statements"][0]
    assert (first["text"], first["calls"], first["rows"], first["database"], first["user"]) == ("select ? as often, ?", 3, 3, "app", "alice")
    by_time = http.get("/api/v1/statements")["statements"]
    assert by_time == sorted(by_time, key=lambda one: -one["total_us"])
    assert http.get("/api/v1/statements?limit=1")["statements"] == by_time[:1]
    # The others may have waited for their first server for longer.
    [longest] = [one for one in by_time if one["text"] == "select pg_sleep(?) as seldom"]
    assert longest["max_us"] == longest["total_us"] >= 100_000
    assert longest["wait_us"] + longest["server_us"] + longest["client_us"] == longest["total_us"]
    [slow] = [one for one in answer["slow"] if "seldom" in one["text"]]
    assert (slow["application_name"], slow["rows"], slow["failed"]) == ("checkout", 1, False)
    assert slow["total_us"] == longest["total_us"] and slow["time_s"] > 1_700_000_000
    status, _, text = http.ask("/api/v1/statements")
    assert status == 403 and "select" not in text
    assert "secret" not in str(answer) and http.get("/api/v1/statements?database=nowhere")["statements"] == []
    metrics = http.ask("/metrics", user="stats")[2]
    assert "pgweir_statements_followed " in metrics and "pgweir_statements_forgotten_total 0" in metrics


def test_the_stream_sends_the_overview(http):
    http = http()
    with socket.create_connection(("127.0.0.1", http.port), timeout=10) as stream:
        stream.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while received.count(b"event: overview") < 2:
            piece = stream.recv(65536)
            assert piece, received
            received += piece
    data = re.search(rb"^data: (\{.*\})$", received, re.M)[1]
    assert json.loads(data)["process"]["state"] == "active"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
        b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n" + b"{" * 100_000,
        b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2000\r\n\r\n" + b"[" * 2000,
        b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n" + b'{"user": 7, "password": null}',
        b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n",
        b"GET /api/v1/series?database=%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic \xff\xfe\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_hostile_requests_are_refused_and_nothing_else(http, request_bytes):
    http = http()
    with socket.create_connection(("127.0.0.1", http.port), timeout=10) as stream:
        try:
            stream.sendall(request_bytes)
            stream.shutdown(socket.SHUT_WR)
            answer = stream.recv(4096)
        except OSError:
            answer = b""
        assert answer == b"" or re.match(rb"HTTP/1\.[01] 4\d\d ", answer), answer
    assert http.ask("/healthz")[0] == 200


@pytest.mark.parametrize("name", ["pooler", "plain"])
def test_https(pooled, certificates, name):
    """With a certificate of X.509 version 3 or 1, which OpenSSL takes."""
    port = free_port()
    files = {"http_tls_cert_file": certificates.crt(name), "http_tls_key_file": certificates.key(name)}
    pooler = pooled(http_listen=f"127.0.0.1:{port}", **files)
    context = ssl.create_default_context(cafile=certificates.crt("ca"))
    # Python does not compare host names with common names.
    context.check_hostname = name == "pooler"
    client = Http(pooler, port, context)
    eventually(lambda: client.ask("/readyz")[0] == 200, "it is ready")
    _, headers, _ = client.ask("/api/v1/session", "POST", body={"user": "admin", "password": "pw-of-admin"})
    assert "Secure" in headers["Set-Cookie"]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
        stream.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP" not in stream.recv(4096), "plain text is not answered"


TIMEOUT_S = 6
"""Less than the ten seconds after which a silent connection is given up."""

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def connections(http, count, first=b""):
    """So many connections that have sent something, or nothing."""
    found = []
    for _ in range(count):
        found.append(socket.create_connection(("127.0.0.1", http.port), timeout=10))
        found[-1].sendall(first)
    return found


SIGN_IN = b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("whole, first", [(HEALTH, 0), (HEALTH, 20), (SIGN_IN, -1)], ids=["nothing", "half a head", "half a body"])
def test_no_request_waits_for_silent_connections(http, whole, first):
    """More than there are places for: a new connection replaces the one that was silent for longest, and all other ones stay."""
    http = http()
    silent = connections(http, 150, whole[:first])
    assert http.ask("/healthz", timeout_s=TIMEOUT_S)[0] == 200
    assert silent[0].recv(1) == b"", "the first has left"
    silent[60].sendall(whole[first:])
    assert silent[60].recv(4096).startswith(b"HTTP/1.1 "), "no request had to wait until this one was given up"
    for one in silent:
        one.close()


def test_no_request_waits_for_connections_that_do_not_read(http):
    http = http()
    deaf = []
    for _ in range(150):
        deaf.append(socket.socket())
        deaf[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf[-1].settimeout(10)
        deaf[-1].connect(("127.0.0.1", http.port))
        deaf[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
    assert http.ask("/healthz")[0] == 200
    for one in deaf:
        one.close()


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/api/v1/overview"])
def test_a_whole_request_is_answered_after_the_end_of_input(http, path):
    """A client may close its half behind the request, as `nc -N` does."""
    http = http()
    with socket.create_connection(("127.0.0.1", http.port), timeout=10) as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        stream.shutdown(socket.SHUT_WR)
        received = b""
        while piece := stream.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 ")


def test_other_methods_are_told_which_there_are(http):
    http = http()
    for path, methods in (("/metrics", "GET, HEAD"), ("/api/v1/session", "GET, HEAD, POST, DELETE"), ("/api/v1/actions/pause", "POST")):
        status, headers, _ = http.ask(path, "OPTIONS")
        assert (status, headers["Allow"]) == (405, methods), path


def test_why_a_client_is_in_its_state(http, pg):
    """A client idle in a transaction comes before one that works, which has its statement's fingerprint; the reason says more."""
    folder = scratch_folder("socket")
    door = folder / f".s.PGSQL.{pg.port}"
    door.symlink_to(f"{pg.folder}/.s.PGSQL.{pg.port}")
    http = http(default_pool_size=2, databases={"gone": f"host={folder} port={pg.port} dbname=app"}, query_wait_timeout=60)

    def reasons(database="app"):
        clients = http.get(f"/api/v1/clients?database={database}")["clients"]
        return [(one["application_name"], one["state"], one["reason"]) for one in clients]

    def say(session, statement):
        session.send(query(statement))

    with http.pooler.raw(application_name="thinker") as thinker, http.pooler.raw(application_name="worker") as worker:
        worker.query("select pg_sleep(0)")  # a statement is listed when it has been answered once
        thinker.query("begin; select 1")
        time.sleep(1.1)  # times of requests are told in seconds
        say(worker, "select pg_sleep(60)")
        idle = ("thinker", "idle_in_transaction", "in a transaction, has sent nothing since its last statement")
        busy = ("worker", "active", None)
        eventually(lambda: reasons() == [idle, busy], f"{idle}, {busy}")
        [thinks, works] = http.get("/api/v1/clients?database=app")["clients"]
        assert thinks["transaction_us"] > 1_000_000 and thinks["statement"] is None
        [slept] = [one for one in http.get("/api/v1/statements")["statements"] if "pg_sleep" in one["text"]]
        assert works["statement"] == slept["fingerprint"]
        with http.pooler.raw(application_name="third") as third:
            say(third, "select 1")
            eventually(lambda: reasons()[0] == ("third", "waiting", "all servers of its pool are busy"), "the reason of who waits")
    with http.pooler.raw("app2", application_name="fourth") as fourth:
        fourth.query("select 1")
        http.pooler.admin("PAUSE app2")
        say(fourth, "select 1")
        eventually(lambda: reasons("app2") == [("fourth", "waiting", "its database is paused")], "the reason while paused")
        http.pooler.admin("RESUME app2")
    with http.pooler.raw("gone", application_name="fifth") as fifth:
        # A client that logs in is told at once that no server can be reached; one that has asked for something waits.
        door.unlink()
        http.pooler.admin("RECONNECT gone")
        eventually(lambda: not http.pooler.servers(database="gone"), "the old connection is closed")
        say(fifth, "select 1")
        eventually(lambda: reasons("gone") == [("fifth", "waiting", "connections to the server cannot be opened")], "the reason while there is no server")
        failing = eventually(lambda: [p for p in http.get("/api/v1/pools")["pools"] if p["connect_failing"]], "the pool says that it fails")
        assert [one["database"] for one in failing] == ["gone"]
        assert 0 <= failing[0]["next_connect_us"] <= 15_000_000 and "No such file" in failing[0]["last_connect_error"]
        [hidden] = [p for p in json.loads(http.ask("/api/v1/pools")[2])["pools"] if p["database"] == "gone"]
        assert hidden["connect_failing"] and hidden["last_connect_error"] is None and hidden["next_connect_us"] is not None
    assert http.ask("/api/v1/series?user=alice", user="stats")[0] == 400, "a user alone has no series"
    shutil.rmtree(folder)

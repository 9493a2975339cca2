"""Startup parameters and ParameterStatus: what a client asked for is what it has, whichever server its statements run on."""

import random
import threading

import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.wire import Closed, Raw, group, query, startup

AS_PGBOUNCER = {} if kind() == "pgbouncer" else {"session_state": "pgbouncer"}
"""Sessions are not kept."""

TRACKED = {
    "application_name": ("one", "two"),
    "TimeZone": ("Europe/Berlin", "America/New_York"),
    "DateStyle": ("ISO, DMY", "SQL, MDY"),
    "client_encoding": ("LATIN1", "UTF8"),
    "standard_conforming_strings": ("off", "on"),
}


def test_login_reports_parameters(pooled, pg):
    """A client is told at login what a direct client is told, with the values it asked for."""
    pooler = pooled()
    with Raw(("127.0.0.1", pg.port)) as direct, pooler.raw(login=False) as session:
        direct.login("alice", "app", application_name="probe", TimeZone="Asia/Tokyo")
        session.login("alice", "app", application_name="probe", TimeZone="Asia/Tokyo")
        for name in (
            "server_version", "server_encoding", "client_encoding", "integer_datetimes", "standard_conforming_strings",
            "application_name", "TimeZone", "DateStyle", "is_superuser", "session_authorization",
        ):  # fmt: skip
            if name in ("is_superuser", "session_authorization") and name not in session.parameters and kind() == "pgbouncer":
                continue
            assert session.parameters.get(name) == direct.parameters.get(name), name


@pytest.mark.parametrize("name", TRACKED)
def test_startup_values_hold_on_a_shared_server(pooled, name):
    """Two clients with different values share one server; each statement sees its own client's value."""
    pooler = pooled(default_pool_size=1)
    first, second = TRACKED[name]
    with pooler.raw(**{name: first}) as one, pooler.raw(**{name: second}) as two:
        for _ in range(3):
            assert one.value(f"show {name}") == first
            assert two.value(f"show {name}") == second
        assert one.parameters[name] == first and two.parameters[name] == second


@pytest.mark.parametrize("name", TRACKED)
def test_set_values_hold_on_a_shared_server(pooled, name):
    """The same for values set by SET: reported to the client that set them, kept for its next transactions."""
    pooler = pooled(default_pool_size=1)
    first, second = TRACKED[name]
    with pooler.raw() as one, pooler.raw() as two:
        one.query(f"set {name} = '{first}'")
        two.query(f"set {name} = '{second}'")
        for _ in range(3):
            assert one.value(f"show {name}") == first
            assert two.value(f"show {name}") == second
        assert one.parameters[name] == first and two.parameters[name] == second


def test_values_are_replayed_on_another_server(pooled):
    """A value set on one server is there when the client's next transaction runs on another."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as session, pooler.raw() as holder:
        session.query("set timezone = 'Asia/Tokyo'")
        first = session.value("select pg_backend_pid()")
        holder.query("begin")
        assert session.query("select pg_backend_pid(), current_setting('timezone')").rows[0][1] == "Asia/Tokyo"
        assert session.value("select pg_backend_pid()") != first


def test_a_rolled_back_set_is_forgotten(pooled):
    """SET inside a transaction that is rolled back, and SET LOCAL, leave the value as it was, here and on other servers."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw(TimeZone="Asia/Tokyo") as session, pooler.raw() as holder:
        for statement, end in (("set timezone = 'UTC'", "rollback"), ("set local timezone = 'UTC'", "commit")):
            session.query("begin")
            session.query(statement)
            assert session.value("show timezone") == "UTC"
            session.query(end)
            assert session.parameters["TimeZone"] == "Asia/Tokyo"
            holder.query("begin")
            assert session.value("show timezone") == "Asia/Tokyo"
            holder.query("rollback")


def test_values_that_need_quoting(pooled):
    """application_name with quotes, backslashes and commas reaches both servers as it is."""
    pooler = pooled(default_pool_size=1)
    names = ["it's", 'say "hi"', "back\\slash", "a, b; c", "$1 $$ %s", "x" * 63, " padded "]
    with pooler.raw(application_name="other") as other:
        for name in names:
            with pooler.raw(application_name=name) as session:
                assert other.value("show application_name") == "other"
                assert session.value("show application_name") == name


@pytest.mark.needs("any parameter value kept")
def test_an_empty_value_is_a_value(pooled):
    """A client without an application_name does not wear the name of the client before it."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw(application_name="other") as other, pooler.raw(application_name="") as empty, pooler.raw() as unset:
        for _ in range(2):
            assert other.value("show application_name") == "other"
            assert empty.value("show application_name") == ""
            assert other.value("show application_name") == "other"
            assert unset.value("show application_name") == ""


@pytest.mark.needs("any parameter value kept")
def test_application_name_is_cut_as_postgres_cuts_it(pooled, pg):
    """A name longer than 63 bytes: the client sees what PostgreSQL made of it, or what it sent, and it is shown in pg_stat_activity."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw(application_name="n" * 200) as session, pooler.raw() as other:
        other.query("select 1")
        assert session.value("show application_name") == "n" * 63
        assert "n" * 63 in [b[1] for b in pg.backends("app")]


@pytest.mark.needs("tracked extra parameters")
def test_track_extra_parameters(pooled):
    """IntervalStyle is tracked by default, other parameters by `track_extra_parameters` if PostgreSQL reports them."""
    pooler = pooled(default_pool_size=1, track_extra_parameters="IntervalStyle, default_transaction_read_only")
    with pooler.raw(IntervalStyle="iso_8601", default_transaction_read_only="on") as one, pooler.raw() as two:
        for _ in range(2):
            assert one.value("show intervalstyle") == "iso_8601"
            assert one.value("show default_transaction_read_only") == "on"
            assert two.value("show intervalstyle") == "postgres"
            assert two.value("show default_transaction_read_only") == "off"


@pytest.mark.needs("tracked extra parameters")
def test_search_path_is_tracked_when_postgres_reports_it(poolers, pg18):
    """PostgreSQL 18 reports search_path: with `track_extra_parameters = search_path` each client keeps its own."""
    pooler = poolers({"app": pg18.at()}, default_pool_size=1, track_extra_parameters="search_path")
    with pooler.raw(search_path="pg_catalog") as one, pooler.raw() as two:
        two.query("set search_path = '$user', 'a b', public")
        for _ in range(2):
            assert one.value("show search_path") == "pg_catalog"
            assert two.value("show search_path") == '"$user", "a b", public'


def test_many_clients_switch_at_random(pooled):
    """Fifteen clients with values of their own, changed at random, on two servers: each always sees its own."""
    pooler = pooled(default_pool_size=2)
    faults = []

    def work(who):
        choice = random.Random(who)
        with pooler.raw(application_name=f"client {who}", TimeZone="UTC") as session:
            zone = "UTC"
            for _ in range(60):
                if choice.random() < 0.3:
                    zone = choice.choice(["UTC", "Asia/Tokyo", "Europe/Berlin", "America/New_York"])
                    session.query(f"set timezone = '{zone}'")
                session.send(group("", "select current_setting('timezone'), current_setting('application_name')"))
                answer = session.until("Z")
                if answer.rows != [[zone, f"client {who}"]] or session.parameters["TimeZone"] != zone:
                    faults.append((who, zone, answer.rows))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]


def test_encodings_do_not_mix(pooled):
    """A LATIN1 client and a UTF8 client on one server: each gets text in its own encoding."""
    pooler = pooled(default_pool_size=1)
    with pooler.connect(client_encoding="latin1") as one, pooler.connect(client_encoding="utf8") as two:
        for _ in range(3):
            assert one.execute("select 'é'").fetchone() == ("é",)
            assert two.execute("select '☃é'").fetchone() == ("☃é",)


def test_database_line_sets_parameters(pooled, pg):
    """client_encoding, datestyle and timezone of a [databases] line are the servers' start values."""
    pooler = pooled(databases={"zoned": pg.at("app", timezone="Asia/Tokyo", datestyle="German")})
    with pooler.raw("zoned") as session:
        assert session.value("show timezone") == "Asia/Tokyo"
        assert session.value("show datestyle").startswith("German")


def refused(pooler, **more):
    with Raw(pooler.address) as session:
        session.send(startup({"user": "alice", "database": "app", **more}))
        return session.until_closed().errors[-1]


def test_unsupported_startup_parameter(pooled):
    """If sessions are not kept, a startup parameter that cannot be kept true is refused by name."""
    pooler = pooled(**AS_PGBOUNCER)
    error = refused(pooler, extra_float_digits="3")
    assert error["S"] == "FATAL" and error["M"] == "unsupported startup parameter: extra_float_digits"


@pytest.mark.needs("options in the startup packet")
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_an_unknown_startup_parameter(pooled, mode):
    """What PostgreSQL does not know either is refused by name, alone and in `options`; the pool goes on."""
    pooler = pooled(pool_mode=mode)
    with pooler.raw() as session:
        error = refused(pooler, nonsense="1")
        assert (error["C"], error["D"]) == ("42704", "unsupported startup parameter: nonsense")
        assert "nonsense" in refused(pooler, options="-c nonsense=1")["M"]
        assert session.value("select 1") == "1"


def test_ignored_startup_parameters(pooled):
    """`ignore_startup_parameters` lets named ones through unseen, and only those."""
    pooler = pooled(ignore_startup_parameters="extra_float_digits, geqo", **AS_PGBOUNCER)
    with pooler.raw(extra_float_digits="3", geqo="off") as session:
        assert session.value("show geqo") == "on"
    assert "work_mem" in refused(pooler, work_mem="1MB")["M"]


@pytest.mark.needs("options in the startup packet")
def test_options_in_the_startup_packet(pooled):
    """`options` may carry tracked parameters in PostgreSQL's notation; other parameters are refused unless `options` is ignored."""
    pooler = pooled(default_pool_size=1, **AS_PGBOUNCER)
    with pooler.raw(options="-c TimeZone=Asia/Tokyo --application-name=from\\ options -cDateStyle=German") as session, pooler.raw() as other:
        other.query("select 1")
        assert session.value("show timezone") == "Asia/Tokyo"
        assert session.value("show application_name") == "from options"
        assert session.value("show datestyle").startswith("German")
    assert "unsupported startup parameter in options: geqo" in refused(pooler, options="-c geqo=off")["M"]
    assert refused(pooler, options="-X nonsense")["S"] == "FATAL"
    lenient = pooled(ignore_startup_parameters="options", **AS_PGBOUNCER)
    with lenient.raw(options="-c geqo=off -c TimeZone=Asia/Tokyo") as session:
        assert session.value("show timezone") == "Asia/Tokyo"


def test_missing_user_and_missing_database(pooled):
    """No user: refused. No database: the one of the user's name."""
    pooler = pooled()
    with Raw(pooler.address) as session:
        session.send(startup({"database": "app"}))
        assert session.until_closed().errors[-1]["S"] == "FATAL"
    with Raw(pooler.address) as session:
        session.send(startup({"user": "alice"}))
        assert "alice" in session.until_closed().errors[-1]["M"]


def test_parameter_names_in_any_case(pooled):
    """Drivers write TIMEZONE, DateStyle and Application_Name as they like."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw(TIMEZONE="Asia/Tokyo", DATESTYLE="German", Client_Encoding="utf-8") as session, pooler.raw() as other:
        other.query("select 1")
        assert session.value("show timezone") == "Asia/Tokyo"
        assert session.value("show datestyle").startswith("German")


def test_application_name_add_host(pooled):
    """`application_name_add_host` appends the client's address at login."""
    pooler = pooled(application_name_add_host=1)
    with pooler.raw(application_name="mine") as session:
        port = session.socket.getsockname()[1]
        assert session.value("show application_name") == f"mine - 127.0.0.1:{port}"
    with pooler.raw() as session:
        port = session.socket.getsockname()[1]
        assert session.value("show application_name") == f"app - 127.0.0.1:{port}"


def test_an_invalid_value_is_an_error(pooled):
    """A tracked parameter with a value PostgreSQL refuses ends that client only."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as other:
        assert other.value("select 1") == "1"
        with pytest.raises((Closed, AssertionError)), pooler.raw(TimeZone="Not/AZone") as session:
            session.value("select 1")
        assert other.value("select 2") == "2"
        with pooler.raw() as another:
            assert another.value("select 3") == "3"


def test_reset_all_and_discard_all(pooled):
    """RESET ALL and DISCARD ALL by a client bring back start values, and the client is told."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw(application_name="start") as session, pooler.raw(application_name="other") as other:
        session.query("set datestyle = 'German'")
        other.query("select 1")
        session.query("reset all")
        shown = session.value("show datestyle")
        assert session.parameters["DateStyle"] == shown
        other.query("select 1")
        assert session.value("show datestyle") == shown


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_reset_that_fails_resets_nothing(pooled, mode):
    """What the client set stays, also where a RESET or DISCARD of its startup value failed or was cancelled; one that succeeds goes back to it."""
    pooler = pooled(pool_mode=mode, default_pool_size=2)
    with pooler.raw(options="-c work_mem=5MB") as session, pooler.raw() as other:
        session.query("set work_mem = '7MB'")
        assert session.query("reset work_mem; select 1/0").error["C"] == "22012"
        assert session.value("show work_mem") == "7MB"
        other.query("select 1")
        session.query("begin")
        assert session.query("reset all; select 1/0").error["C"] == "22012"
        session.query("rollback")
        assert session.value("show work_mem") == "7MB"
        assert session.query("select 1; discard all").error["C"] == "25001"
        assert session.value("show work_mem") == "7MB"
        session.send(query("reset work_mem"), query("show work_mem"))
        session.until("Z")
        assert session.until("Z").rows == [["5MB"]]
        session.query("set work_mem = '8MB'")
        session.query("discard all")
        assert session.value("show work_mem") == "5MB"
        assert other.value("show work_mem") == "4MB"


def test_notifications_in_session_mode(pooled):
    """LISTEN in session pooling: notifications come between the client's statements, and while it is idle."""
    pooler = pooled(pool_mode="session")
    with pooler.raw() as listener, pooler.raw() as speaker:
        listener.query("listen news")
        speaker.query("notify news, 'one'")
        got = listener.until("A").messages[-1]
        assert got.body[4:] == b"news\0one\0"
        speaker.query("notify news, 'two'")
        speaker.query("notify news, 'three'")
        answer = listener.query("select 1")
        payloads = [m.body[4:] for m in answer.of("A")]
        while len(payloads) < 2:
            payloads.append(listener.until("A").messages[-1].body[4:])
        assert [p.split(b"\0")[1] for p in payloads] == [b"two", b"three"]
        listener.query("notify news, 'to myself'")


def test_a_changed_server_setting_is_reported(pooled, pg):
    """A reload of PostgreSQL that changes a reported setting reaches a session-mode client, once."""
    pooler = pooled(pool_mode="session")
    with pooler.raw() as session:
        session.query("select 1")
        with pg.configured(timezone="Asia/Tokyo"):
            eventually(lambda: session.query("select 1") and session.parameters["TimeZone"] == "Asia/Tokyo", "the change is reported")


def test_empty_pipeline_between_value_changes(pooled):
    """A SET and its effect in one pipeline, other clients in between."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw(TimeZone="UTC") as two:
        for zone in ("Asia/Tokyo", "Europe/Berlin"):
            one.send(query(f"set timezone = '{zone}'") + query("show timezone"))
            two.send(query("show timezone"))
            one.until("Z")
            assert one.until("Z").rows == [[zone]]
            assert two.until("Z").rows == [["UTC"]]


def test_psycopg_reads_true_parameters(pooled):
    """The driver's own view of its parameters follows SET on a shared server."""
    pooler = pooled(default_pool_size=1)
    with pooler.connect() as one, pooler.connect() as two:
        one.execute("set timezone = 'Asia/Tokyo'")
        two.execute("set timezone = 'Europe/Berlin'")
        assert str(one.execute("select now()").fetchone()[0].tzinfo) == "Asia/Tokyo"
        assert one.info.timezone.key == "Asia/Tokyo"
        assert two.info.timezone.key == "Europe/Berlin"

"""Session continuity: the same scripts give the same output directly and through transaction pooling, with other clients between."""

import psycopg
import pytest

from harness.machine import eventually
from harness.pooler import kind
from harness.scripts import Others, run_psql
from harness.wire import FLUSH, SYNC, Closed, Raw, bind, describe, execute, parse, startup

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

SCRIPTS = {
    "settings": r"""
show search_path; set search_path = a, "B c", public; show search_path;
begin; set work_mem = '7MB'; savepoint s; set work_mem = '8MB'; set role bob; rollback to s; commit;
show work_mem; select current_user, session_user;
begin; set work_mem = '9MB'; rollback; show work_mem;
begin; set work_mem = '10MB'; select 1/0; commit; show work_mem;
set session work_mem = '11MB'\; select 1/0; show work_mem;
set statement_timeout = '10s'; set local statement_timeout = 1; show statement_timeout;
set session characteristics as transaction isolation level serializable; show transaction_isolation;
set search_path = 'tricky, "quotes"" and \', ''; show search_path;
set names 'LATIN1'; show client_encoding; set application_name = 'Aa'; show application_name;
""",
    "calls": r"""
select set_config('pgweir_test.var', 'it''s \ "x"', false); select current_setting('pgweir_test.var');
prepare s as select set_config('pgweir_test.' || $1, $2, false); execute s('var', 'other'); show pgweir_test.var;
do $$ begin perform set_config('statement_timeout', '55s', false); set pgweir_test.deep = 'x'; end $$;
show statement_timeout; show pgweir_test.deep;
begin; select set_config('pgweir_test.var', 'gone', false); rollback; show pgweir_test.var;
update pg_settings set setting = '9999' where name = 'work_mem'; show work_mem;
""",
    "startup and reset": r"""
show pgweir_test.own; show work_mem; show intervalstyle; show datestyle; show timezone;
set work_mem = '9MB'; reset work_mem; show work_mem;
set timezone = 'Europe/Paris'; reset timezone; show timezone; set time zone 'UTC'; set time zone local; show timezone;
set datestyle = 'German'; select '2020-01-02'::date; set datestyle to default; select '2020-01-02'::date;
set pgweir_test.own = 'mine'; begin; reset pgweir_test.own; rollback; show pgweir_test.own;
begin; reset datestyle; show datestyle; select 1/0; rollback; show datestyle;
begin; set local datestyle to default; show datestyle; commit; show datestyle;
set intervalstyle = iso_8601; reset all; show intervalstyle; show work_mem; show search_path;
set work_mem = '1MB'; set search_path = x; discard all; show work_mem; show search_path; select '1 day 2 hours'::interval;
""",
    "roles": r"""
set role bob; select current_user, session_user; reset role; select current_user;
set role bob; set work_mem = '5MB'; select current_user; set role none; show work_mem; select current_user;
set session authorization alice; select session_user; set role nobody_there; select current_user;
begin; set role bob; rollback; select current_user; begin; set local role bob; select current_user; commit; select current_user;
""",
    "temporary": r"""
create temp table t (a int); insert into t values (1); select * from t; begin; insert into t values (2); rollback; select * from t;
create temp table g (a int) on commit drop; select * from g; begin; create temp table h (a int) on commit drop; select * from h; commit; select * from h;
create temp table d (a int) on commit delete rows; insert into d values (1); select * from d;
drop table t, d; select * from t; create temp view v as select 1 as one; select * from v; drop view v;
create function pg_temp.f() returns int language sql as 'select 7'; select pg_temp.f();
select 5 as x into temp u; select * from u; discard temp; select * from u;
set search_path = pg_temp, public; create table w (a int); insert into w values (3); select * from w;
""",
    "cursors and locks": r"""
begin; declare c cursor with hold for select generate_series(1, 9); fetch 2 from c; commit; fetch 2 from c; select name from pg_cursors; close c; fetch 1 from c;
select pg_advisory_lock(4711); select pg_advisory_lock(4711);
select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid();
select pg_advisory_unlock(4711); select pg_advisory_unlock(4711); select pg_advisory_unlock(4711);
select pg_try_advisory_lock(1, 2); select pg_advisory_unlock_all();
select setseed(0.5); select random() < 2; load 'plpgsql'; select 1;
""",
    "prepared": r"""
prepare p (int) as select $1 + 1; execute p(41); execute p(1); select name, statement from pg_prepared_statements where from_sql;
begin; prepare q as select 'q'; rollback; execute q; deallocate q; execute q; prepare p as select 2;
create temp table z as execute p(3); select * from z; explain (costs off) execute p(1); deallocate all; execute p(1);
""",
    "sequences": r"""
create temp sequence s; select nextval('s'), currval('s'), lastval(); select currval('s'); drop sequence s;
""",
}


def give_role(server):
    """A role that alice may become."""
    with psycopg.connect(host="127.0.0.1", port=server.port, user="postgres", dbname="app", autocommit=True) as session:
        session.execute("do $$ begin create role bob; exception when duplicate_object then null; end $$")
        session.execute("grant bob to alice")


def compare(pooler, server):
    """Every script, each on a connection of its own, directly and pooled while other clients change their sessions on the same servers."""
    direct = {name: run_psql("127.0.0.1", server.port, script) for name, script in SCRIPTS.items()}
    with Others(pooler, 4):
        for name, script in SCRIPTS.items():
            assert run_psql("127.0.0.1", pooler.port, script) == direct[name], name


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_scripts_give_the_same_output(pooled, pg, mode):
    """Directly, and through each mode."""
    give_role(pg)
    compare(pooled(default_pool_size=6 if mode == "session" else 3, pool_mode=mode), pg)


def test_scripts_give_the_same_output_on_other_versions(poolers, pg_other):
    """What a session holds is asked of each version's catalog, as an ordinary role."""
    give_role(pg_other)
    pooler = poolers({"app": pg_other.at("app")}, default_pool_size=3)
    compare(pooler, pg_other)
    assert "does not tell" not in pooler.output()


def test_what_postgresql_refuses_at_login_is_refused(pooled, pg):
    """A startup parameter that PostgreSQL does not take ends the login with PostgreSQL's own words."""
    pooler = pooled()
    for name, value in [("geqo", "perhaps"), ("no_such_parameter", "1"), ("TimeZone", "Mars/Olympus"), ("log_statement", "all")]:
        errors = []
        for port in (pg.port, pooler.port):
            with Raw(("127.0.0.1", port)) as session:
                session.send(startup({"user": "alice", "database": "app", name: value}))
                errors.append(session.until_closed().errors[-1])
        direct, told = ({field: error[field] for field in "SCM"} for error in errors)
        assert told == direct, name


def test_listeners_are_told_between_their_statements(pooled):
    """A listening client gets each notification, in order, also while it is idle."""
    pooler = pooled(default_pool_size=2)
    connect = dict(host="127.0.0.1", port=pooler.port, user="alice", dbname="app", autocommit=True)
    with psycopg.connect(**connect) as listener, psycopg.connect(**connect) as speaker:
        listener.execute("listen news")
        for number in range(20):
            speaker.execute(f"notify news, '{number}'")
        got = [note.payload for note in listener.notifies(timeout=10, stop_after=20)]
        assert got == [str(number) for number in range(20)]
        assert listener.execute("select pg_listening_channels()").fetchall() == [("news",)]
        listener.execute("unlisten *")
        assert speaker.execute("select pg_listening_channels()").fetchall() == []


def test_pins_are_shown_and_end(pooled):
    """SHOW CLIENTS, SERVERS and POOLS say which client keeps a server and why; with the reason gone, no client does."""
    pooler = pooled(default_pool_size=2)

    def pinned():
        return sum(int(row["sv_pinned"]) for row in pooler.show("pools_extended"))

    def reasons():
        return [row["pinned"] for topic in ("clients_extended", "servers_extended") for row in pooler.show(topic) if row["database"] == "app"]

    with pooler.raw() as session:
        session.query("create temp table t (a int)")
        session.query("select pg_advisory_lock(1)")
        both = ["temporary objects, advisory locks"] * 2
        eventually(lambda: pinned() == 1 and reasons() == both, "the pin and its reasons are shown")
        session.query("drop table t")
        session.query("select pg_advisory_unlock(1)")
        eventually(lambda: pinned() == 0, "the pin is gone")


def test_a_client_that_leaves_takes_its_locks_along(pooled):
    """Locks and temporary tables end with the client, not with the server."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        session.query("select pg_advisory_lock(77)")
        session.query("create temp table t (a int)")
        session.query("set search_path = nowhere")
    with pooler.raw() as other:
        assert other.value("select pg_try_advisory_lock(77)") == "t"
        assert other.value("select count(*) from pg_class where relname = 't' and relnamespace = pg_my_temp_schema()") == "0"
        assert other.value("show search_path") == '"$user", public'


def test_a_hand_made_pin(pooled):
    """`SET pgweir.pin = on` keeps the server for state that the pooler cannot see."""
    pooler = pooled(default_pool_size=2)
    with pooler.raw() as session, pooler.raw() as other:
        session.query("set pgweir.pin = on")
        pid = session.value("select pg_backend_pid()")
        for _ in range(3):
            assert other.value("select pg_backend_pid()") != pid
            assert session.value("select pg_backend_pid()") == pid


def test_statements_prepared_by_sql_follow_their_client(pooled):
    """Two clients with a statement of the same name take turns on one server; each executes its own, and sees no other."""
    pooler = pooled(default_pool_size=1)
    listed = "select string_agg(name, ',' order by name) from pg_prepared_statements where from_sql"
    with pooler.raw() as one, pooler.raw() as two:
        one.query("prepare p as select 'one'")
        two.query("prepare p as select 'two'")
        two.query("prepare q (int) as select $1 + 1")
        for _ in range(5):
            assert one.value("execute p") == "one"
            assert two.value("execute p") == "two"
            assert two.value("execute q(41)") == "42"
            assert one.value(listed) == "p"
            assert two.value(listed) == "p,q"
        one.query("deallocate p")
        assert two.value("execute p") == "two"
        assert one.query("execute p").error["C"] == "26000"
        assert sum(int(row["sv_pinned"]) for row in pooler.show("pools_extended")) == 0


def test_the_unnamed_statement_lasts_between_groups(pooled):
    """Parse in one group, Bind in a later one, with other clients on the same server between (libpq's PQprepare without a name)."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        for session, text in ((one, "select 'one'"), (two, "select 'two'")):
            session.send(parse("", text), describe("S", ""), SYNC)
            session.until()
        for session, value in ((one, "one"), (two, "two"), (one, "one")):
            session.send(bind("", ""), execute(), SYNC)
            assert session.until().rows == [[value]]


def test_a_session_that_cannot_be_restored_ends_its_client_alone(pooled, pg):
    """A role that is gone: the client learns it in PostgreSQL's words, the other client of the same server does not."""
    pooler = pooled(default_pool_size=1)
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as admin:
        admin.execute("create role short_lived")
        admin.execute("grant short_lived to alice")
        with pooler.raw() as one, pooler.raw() as two:
            one.query("set role short_lived")
            assert two.value("select current_user") == "alice"
            admin.execute("drop role short_lived")
            with pytest.raises(Closed) as end:
                one.query("select 1")
            told = end.value.error
            assert told["S"] == "FATAL" and told["C"] == "22023" and "short_lived" in told["M"], told
            assert two.value("select current_user") == "alice"


def test_two_clients_set_the_same_parameter_in_turn(pooled):
    """A custom parameter, set to another value by each of two clients on one server, again and again."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        for turn in range(300):
            for session, name in ((one, "one"), (two, "two")):
                session.query(f"set app.who = '{name}{turn % 7}'")
            assert one.value("show app.who") == f"one{turn % 7}"
            assert two.value("show app.who") == f"two{turn % 7}"


@pytest.mark.parametrize("setting", ["log_statement = 'all'", "port = 1", "session_replication_role = replica", "lc_collate = 'C'"])
def test_a_set_that_was_refused_changes_no_session(pooled, setting):
    """The value of what could not be set is no part of any client's session."""
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as one, pooler.raw() as two:
        assert one.query(f"set {setting}").error["C"] in ("42501", "55P02")
        assert two.value("select 2") == "2"
        one.send(parse("", f"set {setting}") + bind("", "") + execute() + SYNC)
        assert one.until().error is not None
        assert two.value("select 2") == "2"
        assert one.value("select 1") == "1"


def test_reset_answered_for_a_flush(pooled, pg):
    """The Sync that ends the group comes later than the answers; what was started with comes back behind it."""
    pooler = pooled(default_pool_size=1)
    for statement in ("reset all", "set work_mem to default", "discard all"):
        with pooler.raw(work_mem="5MB") as one, pooler.raw() as two:
            one.query("set work_mem = '6MB'")
            one.send(parse("", statement) + bind("", "") + execute() + FLUSH)
            one.until("C")
            one.send(SYNC)
            assert one.until().tags == "Z"
            assert one.value("show work_mem") == "5MB"
            assert two.value("show work_mem") == "4MB"


@pytest.mark.parametrize("what", ["plans", "temp", "sequences"])
def test_discard_of_something_else_resets_nothing(pooled, what):
    """Only DISCARD ALL goes back to what the client started with."""
    with pooled(default_pool_size=1).raw(TimeZone="Asia/Tokyo", work_mem="5MB") as one:
        one.query("set timezone = 'UTC'; set work_mem = '6MB'")
        one.query(f"discard {what}")
        assert (one.value("show timezone"), one.value("show work_mem")) == ("UTC", "6MB")


def test_reset_all_leaves_the_role(pooled, pg):
    """As in PostgreSQL: RESET ALL is about neither role nor session user."""
    give_role(pg)
    with pooled(default_pool_size=1).raw(role="bob") as one:
        one.query("set role alice")
        one.query("reset all")
        assert one.value("select current_user") == "alice"
        one.query("discard all")
        assert one.value("select current_user") == "bob"


@pytest.mark.parametrize("sets", ["set session authorization passing", "set role passing"])
def test_a_role_that_is_made_again(pooled, pg, sets):
    """A role's name stands for another role after DROP and CREATE. A server whose session has the old one serves no client."""
    pg.sql("create role passing")
    pooler = pooled({"app": f"host=127.0.0.1 port={pg.port} dbname=app user=postgres"}, default_pool_size=2)
    try:
        holder, one, two = (pooler.raw() for _ in range(3))
        holder.query(sets)
        holder.query("begin")
        for text in [sets, "select 1", "reset role", "reset session authorization", "drop role passing", "create role passing"]:
            assert not one.query(text).errors, text
        for client in (one, two):
            assert not client.query(sets).errors
        holder.query("rollback")
        for client in (one, two):
            client.query("begin")
            answer = client.query("select current_user")
            assert not answer.errors and answer.rows == [["passing"]], answer
    finally:
        pg.sql("drop role passing")


@pytest.fixture
def tenants(pg):
    """A table whose policy goes by a setting that only a routine names."""
    pg.sql("drop table if exists tenants")
    pg.sql("create table tenants (tenant text)")
    pg.sql("insert into tenants values ('one'), ('two'), ('begins')")
    pg.sql("alter table tenants enable row level security")
    pg.sql("create policy own on tenants using (tenant = current_setting('shop.tenant', true))")
    pg.sql("grant select on tenants to public")
    pg.sql("create or replace procedure enter(text) language plpgsql as 'begin perform set_config(''shop.tenant'', $1, false); end'")
    yield
    pg.sql("alter role alice reset shop.tenant")


@pytest.mark.parametrize("begins", [[], ["begins"]], ids=["with nothing", "with what the role has"])
def test_a_setting_that_only_a_routine_names(pooled, pg, tenants, begins):
    """What a procedure sets is its caller's: no other client works under it, also where each new connection begins with a value."""
    for value in begins:
        pg.sql(f"alter role alice set shop.tenant = '{value}'")
    pooler = pooled(default_pool_size=1, session_audit_sample=1)
    with pooler.raw() as one, pooler.raw() as two, pooler.raw() as three:

        def seen():
            return [[row[0] for row in client.query("select tenant from tenants").rows] for client in (one, two, three)]

        one.query("call enter('one')")
        assert seen() == [["one"], begins, begins]
        two.query("call enter('two')")
        assert seen() == [["one"], ["two"], begins]
        one.query("reset shop.tenant")
        assert seen() == [begins, ["two"], begins]
    assert "not what it should be" not in pooler.log()

"""`auth_query`: users that no file knows, looked up in PostgreSQL at each login.

`poolauth` asks; it may read pg_authid through a function of the superuser's, as the documentation of PgBouncer has it.
"""

import psycopg
import pytest

from harness.cluster import PASSWORDS
from harness.wire import Closed, Raw, md5_secret, scram_secret

LISTED = {"poolauth": "pw-of-poolauth", "admin": "pw-of-admin"}
QUERY = "select name, secret from lookup.user_lookup($1)"

MAKE = """
drop schema if exists lookup cascade;
create schema lookup;
grant usage on schema lookup to poolauth;
create table lookup.asked (name text, search_path text, application_name text, datestyle text);
create function lookup.user_lookup(in i text, out name text, out secret text) returns setof record
language plpgsql security definer set search_path = pg_catalog as $$
begin
    return query select rolname::text, case when rolvaliduntil < now() then null else rolpassword end
        from pg_authid where rolname = i and rolcanlogin;
end $$;
create function lookup.spy(in i text, out name text, out secret text) returns setof record
language plpgsql security definer as $$
begin
    insert into lookup.asked values
        (i, current_setting('search_path'), current_setting('application_name'), current_setting('datestyle'));
    return query select * from lookup.user_lookup(i);
end $$;
"""


@pytest.fixture
def asking(pooled, pg):
    """A function that starts a pooler whose user list has only the user that asks."""
    for database in ("app", "app2"):
        with pg.connect(database) as connection:
            connection.execute(MAKE)

    def start(**options):
        given = {"auth_user": "poolauth", "auth_query": QUERY, "userlist": LISTED, "auth_type": "scram-sha-256"} | options
        return pooled(**given)

    return start


def refused(pooler, user, password, database="app"):
    """The error that a login ends with."""
    with pytest.raises(Closed) as closed, Raw(pooler.address) as session:
        session.login(user, database, password)
    return closed.value.error


@pytest.mark.parametrize("method", [pytest.param("plain", marks=pytest.mark.needs("passwords in clear are passed on")), "md5", "scram-sha-256"])
@pytest.mark.parametrize("user", ["u_scram", "u_md5"])
def test_users_that_no_file_knows(asking, user, method):
    """The secret comes from PostgreSQL, and what the login taught serves to log in there: SCRAM passes through, md5 is answered."""
    if (user, method) == ("u_md5", "scram-sha-256"):
        pytest.skip("an md5 secret cannot answer SCRAM")
    pooler = asking(auth_type=method)
    with pooler.raw(user=user) as session:
        assert session.value("select current_user") == user
    error = refused(pooler, user, "wrong")
    assert error["M"] in ("password authentication failed", "SASL authentication failed")


def test_trust_knows_whom_the_query_finds(asking):
    """trust: every user that PostgreSQL knows may log in."""
    pooler = asking(auth_type="trust")
    with pooler.raw(user="alice", password=None) as session:
        assert session.value("select current_user") == "alice"
    error = refused(pooler, "nobody_at_all", "x")
    assert "no such user" in error["M"] + error.get("D", "")


@pytest.mark.parametrize("method", ["plain", "md5", "scram-sha-256"])
@pytest.mark.needs("unknown users of auth_query are not told")
def test_an_unknown_user_looks_like_a_wrong_password(asking, method):
    """The same requests and the same words, whether PostgreSQL knows the user or not: no login falls through to the user that asks."""
    pooler = asking(auth_type=method)

    def conversation(user):
        with pytest.raises(Closed) as closed, Raw(pooler.address) as session:
            session.login(user, "app", "pw-of-poolauth")
        error = closed.value.error
        return [m.tag for m in closed.value.seen], error["M"], error.get("D"), error["C"]

    known = "u_md5" if method == "md5" else "u_scram"
    assert conversation(known) == conversation("nobody_at_all")
    pooler.logged("no such user: nobody_at_all")


def test_a_secret_that_has_expired(asking, pg):
    """VALID UNTIL in the past: the default auth_query, and ours, give NULL, which never matches."""
    pg.sql("alter role u_gone password 'pw-of-u_gone' valid until '2001-01-01'")
    try:
        pooler = asking()
        assert "authentication failed" in refused(pooler, "u_gone", "pw-of-u_gone")["M"]
        pg.sql("alter role u_gone valid until '2101-01-01'")
        with pooler.raw(user="u_gone") as session:
            assert session.value("select current_user") == "u_gone"
    finally:
        pg.sql("alter role u_gone valid until 'infinity'")


def test_the_default_query(pooled):
    """Without `auth_query` pg_authid is read, which a superuser may."""
    pooler = pooled(auth_user="postgres", userlist={"postgres": "", "admin": "pw-of-admin"}, auth_type="scram-sha-256")
    with pooler.raw(user="u_scram") as session:
        assert session.value("select current_user") == "u_scram"


def test_a_changed_password_counts_at_the_next_login(asking, pg):
    """Nothing is remembered from login to login."""
    pooler = asking()
    pg.sql("alter role u_gone password 'first'")
    try:
        with pooler.raw(user="u_gone", password="first") as session:
            assert session.value("select 1") == "1"
        pg.sql("alter role u_gone password 'second'")
        assert "authentication failed" in refused(pooler, "u_gone", "first")["M"]
        with pooler.raw(user="u_gone", password="second") as session:
            assert session.value("select 1") == "1"
    finally:
        pg.sql("alter role u_gone password 'pw-of-u_gone'")


@pytest.mark.needs("auth_dbname")
def test_another_database_is_asked(asking, pg):
    """auth_dbname, of all and of one database; auth_user and auth_query of a database go before the global ones."""
    pooler = asking(
        auth_dbname="app2", auth_query="select nonsense",
        databases={"one": pg.at("app", auth_query=QUERY, auth_user="poolauth"), "two": pg.at("app", auth_query=QUERY, auth_dbname="app")},
    )  # fmt: skip
    for database, asked in (("one", "app2"), ("two", "app")):
        with pooler.raw(database, "u_scram") as session:
            assert session.value("select current_user") == "u_scram"
        assert pooler.pool(asked, "poolauth")["sv_idle"] + pooler.pool(asked, "poolauth")["sv_used"] == 1
    assert refused(pooler, "u_scram", PASSWORDS["u_scram"])["M"] == "bouncer config error"


@pytest.mark.needs("auth_query of a disabled database refused")
def test_a_disabled_database_is_not_asked(asking, pg):
    """DISABLE of the database that answers auth_query: users that no file knows are refused at once, whatever their password."""
    pooler = asking(auth_dbname="app2")
    with pooler.raw("app", "u_scram") as session:
        assert session.value("select 1") == "1"
    pooler.admin("DISABLE app2")
    for password in (PASSWORDS["u_scram"], "wrong"):
        assert refused(pooler, "u_scram", password)["M"] == 'authentication database "app2" is disabled'
    with pooler.raw("app", "poolauth") as listed:
        assert listed.value("select 1") == "1"
    pooler.admin("ENABLE app2")
    with pooler.raw("app", "u_scram") as session:
        assert session.value("select 1") == "1"


@pytest.mark.needs("auth_dbname")
def test_a_login_does_not_wait_forever_for_its_secret(asking):
    """query_wait_timeout holds for a login whose secret is asked for in a database that is paused."""
    pooler = asking(auth_dbname="app2", query_wait_timeout=1)
    pooler.admin("PAUSE app2")
    assert refused(pooler, "u_scram", PASSWORDS["u_scram"])["M"] == "query_wait_timeout"


@pytest.mark.needs("auth_dbname")
def test_a_database_that_cannot_be_asked(asking, pg):
    """An auth_dbname that is not configured is said in the log; the client learns that the fault is not its own."""
    pooler = asking(databases={"one": pg.at("app", auth_dbname="missing")})
    assert refused(pooler, "u_scram", PASSWORDS["u_scram"], "one")["M"] == "bouncer config error"
    pooler.logged('authentication database "missing" is not configured')


@pytest.mark.needs("nothing of a client reaches auth_query")
def test_the_server_that_is_asked_sees_the_name_alone(asking, pg):
    """What an unproven client puts into its startup packet changes nothing in the session that answers for it."""
    pg.sql("truncate lookup.asked", database="app")
    pooler = asking(auth_query="select name, secret from lookup.spy($1)", track_extra_parameters="search_path", ignore_startup_parameters="role")
    for _ in range(2):
        with Raw(pooler.address) as session:
            session.login(
                "u_scram", "app", PASSWORDS["u_scram"], application_name="evil", DateStyle="German", search_path="evil", role="postgres",
            )  # fmt: skip
        with pytest.raises(Closed), Raw(pooler.address) as session:
            session.login("o'; drop table kv; --", "app", "x", DateStyle="SQL", search_path="evil, public", application_name="evil")
    rows = pg.sql("select distinct search_path, application_name, datestyle from lookup.asked", database="app")
    assert len(rows) == 1 and "evil" not in "".join(rows[0]) and rows[0][2].startswith("ISO")
    assert pg.sql("select count(*) from lookup.asked where name = 'o''; drop table kv; --'", database="app")[0][0] == 2


def test_logins_wait_for_their_turn(asking, pg):
    """More logins than the asker's pool has servers: all get in."""
    pooler = asking(default_pool_size=2, max_client_conn=100)
    sessions = [pooler.raw(user="u_scram") for _ in range(20)]
    assert {session.value("select current_user") for session in sessions} == {"u_scram"}
    assert len(pg.backends(user="poolauth")) <= 2
    for session in sessions:
        session.hang_up()


@pytest.mark.needs("reasons of servers stay in the log")
def test_the_asker_is_refused(asking):
    """A wrong password of the user that asks is the administrator's affair: the log has it, clients hear nothing of it."""
    pooler = asking(userlist={"u_scram": "wrong", "admin": "pw-of-admin"}, auth_user="u_scram", server_login_retry=1)
    error = refused(pooler, "u_md5", "x")
    assert "u_scram" not in str(error)
    pooler.logged('server login failed: FATAL password authentication failed for user "u_scram"')


def test_a_query_that_fails(asking):
    """An error of the query, or a result of another form, is the administrator's fault, not a way in."""
    for query in ("select no_such_column($1)", "select $1::text", "select $1::text, 'x', 'y'", "select null::text, $1::text"):
        pooler = asking(auth_query=query, auth_type="plain")
        assert refused(pooler, "u_scram", "x")["M"] == "bouncer config error"


def test_users_of_the_list_are_not_looked_up(asking, pg):
    """The list goes first: its secret counts, whatever PostgreSQL has."""
    pooler = asking(userlist=LISTED | {"alice": "another"})
    assert "authentication failed" in refused(pooler, "alice", PASSWORDS["alice"])["M"]
    with pooler.raw(user="alice", password="another") as session:
        assert session.value("select current_user") == "alice"
    assert not pg.backends(user="poolauth")


@pytest.mark.parametrize("form", ["plain", "md5", "scram"])
def test_every_form_that_a_query_may_give(asking, pg, form):
    """A query may give passwords, md5 hashes or SCRAM secrets of its own making; a plain one serves SCRAM too."""
    secret = {"plain": "made up", "md5": md5_secret("alice", "made up"), "scram": scram_secret("made up")}[form]
    pooler = asking(auth_type="md5", auth_query=f"select $1::text, '{secret}'::text where $1 = 'alice'")
    with pooler.raw(user="alice", password="made up") as session:
        assert session.value("select current_user") == "alice"
    assert "authentication failed" in refused(pooler, "alice", "another")["M"]


def test_psql_logs_in(asking):
    """libpq, with a user that only PostgreSQL knows."""
    pooler = asking()
    with psycopg.connect(pooler.dsn(user="u_scram")) as connection:
        assert connection.execute("select current_user").fetchone() == ("u_scram",)

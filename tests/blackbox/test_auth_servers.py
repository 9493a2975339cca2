"""How the pooler logs in to PostgreSQL: each method, with each kind of secret it may have, and what clients see when it fails."""

import time

import pytest

from harness.cluster import PASSWORDS
from harness.machine import eventually
from harness.wire import Closed, md5_secret, query, scram_secret

ADMIN = {"admin": "pw-of-admin"}


def stored_secret(pg, user):
    """The secret as PostgreSQL stores it."""
    return pg.sql("select rolpassword from pg_authid where rolname = %s", (user,))[0][0]


@pytest.mark.parametrize("user", ["u_plain", "u_md5", "u_scram"])
def test_with_the_plain_password(pooled, user):
    """A plain password in the user list serves every method of the server."""
    pooler = pooled()
    with pooler.raw(user=user) as session:
        assert session.value("select current_user") == user


def test_md5_with_a_stored_md5_secret(pooled):
    """An md5 secret in the user list is enough for a server that asks for md5."""
    pooler = pooled(auth_type="md5", userlist={"u_md5": md5_secret("u_md5", PASSWORDS["u_md5"])} | ADMIN)
    with pooler.raw(user="u_md5") as session:
        assert session.value("select current_user") == "u_md5"


def test_scram_pass_through(pooled, pg):
    """The user list has PostgreSQL's own SCRAM secret: the client's proof opens the server, no plain password anywhere."""
    pooler = pooled(auth_type="scram-sha-256", userlist={"u_scram": stored_secret(pg, "u_scram")} | ADMIN)
    for _ in range(3):
        with pooler.raw(user="u_scram") as session:
            assert session.value("select current_user") == "u_scram"
    pooler.admin("RECONNECT")
    with pooler.raw(user="u_scram") as session:
        assert session.value("select current_user") == "u_scram"


def test_scram_pass_through_after_a_wrong_password(pooled, pg):
    """A failed login leaves nothing behind that could open or spoil the pass-through."""
    pooler = pooled(auth_type="scram-sha-256", userlist={"u_scram": stored_secret(pg, "u_scram")} | ADMIN)
    with pytest.raises(Closed):
        pooler.raw(user="u_scram", password="wrong")
    assert not pg.backends(user="u_scram")
    with pooler.raw(user="u_scram") as session:
        assert session.value("select 1") == "1"


@pytest.mark.parametrize(
    "user, secret", [("u_scram", md5_secret("u_scram", PASSWORDS["u_scram"])), ("u_plain", md5_secret("u_plain", PASSWORDS["u_plain"]))]
)
def test_a_secret_that_does_not_serve(pooled, user, secret):
    """An md5 secret cannot answer SCRAM or cleartext: the client is told so."""
    pooler = pooled(auth_type="trust", userlist={user: secret} | ADMIN, query_wait_timeout=5, client_login_timeout=5)
    with pytest.raises(Closed) as refused, pooler.raw(user=user) as session:
        session.query("select 1")
    assert refused.value.error["S"] == "FATAL"
    words = refused.value.error["M"] + pooler.log()
    assert "wrong password type" in words or "password authentication failed for user" in words


@pytest.mark.parametrize("user", ["u_plain", "u_md5", "u_scram"])
def test_the_wrong_password_for_the_server(pooled, user):
    """The server refuses: the waiting client gets the server's own words and code."""
    pooler = pooled(userlist={user: "not the password"} | ADMIN, query_wait_timeout=5, client_login_timeout=5)
    with pytest.raises(Closed) as refused, pooler.raw(user=user) as session:
        session.query("select 1")
    assert f'password authentication failed for user "{user}"' in refused.value.error["M"]
    assert refused.value.error["C"] in ("28P01", "08P01")


def test_a_scram_secret_of_another_password(pooled):
    """The secret in the list is not the server's, as after a change of the password: the server refuses in its own words, for client and log."""
    secret = scram_secret(PASSWORDS["u_scram"])
    pooler = pooled(auth_type="scram-sha-256", userlist={"u_scram": secret} | ADMIN, query_wait_timeout=5, client_login_timeout=5)
    with pytest.raises(Closed) as refused, pooler.raw(user="u_scram", password=PASSWORDS["u_scram"]) as session:
        session.query("select 1")
    assert refused.value.error["M"] == 'password authentication failed for user "u_scram"'
    assert refused.value.error["C"] in ("28P01", "08P01")
    pooler.logged('server login failed: FATAL password authentication failed for user "u_scram"')


@pytest.mark.needs("waiting clients told when no server is usable")
def test_a_password_that_was_changed_while_a_server_is_busy(pooled, pg):
    """The login of a new server fails, and the other one will serve no other client (RECONNECT): clients are told at once, in the server's words."""
    pooler = pooled(default_pool_size=3, server_login_retry=30, query_wait_timeout=20)
    with pooler.raw(user="u_scram") as busy, pooler.raw(user="u_scram") as waits:
        busy.query("begin")
        pg.sql("alter role u_scram password 'another'")
        try:
            pooler.admin("RECONNECT")
            start = time.monotonic()
            with pytest.raises(Closed) as refused:
                waits.query("select 1")
            assert time.monotonic() - start < 10
            assert refused.value.error["M"] == 'password authentication failed for user "u_scram"'
            assert refused.value.error["C"] == "28P01"
            assert busy.value("select 1") == "1"
        finally:
            pg.sql("alter role u_scram password 'pw-of-u_scram'")


def test_a_login_that_fails_while_another_server_is_of_use(pooled, pg):
    """As long as a server of the pool may be free again, clients wait for it: a login that PostgreSQL refuses ends no client."""
    pooler = pooled(default_pool_size=3, server_login_retry=1, query_wait_timeout=20)
    with pooler.raw(user="u_scram") as busy, pooler.raw(user="u_scram") as waits:
        busy.query("begin")
        pg.sql("alter role u_scram password 'another'")
        try:
            waits.send(query("select 1"))
            pooler.logged('password authentication failed for user "u_scram"')
            busy.query("commit")
            assert waits.until("Z").rows == [["1"]]
        finally:
            pg.sql("alter role u_scram password 'pw-of-u_scram'")


def test_a_database_that_postgres_does_not_have(pooled, pg):
    """3D000 and its text come from the server to the client."""
    pooler = pooled(databases={"ghost": pg.at("not_there")}, query_wait_timeout=5, client_login_timeout=5)
    with pytest.raises(Closed) as refused, pooler.raw("ghost") as session:
        session.query("select 1")
    assert 'database "not_there" does not exist' in refused.value.error["M"]


def test_a_role_that_postgres_does_not_have(pooled):
    """A user of the list that PostgreSQL does not know."""
    pooler = pooled(userlist={"nobody_there": "x"} | ADMIN, query_wait_timeout=5, client_login_timeout=5)
    with pytest.raises(Closed) as refused, pooler.raw(user="nobody_there") as session:
        session.query("select 1")
    assert 'role "nobody_there" does not exist' in refused.value.error["M"]


def test_password_of_a_forced_user(pooled, pg):
    """`user=` and `password=` of a [databases] line log in to the server; the client's own name and secret do not matter there."""
    line = pg.at("app", user="u_scram", password=PASSWORDS["u_scram"])
    pooler = pooled(databases={"forced": line}, auth_type="scram-sha-256", userlist={"alice": "quite different"} | ADMIN)
    with pooler.raw("forced", "alice", password="quite different") as session:
        assert session.value("select current_user") == "u_scram"


def test_password_of_a_forced_user_from_the_list(pooled, pg):
    """A forced user without `password=` takes its secret from the user list."""
    pooler = pooled(databases={"forced": pg.at("app", user="u_md5")}, auth_type="scram-sha-256")
    with pooler.raw("forced", "alice") as session:
        assert session.value("select current_user") == "u_md5"


def test_a_password_with_quotes_in_the_database_line(pooled, pg):
    """Quotes inside a quoted value of a connection string are doubled."""
    pg.sql("alter role u_gone password 'it''s a secret'")
    try:
        line = pg.at("app", user="u_gone", password="it's a secret")
        pooler = pooled(databases={"forced": line})
        with pooler.raw("forced", "alice") as session:
            assert session.value("select current_user") == "u_gone"
    finally:
        pg.sql("alter role u_gone password 'pw-of-u_gone'")


def test_one_user_failing_is_no_business_of_another(pooled):
    """While logins of one pool fail again and again, another pool works undisturbed."""
    pooler = pooled(userlist={"u_scram": "wrong", "alice": "x"} | ADMIN, server_login_retry=1, query_wait_timeout=2, client_login_timeout=2)
    with pooler.raw(user="alice") as good:
        for _ in range(3):
            with pytest.raises(Closed), pooler.raw(user="u_scram") as bad:
                bad.query("select 1")
            assert good.value("select 1") == "1"


def test_recovery_after_the_password_was_corrected(pooled):
    """The right secret after RELOAD: the next login attempt succeeds."""
    pooler = pooled(userlist={"u_scram": "wrong"} | ADMIN, server_login_retry=1, query_wait_timeout=2, client_login_timeout=2)
    with pytest.raises(Closed), pooler.raw(user="u_scram") as session:
        session.query("select 1")
    pooler.write_userlist({"u_scram": PASSWORDS["u_scram"]} | ADMIN)
    pooler.reload()

    def served():
        try:
            with pooler.raw(user="u_scram") as session:
                return session.value("select 1") == "1"
        except Closed:
            return False

    eventually(served, "the user is served", timeout_s=10)

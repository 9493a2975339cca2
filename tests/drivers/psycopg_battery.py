"""The driver battery for psycopg 3: every step prints "ok <step>"; the first fault ends the program.

Where to connect to comes from libpq's environment variables.
"""

import os
import threading
import time

import psycopg

RUNNING = "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(30)' and pid <> pg_backend_pid()"


def done(step):
    print("ok", step, flush=True)


def sqlstate(action):
    try:
        action()
    except psycopg.Error as fault:
        return fault.sqlstate
    return "no error"


def statements(client):
    assert client.execute("select 1 + 1").fetchone() == (2,)
    done("simple")
    values = (7, "é'\"", None, b"\0\xff")
    assert client.execute("select %s::int, %s::text, %s::text, %s::bytea", values).fetchone() == values
    assert client.execute("select %s::int, %b::bytea", (7, b"\0\xff"), binary=True).fetchone() == (7, b"\0\xff")
    done("params")
    with psycopg.connect(autocommit=True) as other:
        for n in range(50):
            assert client.execute("select %s::int * 2", (n,), prepare=True).fetchone() == (n * 2,)
            assert other.execute("select %s::int * 3", (n,), prepare=True).fetchone() == (n * 3,)
    client.prepared_max = 3
    for n in range(30):
        assert client.execute(f"select {n % 7} + %s::int", (n,), prepare=True).fetchone() == (n + n % 7,)
    done("prepared")


def transactions(client):
    client.execute("drop table if exists t_psycopg")
    client.execute("create table t_psycopg (n int primary key, t text)")

    def count():
        return client.execute("select count(*) from t_psycopg").fetchone()[0]

    with client.transaction():
        client.execute("insert into t_psycopg values (%s, %s)", (1, "one"))
    assert count() == 1
    done("transaction")
    with client.transaction():
        client.execute("insert into t_psycopg values (%s, %s)", (2, "two"))
        raise psycopg.Rollback
    assert count() == 1
    done("rollback")
    assert sqlstate(lambda: client.execute("insert into t_psycopg values (%s, %s)", (1, "again"))) == "23505"
    assert sqlstate(lambda: client.execute("selec 1")) == "42601"
    client.execute("begin")
    assert sqlstate(lambda: client.execute("select 1 / %s::int", (0,))) == "22012"
    assert sqlstate(lambda: client.execute("select 1")) == "25P02"
    client.execute("rollback")
    with client.transaction():
        client.execute("insert into t_psycopg values (3, 'three')")
        try:
            with client.transaction():
                client.execute("select 1 / 0")
        except psycopg.errors.DivisionByZero:
            pass
        client.execute("delete from t_psycopg where n = 3")
    assert count() == 1
    done("errors")


def bulk(client):
    rows = client.execute("select g, repeat('x', 100) from generate_series(1, %s) g", (100_000,))
    assert sum(row[0] for row in rows) == 100_000 * 100_001 // 2
    with client.transaction(), client.cursor("named") as cursor:
        cursor.execute("select generate_series(1, 1000)")
        assert sum(1 for _ in cursor) == 1000
    assert sum(1 for _ in client.cursor().stream("select generate_series(1, 1000)")) == 1000
    done("big")
    with client.cursor().copy("copy t_psycopg from stdin") as copy:
        for n in range(10_000):
            copy.write_row((n + 10, "y" * (n % 50)))
    with client.cursor().copy("copy (select n from t_psycopg order by n) to stdout") as copy:
        copied = [int(row[0]) for row in copy.rows()]
    assert len(copied) == 10_001 and copied[-1] == 10_009
    done("copy")


def pipeline(client):
    with client.pipeline():
        cursors = [client.execute("select %s::int", (n,)) for n in range(200)]
        assert [cursor.fetchone()[0] for cursor in cursors] == list(range(200))
    with client.pipeline() as pipe:
        client.execute("insert into t_psycopg values (-1, 'x')")
        pipe.sync()
        failing = sqlstate(lambda: (client.execute("select 1 / %s::int", (0,)), pipe.sync()))
    assert failing == "22012"
    assert client.execute("select count(*) from t_psycopg where n = -1").fetchone() == (1,)
    with client.cursor() as cursor:
        cursor.executemany("insert into t_psycopg values (%s, 'many')", [(200_000 + n,) for n in range(500)])
    assert client.execute("select count(*) from t_psycopg where t = 'many'").fetchone() == (500,)
    done("pipeline")


def cancel(client):
    def wait_and_cancel():
        with psycopg.connect(autocommit=True) as other:
            while other.execute(RUNNING).fetchone() == (0,):
                time.sleep(0.02)
        client.cancel_safe()

    threading.Thread(target=wait_and_cancel).start()
    assert sqlstate(lambda: client.execute("select pg_sleep(30)")) == "57014"
    assert client.execute("select 6").fetchone() == (6,)
    done("cancel")


def session(client):
    """What a session keeps: settings, temporary tables, statements prepared by SQL, locks, cursors, channels."""
    me = f"psycopg_{os.getpid()}"
    with psycopg.connect(autocommit=True) as other:

        def both(sql):
            return [connection.execute(sql).fetchone()[0] for connection in (client, other)]

        client.execute("set work_mem = '3333kB'")
        client.execute("select set_config('battery.who', 'psycopg', false)")
        assert both("show work_mem")[0] == "3333kB" != both("show work_mem")[1]
        assert both("select current_setting('battery.who', true)")[0] == "psycopg"
        client.execute(f"create temp table t_{me} (n int)")
        client.execute(f"insert into t_{me} values (7)")
        assert other.execute(f"select to_regclass('t_{me}')::text").fetchone() == (None,)
        assert client.execute(f"select n from t_{me}").fetchone() == (7,)
        client.execute(f"prepare {me} as select 'mine'")
        assert sqlstate(lambda: other.execute(f"execute {me}")) == "26000"
        assert client.execute(f"execute {me}").fetchone() == ("mine",)
        client.execute(f"select pg_advisory_lock(hashtext('{me}'))")
        assert other.execute(f"select pg_try_advisory_lock(hashtext('{me}'))").fetchone() == (False,)
        assert client.execute(f"select pg_advisory_unlock(hashtext('{me}'))").fetchone() == (True,)
        client.execute(f"declare c_{me} cursor with hold for select generate_series(1, 3)")
        assert client.execute(f"fetch all c_{me}").fetchall() == [(1,), (2,), (3,)]
        client.execute(f"listen {me}")
        other.execute(f"notify {me}, 'hello'")
        assert [note.payload for note in client.notifies(timeout=20, stop_after=1)] == ["hello"]
        client.execute(f"close c_{me}; drop table t_{me}; unlisten *; deallocate {me}")
        client.execute("reset all")
    done("session")


def concurrent():
    faults = []

    def work(who):
        try:
            with psycopg.connect(autocommit=True, prepare_threshold=1) as client:
                for turn in range(50):
                    assert client.execute(f"select %s::int + {who % 3}", (turn,)).fetchone() == (turn + who % 3,)
        except Exception as fault:  # noqa: BLE001  # reported below
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    done("concurrent")


def main():
    with psycopg.connect(autocommit=True) as client:
        done("connect")
        statements(client)
        transactions(client)
        bulk(client)
        seen = []
        client.add_notice_handler(lambda notice: seen.append(notice.message_primary))
        client.execute("do $$ begin raise notice 'hello'; end $$")
        assert seen == ["hello"]
        done("notices")
        pipeline(client)
        cancel(client)
        if os.environ.get("BATTERY_SESSION") == "1":
            session(client)
    concurrent()


if __name__ == "__main__":
    main()

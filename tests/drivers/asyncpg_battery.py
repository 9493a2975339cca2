"""The driver battery for asyncpg: every step prints "ok <step>"; the first fault ends the program.

Where to connect to comes from libpq's environment variables.
"""

import asyncio
import io
import os

import asyncpg


def done(step):
    print("ok", step, flush=True)


async def sqlstate(awaitable):
    try:
        await awaitable
    except asyncpg.PostgresError as fault:
        return fault.sqlstate
    return "no error"


async def statements(client):
    assert await client.execute("select 1 + 1") == "SELECT 1"
    done("simple")
    row = await client.fetchrow("select $1::int, $2::text, $3::text, $4::bytea", 7, "é'\"", None, b"\0\xff")
    assert tuple(row) == (7, "é'\"", None, b"\0\xff")
    assert await client.fetchval("select $1::int[]", [1, 2, 3]) == [1, 2, 3]
    done("params")
    other = await asyncpg.connect()
    twice, thrice = await client.prepare("select $1::int * 2"), await other.prepare("select $1::int * 3")
    for n in range(50):
        assert await twice.fetchval(n) == n * 2
        assert await thrice.fetchval(n) == n * 3
        assert await client.fetchval(f"select {n % 5} + $1::int", n) == n + n % 5
    await other.close()
    done("prepared")


async def transactions(client):
    await client.execute("drop table if exists t_asyncpg; create table t_asyncpg (n int primary key, t text)")

    async def count():
        return await client.fetchval("select count(*) from t_asyncpg")

    async with client.transaction():
        await client.execute("insert into t_asyncpg values ($1, $2)", 1, "one")
    assert await count() == 1
    done("transaction")
    transaction = client.transaction()
    await transaction.start()
    await client.execute("insert into t_asyncpg values ($1, $2)", 2, "two")
    await transaction.rollback()
    assert await count() == 1
    done("rollback")
    assert await sqlstate(client.execute("insert into t_asyncpg values ($1, $2)", 1, "again")) == "23505"
    assert await sqlstate(client.fetch("selec 1")) == "42601"
    transaction = client.transaction()
    await transaction.start()
    assert await sqlstate(client.fetchval("select 1 / $1::int", 0)) == "22012"
    assert await sqlstate(client.fetchval("select 1")) == "25P02"
    await transaction.rollback()
    assert await count() == 1
    done("errors")


async def bulk(client):
    rows = await client.fetch("select g, repeat('x', 100) from generate_series(1, $1) g", 100_000)
    assert sum(row[0] for row in rows) == 100_000 * 100_001 // 2
    async with client.transaction():
        seen = [row[0] async for row in client.cursor("select generate_series(1, 1000)", prefetch=70)]
    assert seen == list(range(1, 1001))
    done("big")
    records = [(n + 10, "y" * (n % 50)) for n in range(10_000)]
    assert await client.copy_records_to_table("t_asyncpg", records=records) == "COPY 10000"
    out = io.BytesIO()
    assert await client.copy_from_query("select n from t_asyncpg order by n", output=out) == "COPY 10001"
    assert out.getvalue().endswith(b"\n10009\n")
    done("copy")


async def notices(client):
    seen = []
    client.add_log_listener(lambda _, message: seen.append(message.message))
    await client.execute("do $$ begin raise notice 'hello'; end $$")
    await asyncio.sleep(0)
    assert seen == ["hello"]
    done("notices")


async def batch(client):
    await client.executemany("insert into t_asyncpg values ($1, 'many')", [(200_000 + n,) for n in range(500)])
    assert await client.fetchval("select count(*) from t_asyncpg where t = 'many'") == 500
    assert await sqlstate(client.executemany("insert into t_asyncpg values ($1, 'x')", [(-1,), (-1,), (-2,)])) == "23505"
    assert await client.fetchval("select count(*) from t_asyncpg where n < 0") == 0
    done("pipeline")


async def cancel(client):
    try:
        await client.fetch("select pg_sleep(30)", timeout=0.3)
    except TimeoutError:
        pass
    else:
        raise AssertionError("not cancelled")
    assert await client.fetchval("select 6") == 6
    done("cancel")


async def session(client):
    """What a session keeps: settings, temporary tables, statements prepared by SQL, locks, cursors, channels."""
    me = f"asyncpg_{os.getpid()}"
    other = await asyncpg.connect()
    await client.execute("set work_mem = '3333kB'")
    assert await client.fetchval("show work_mem") == "3333kB" != await other.fetchval("show work_mem")
    await client.execute(f"create temp table t_{me} (n int)")
    await client.execute(f"insert into t_{me} values (7)")
    assert await other.fetchval(f"select to_regclass('t_{me}')::text") is None
    assert await client.fetchval(f"select n from t_{me}") == 7
    await client.execute(f"prepare {me} as select 'mine'")
    assert await sqlstate(other.execute(f"execute {me}")) == "26000"
    assert await client.fetchval(f"execute {me}") == "mine"
    await client.fetchval(f"select pg_advisory_lock(hashtext('{me}'))")
    assert await other.fetchval(f"select pg_try_advisory_lock(hashtext('{me}'))") is False
    assert await client.fetchval(f"select pg_advisory_unlock(hashtext('{me}'))") is True
    await client.execute(f"declare c_{me} cursor with hold for select generate_series(1, 3)")
    assert [row[0] for row in await client.fetch(f"fetch all c_{me}")] == [1, 2, 3]
    heard = asyncio.get_running_loop().create_future()

    def hear(_connection, _pid, _channel, payload):
        heard.set_result(payload)

    await client.add_listener(me, hear)
    await other.execute(f"notify {me}, 'hello'")
    assert await asyncio.wait_for(heard, 20) == "hello"
    await client.remove_listener(me, hear)
    await client.execute(f"close c_{me}; drop table t_{me}; deallocate {me}")
    await client.execute("reset all")
    await other.close()
    done("session")


async def concurrent():
    async with asyncpg.create_pool(min_size=10, max_size=10) as pool:

        async def work(who):
            for turn in range(50):
                assert await pool.fetchval(f"select $1::int + {who % 3}", turn) == turn + who % 3

        await asyncio.gather(*(work(who) for who in range(10)))
    done("concurrent")


async def main():
    client = await asyncpg.connect()
    done("connect")
    await statements(client)
    await transactions(client)
    await bulk(client)
    await notices(client)
    await batch(client)
    await cancel(client)
    if os.environ.get("BATTERY_SESSION") == "1":
        await session(client)
    await client.close()
    await concurrent()


if __name__ == "__main__":
    asyncio.run(main())

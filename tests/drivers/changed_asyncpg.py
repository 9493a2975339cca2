"""Runs prepared statements with asyncpg, one for each line of standard input: see `test_changed_columns.py`."""

import asyncio
import sys

import asyncpg


async def run(client, line):
    if line == "read":
        return (await client.fetchrow("select * from changing where a = $1", 1))[1]
    if line == "write":
        return (await client.fetchrow("insert into changing (a) values ($1) returning a, b", 1))[1]
    await client.execute("update changing set a = $1 where a = $2", 1, 1)
    return 1


async def main():
    client = await asyncpg.connect()
    for line in sys.stdin:
        try:
            print("value", await run(client, line.strip()), flush=True)
        except asyncpg.PostgresError as fault:
            print("error", fault.sqlstate, flush=True)
    await client.close()


asyncio.run(main())

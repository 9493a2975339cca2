"""Runs prepared statements with psycopg, one for each line of standard input: see `test_changed_columns.py`."""

import sys

import psycopg


def run(client, line):
    if line == "read":
        return client.execute("select * from changing where a = %s", (1,), binary=True).fetchone()[1]
    if line == "write":
        return client.execute("insert into changing (a) values (%s) returning a, b", (1,), binary=True).fetchone()[1]
    client.execute("update changing set a = %b where a = %b", (1, 1))
    return 1


with psycopg.connect(autocommit=True, prepare_threshold=0) as client:
    for line in sys.stdin:
        try:
            print("value", run(client, line.strip()), flush=True)
        except psycopg.Error as fault:
            print("error", fault.sqlstate, flush=True)

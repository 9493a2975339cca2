"""SQL scripts whose output is compared, and clients that are in the way meanwhile."""

import os
import random
import subprocess
import threading

import psycopg

STARTUP = {
    "PGTZ": "PST8PDT", "PGDATESTYLE": "Postgres, MDY", "PGCLIENTENCODING": "UTF8",
    "PGOPTIONS": "-c intervalstyle=postgres_verbose -c work_mem=3MB -c pgweir_test.own=start",
}  # fmt: skip


def run_psql(host, port, script):
    """What psql prints, errors in their places."""
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("PG")}, **STARTUP}
    command = ["psql", "-X", "-a", "-h", host, "-p", str(port), "-U", "alice", "app"]
    done = subprocess.run(command, input=script, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return done.stdout


class Others:
    """Clients that change their sessions at random and always have to find their own."""

    KINDS = {
        "search_path": ["a", "b, c", "public"], "work_mem": ["1MB", "2MB"], "pgweir_test.var": ["1", "2"], "role": ["bob", "none"],
        "statement_timeout": ["1min", "2min"], "extra_float_digits": ["0", "1"], "TimeZone": ["UTC", "Asia/Tokyo"],
        "application_name": ["Aa", "aA"],
    }  # fmt: skip

    def __init__(self, pooler, count):
        self.stop = threading.Event()
        self.wrong = []
        self.threads = [threading.Thread(target=self.go, args=(pooler.port, seed)) for seed in range(count)]

    def go(self, port, seed):
        chance = random.Random(seed)
        options = chance.choice(["", "-c work_mem=5MB", "-c search_path=noise -c pgweir_test.own=9"])
        try:
            with psycopg.connect(host="127.0.0.1", port=port, user="alice", dbname="app", autocommit=True, options=options) as session:
                mine = {}
                while not self.stop.is_set():
                    name = chance.choice(list(self.KINDS))
                    mine[name] = chance.choice(self.KINDS[name])
                    if chance.random() < 0.5:
                        session.execute("select set_config(%s, %s, false)", [name, mine[name]])
                    else:
                        session.execute(f"set {name} = " + (mine[name] if name == "search_path" else f"'{mine[name]}'"))
                    for known, value in mine.items():
                        found = session.execute(f"select current_setting('{known}')").fetchone()[0]
                        if found != value:
                            self.wrong.append((seed, known, value, found))
        except Exception as error:
            self.wrong.append((seed, repr(error)))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert self.wrong == []

"""A hunt for leaks: clients give settings unique values in every way there is, and every other client looks for values that are not its own.

Each pool is fresh, so its names were never heard of. A seed makes the whole run: names and how they are spelled, ways of setting them,
what becomes of the transaction, and which client leaves. `LEAK_HUNT_STEPS=100000 tests/run.sh blackbox/test_leak_hunt.py` for a long hunt;
`LEAK_HUNT_SEED` begins with another seed.
"""

import os
import random

import pytest

from harness.pooler import kind
from harness.wire import SYNC, Closed, bind, execute, parse

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

STEPS = int(os.environ.get("LEAK_HUNT_STEPS", "900"))
SEED = int(os.environ.get("LEAK_HUNT_SEED", "1"))
SEEDS = 3
"""So many pools share the steps, of one, two and three servers."""
CLIENTS = 5
LOOKED_FOR = 24
"""So many of the names that were used last are looked for at a time."""
CLIENTS_OF_A_POOL = 2000
"""After so many steps there is a new pool."""

MADE = """
create schema if not exists hunt;
grant all on schema hunt to public;
create or replace function hunt.given(n text, v text) returns text language sql as 'select set_config(n, v, false)';
create or replace function hunt.built(n text, v text) returns text language plpgsql as
  $$ begin return set_config(replace(n, '!', '.'), v, false); end $$;
create or replace function hunt.known(v text) returns text language sql as 'select set_config(''hunt_known.Id'', v, false)';
create or replace function hunt.outer_one(v text) returns text language plpgsql as $$ begin return hunt.known(v); end $$;
create or replace procedure hunt.proc(n text, v text) language plpgsql as $$ begin execute format('set %s = %L', n, v); end $$;
create table if not exists hunt.rows (n text, v text);
grant all on hunt.rows to public;
create or replace function hunt.on_row() returns trigger language plpgsql as $$ begin perform set_config(new.n, new.v, false); return null; end $$;
drop trigger if exists on_row on hunt.rows;
create trigger on_row before insert on hunt.rows for each row execute function hunt.on_row();
"""

BUILT_IN = ["application_name", "search_path", "work_mem", "lock_timeout", "role"]


def literal(text):
    return "'" + text.replace("'", "''") + "'"


class Hunter:
    """One client of the hunt: its session, the values it gave, and what it must have."""

    def __init__(self, session):
        self.session = session
        self.given = set()
        self.expected = {}


class Hunt:
    """One pool, and its clients."""

    def __init__(self, pooler, seed, size):
        self.pooler, self.size = pooler, size
        self.choice = random.Random(seed)
        self.numbers = 100_000 + seed % 1000 * 1_000_000
        self.names = []
        self.hunters = [Hunter(pooler.raw()) for _ in range(CLIENTS)]
        self.defaults = self.shown(self.hunters[0], BUILT_IN)
        self.trail = []

    def number(self):
        self.numbers += 1
        return self.numbers

    def shown(self, hunter, names):
        calls = ", ".join(f"coalesce(current_setting({literal(name)}, true), '')" for name in names)
        answer = hunter.session.query(f"select {calls}")
        return dict(zip(names, answer.rows[0]))

    def name(self):
        """A setting: its real name, letters in lower case, and one of its spellings."""
        choice = self.choice
        if choice.random() < 0.2:
            name = choice.choice(BUILT_IN[:4])
            return name, choice.choice([name, name.upper(), f'"{name}"', f"U&\"\\{ord(name[0]):04x}{name[1:]}\""])
        if choice.random() < 0.2 and self.names:
            name = choice.choice(self.names[-40:])
            parts = name.split(".")
        else:
            parts = [f"h{self.number()}" + "x" * choice.choice([0, 0, 0, 0, 50, 70])]
            parts += [choice.choice(["id", "tenant", "a_b", "v$1", "x" * 60, "y" * 64]) for _ in range(choice.choice([1, 1, 1, 2, 4]))]
        dot = choice.choice([".", ".", ".", " . ", "./* of */", "\n.\n", ".-- x\n"])
        spell = choice.choice([str, str, str.upper, lambda part: f'"{part}"', lambda part: f'"{part.title()}"',
                               lambda part: f'U&"\\{ord(part[0]):04x}{part[1:]}"'])  # fmt: skip
        spelled = dot.join(spell(part) if "$" not in part or spell in (str, str.upper) else f'"{part}"' for part in parts)
        if choice.random() < 0.1:
            spelled = '"' + ".".join(part[:63 // len(parts) - 1] for part in parts) + '"'
            return spelled.strip('"'), spelled
        return ".".join(part[:63] for part in parts), spelled

    def value(self, name):
        # Odd, so that PostgreSQL shows it in this unit.
        number = 2 * self.number() + 1
        return f"{number}kB" if name == "work_mem" else f"{number}ms" if name == "lock_timeout" else f"secret{number}"

    def statements(self, name, spelled, value):
        """A way to set it for the session; whether the client may keep its server for that."""
        n, v, text = literal(name), literal(value), self.choice.choice
        cut = len(name) // 2
        halves = f"{literal(name[:cut])} || {literal(name[cut:])}"
        return text([
            f"set {spelled} = {v}", f"set {spelled} to {v}", f"SET SESSION {spelled} = {v}", f"set {spelled} = {v}", f"/* x */ set {spelled} = {v};",
            f"select set_config({n}, {v}, false)", f"select set_config({n}::text, {v}, false)", f"select set_config({halves}, {v}, false)",
            f"select \"set_config\"($${name}$$, {v}, false)", f"select hunt.given({n}, {v})", f"select hunt.built({literal(name.replace('.', '!'))}, {v})",
            f"do $$ begin set {spelled} = {v}; end $$", f"do $$ begin perform set_config({n}, {v}, false); end $$",
            f"do $$ begin perform set_config({halves}, {v}, false); end $$", f"do $$ begin execute 'set {name} = {value}'; end $$".replace(f"= {value}", f"= '{v}'"),
            f"do $$ begin execute format('set %s = %L', {halves}, {v}); end $$", f"call hunt.proc({n}, {v})", f"insert into hunt.rows values ({n}, {v})",
            f"with a as (select {n} as n) select set_config(n, {v}, false) from a",
        ])  # fmt: skip

    def send(self, hunter, text):
        self.trail.append((self.hunters.index(hunter), text))
        return hunter.session.query(text)

    def bound(self, hunter, name, value):
        self.trail.append((self.hunters.index(hunter), f"bound {name} {value}"))
        text = self.choice.choice(["select set_config($1, $2, false)", "select hunt.given($1, $2)", "select hunt.built($1, $2)"])
        prepared = self.choice.choice(["", f"p{self.number()}"])
        hunter.session.send(parse(prepared, text) + bind("", prepared, [name, value]) + execute() + SYNC)
        return hunter.session.until("Z")

    def set_one(self, hunter):
        """Sets something in a transaction of its own: it must be there afterwards."""
        name, spelled = self.name()
        value = self.value(name)
        hunter.given.add(value)
        if self.choice.random() < 0.2:
            answer = self.bound(hunter, name, value)
        elif self.choice.random() < 0.1:
            name, answer = "hunt_known.id", self.send(hunter, f"select hunt.{self.choice.choice(['known', 'outer_one'])}({literal(value)})")
        else:
            answer = self.send(hunter, self.statements(name, spelled, value))
        self.names.append(name)
        if answer.errors:
            hunter.expected.pop(name, None)
        else:
            hunter.expected[name] = value

    def set_some(self, hunter):
        """Sets several things in a transaction, whatever becomes of it."""
        texts, choice = [], self.choice
        for _ in range(choice.choice([1, 2, 3, 3, 70 if choice.random() < 0.1 else 4])):
            name, spelled = self.name()
            value = self.value(name)
            hunter.given.add(value)
            hunter.expected.pop(name, None)
            self.names.append(name)
            texts.append(choice.choice([self.statements(name, spelled, value), f"set local {spelled} = {literal(value)}",
                                        f"select set_config({literal(name)}, {literal(value)}, true)"]))  # fmt: skip
            if choice.random() < 0.2:
                texts.append(choice.choice(["savepoint a", "select 1/0", "rollback to a", "reset all", f"reset {spelled}"]))
        texts = ["begin", *texts, choice.choice(["commit", "commit", "rollback", "select 1/0; commit"])]
        hunter.expected.clear()
        if choice.random() < 0.3:
            self.send(hunter, "; ".join(texts))
            self.send(hunter, "rollback")
            return
        for text in texts:
            self.send(hunter, text)
        self.send(hunter, "rollback")

    def take_back(self, hunter):
        name = self.choice.choice(self.names[-40:]) if self.names else "work_mem"
        self.send(hunter, self.choice.choice(["discard all", "reset all", "do $$ begin reset all; end $$", f"select set_config({literal(name)}, null, false)"]))
        hunter.expected.clear()

    def leave(self, hunter):
        """Leaves, politely or not, with or without a transaction."""
        if self.choice.random() < 0.5:
            name, spelled = self.name()
            self.names.append(name)
            self.send(hunter, "begin")
            self.send(hunter, self.statements(name, spelled, self.value(name)))
        self.trail.append((self.hunters.index(hunter), "leaves"))
        self.choice.choice([hunter.session.terminate, hunter.session.hang_up, hunter.session.reset])()
        self.hunters[self.hunters.index(hunter)] = Hunter(self.pooler.raw())

    def look(self, hunter):
        """Looks for what other clients set, and for what it has itself."""
        names = list(dict.fromkeys([*BUILT_IN, *self.names[-LOOKED_FOR:], *list(hunter.expected)[-LOOKED_FOR:]]))
        for name, value in self.shown(hunter, names).items():
            mine = value == "" or value == self.defaults.get(name) or value in hunter.given
            assert mine, f"{name} is {value!r}, of another client, behind {self.trail[-12:]}"
            wanted = hunter.expected.get(name)
            assert wanted in (None, value), f"{name} is {value!r}, not {wanted!r}, behind {self.trail[-12:]}"

    def step(self):
        hunter = self.choice.choice(self.hunters)
        kind_of = self.choice.random()
        action = (
            self.set_one if kind_of < 0.45 else self.set_some if kind_of < 0.65 else self.take_back if kind_of < 0.72
            else self.leave if kind_of < 0.8 else None
        )  # fmt: skip
        if action:
            action(hunter)
        if hunter in self.hunters:
            self.look(hunter)
            self.make_room(hunter)
        self.look(self.choice.choice(self.hunters))

    def make_room(self, hunter):
        """A client that keeps the last server leaves, or takes all back: the other clients need one."""
        if self.pinned() < self.size:
            return
        if self.choice.random() < 0.3:
            self.send(hunter, "discard all")
            hunter.expected.clear()
        if self.pinned() == self.size:
            self.leave(hunter)

    def pinned(self):
        return sum(bool(row["pinned"]) for row in self.pooler.show("SERVERS_EXTENDED", database="app"))


@pytest.mark.timeout(900 + STEPS)
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_no_client_finds_what_another_client_set(pooled, pg, seed):
    """No client finds a value that it did not give, and each finds what it gave."""
    with pg.connect("app") as connection:
        connection.execute("select pg_advisory_lock(4713)")
        connection.execute(MADE)
    steps, size = STEPS // SEEDS, 1 + seed % 3
    for begun in range(0, steps, CLIENTS_OF_A_POOL):
        pooler = pooled(default_pool_size=size)
        hunt = Hunt(pooler, seed * 1000 + begun // CLIENTS_OF_A_POOL, size)
        for _ in range(min(CLIENTS_OF_A_POOL, steps - begun)):
            try:
                hunt.step()
            except (Closed, TimeoutError) as end:
                raise AssertionError(f"a client was lost behind {hunt.trail[-12:]}") from end
        for hunter in hunt.hunters:
            hunter.session.terminate()
        assert "not what it should be" not in pooler.log()

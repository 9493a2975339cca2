"""The tables of the proof, what changes them, and what reads them.

A *clock* is a number that one writer raises by one in each of its transactions. The tables of a clock show its value in different ways: as a row,
as the key of a row, as what a cascade has left. A *face* is a statement from which the value is read. All faces of a clock must agree on what a
connection has seen: a value that was shown on one must not be fallen short of on another.
"""

import random
from dataclasses import dataclass, field

CLOCKS = 64
SHARED_TABLES = 4
"""The first clocks are rows of so many tables: a change of one row is a change of the others' table."""

KINDS = ["shared"] * 16 + ["own"] * 18 + ["cascade"] * 8 + ["key"] * 6 + ["moved"] * 2 + ["copy"] * 4 + ["truncate"] * 4 + ["tenant"] * 6
"""How each clock's tables are changed, by the number of the clock."""

TENANTS = ["red", "green", "blue"]
"""Half of the clocks of kind `tenant` are rows of tables of one name in schemas of these names; half are rows of one table with these names."""

ROLES = ["alice", "bob"]
"""The users that readers log in as: each has a pool of its own."""

assert len(KINDS) == CLOCKS


@dataclass
class Face:
    """A statement that reads a clock's value. If a session must have settings to read it, `tenant` is the name that its first column must show."""

    clock: int
    text: str
    values: tuple = ()
    settings: tuple = ()
    tenant: str | None = None

    def plain(self):
        """The text with its values, for the simple protocol."""
        text = self.text
        for number, value in enumerate(self.values, 1):
            text = text.replace(f"${number}", str(value))
        return text


@dataclass
class Change:
    """What raises a clock from one value to the next. `copied` are rows for COPY, which takes the place of `texts`."""

    texts: list = field(default_factory=list)
    copied: tuple | None = None
    afterwards: list = field(default_factory=list)
    """Statements for a transaction of their own after the change; they change no value."""


def objects():
    """The statements that make all tables, with each clock at 0. `shaped` is for changes of definitions, `guarded` for changes of rights."""
    made = [f"create table shared_{n} (id int primary key, value bigint)" for n in range(SHARED_TABLES)]
    for clock, kind in enumerate(KINDS):
        made += _tables(clock, kind)
    made.append("create table tenants (tenant text primary key, value bigint)")
    made += [f"insert into tenants values ('{tenant}', 0)" for tenant in TENANTS]
    for tenant in TENANTS:
        made += [f"create schema {tenant}", f"grant usage on schema {tenant} to public"]
        made += [f"create table {tenant}.mine (tenant text primary key, value bigint)", f"insert into {tenant}.mine values ('{tenant}', 0)"]
        made.append(f"grant all on {tenant}.mine to public")
    made += ["create table shaped (id int primary key, g0 int)", "insert into shaped values (1, 1)"]
    made += ["create table guarded (id int primary key)", "insert into guarded values (1)"]
    made.append("grant all on all tables in schema public to public")
    return made


def _tables(clock, kind):
    name = f"{kind}_{clock}"
    match kind:
        case "shared":
            return [f"insert into shared_{clock % SHARED_TABLES} values ({clock}, 0)"]
        case "own":
            both = (name, f"twin_{clock}")
            return [text for one in both for text in (f"create table {one} (id int primary key, value bigint)", f"insert into {one} values (1, 0)")]
        case "cascade":
            return [
                f"create table parent_{clock} (id bigint primary key)",
                f"create table child_{clock} (parent bigint primary key references parent_{clock} on delete cascade)",
                f"insert into parent_{clock} values (0), (1)",
                f"insert into child_{clock} values (0), (1)",
            ]
        case "key":
            return [f"create table {name} (id bigint primary key)", f"insert into {name} values (0)"]
        case "moved":
            parts = [f"create table {name}_{half} partition of {name} for values in ({half})" for half in (0, 1)]
            whole = f"create table {name} (value bigint, half int, primary key (value, half)) partition by list (half)"
            return [whole, *parts, f"insert into {name} values (0, 0)"]
        case "copy" | "truncate":
            return [f"create table {name} (value bigint primary key)", f"insert into {name} values (0)"]
    return []


def publication(names):
    """The statement that publishes these tables."""
    return f"create publication pgweir_cache for table {', '.join(names)}"


def faces():
    """All faces of all clocks."""
    found = []
    for clock, kind in enumerate(KINDS):
        name = f"{kind}_{clock}"
        texts = {
            "shared": [(f"select value from shared_{clock % SHARED_TABLES} where id = $1", (clock,))],
            "own": [
                (f"select value from {name} where id = $1", (1,)),
                (f"select max(value) from twin_{clock}", ()),
                (f"select a.value from {name} a join twin_{clock} b on a.value = b.value", ()),
            ],
            "cascade": [(f"select min(parent) from child_{clock}", ()), (f"select min(id) from parent_{clock}", ())],
            "key": [(f"select id from {name}", ())],
            "moved": [(f"select value from {name}", ())],
            "copy": [(f"select max(value) from {name}", ())],
            "truncate": [(f"select value from {name}", ())],
            "tenant": [],
        }[kind]
        found += [Face(clock, text, values) for text, values in texts]
    first = CLOCKS - 2 * len(TENANTS)
    for at, tenant in enumerate(TENANTS):
        path = (f"set search_path = {tenant}, public", f"set app.tenant = '{tenant}'")
        found.append(Face(first + at, "select value, tenant from mine", (), path, tenant))
        text = "select value, tenant from tenants where tenant = current_setting('app.tenant')"
        found.append(Face(first + len(TENANTS) + at, text, (), path, tenant))
    return found


def change(clock, value):
    """What raises a clock to `value` from the one before."""
    kind, old = KINDS[clock], value - 1
    name = f"{kind}_{clock}"
    match kind:
        case "shared":
            return Change([f"update shared_{clock % SHARED_TABLES} set value = {value} where id = {clock}"])
        case "own":
            return Change([f"update {name} set value = {value}", f"update twin_{clock} set value = {value}"])
        case "cascade":
            more = [f"insert into parent_{clock} values ({value + 1})", f"insert into child_{clock} values ({value + 1})"]
            return Change([f"delete from parent_{clock} where id = {old}"], afterwards=more)
        case "key":
            return Change([f"update {name} set id = {value}"])
        case "moved":
            return Change([f"update {name} set value = {value}, half = {value % 2}"])
        case "copy":
            return Change(copied=(name, value))
        case "truncate":
            return Change([f"truncate {name}", f"insert into {name} values ({value})"])
    at = clock - (CLOCKS - 2 * len(TENANTS))
    if at < len(TENANTS):
        return Change([f"update {TENANTS[at]}.mine set value = {value}"])
    return Change([f"update tenants set value = {value} where tenant = '{TENANTS[at - len(TENANTS)]}'"])


def weights(clocks):
    """How often each of these clocks is raised, relative to one another: some all the time, most seldom. TRUNCATE ends all answers."""
    return [0.005 if KINDS[clock] == "truncate" else 1 / (1 + clock % 7) for clock in clocks]


def commit_mode(chooser: random.Random):
    """A value of synchronous_commit: `on` waits for the standby."""
    return chooser.choice(["off", "off", "local", "on", "remote_apply"])

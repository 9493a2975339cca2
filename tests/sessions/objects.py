"""Random chains of objects that lead from a statement to code with a hidden effect: does pgweir see where each of them ends?

A chain is a function with an effect, and one to four links around it: a routine, an aggregate, an operator, a view, a domain, a trigger and so
on, each of which runs the one before. A statement names the last link alone. Each effect is tried on PostgreSQL first; through the pooler the
answer is the same, the session changes in the same way, and nothing of that reaches the next client of the server. With standbys, what a standby
would answer otherwise is answered as the primary does.

    python -m sessions.objects --chains 2000 --seed 1 --major 17 --standbys 1
"""

import argparse
import random
import shutil
import sys
from dataclasses import dataclass

import psycopg

from harness import cluster as clusters
from harness.machine import scratch_folder
from harness.tls import Certificates
from sessions.arena import DATABASE, Arena
from sessions.fuzz import pairs
from sessions.rounds import Round

BATCH = 8
"""The number of chains that exist at the same time. The pooler reads the catalog again for every effect, and that takes longer with more objects."""

WANTED = """
drop schema if exists hidden cascade;
create schema hidden;
grant all on schema hidden to public;
create table hidden.wanted (name text);
insert into hidden.wanted values ('nothing');
create table hidden.log (a int);
create function hidden.act() returns int language plpgsql as $$ begin
  case (select name from hidden.wanted)
    when 'setting' then perform set_config('work_mem', '1234kB', false);
    when 'custom setting' then perform set_config('hidden.name', 'secret', false);
    when 'role' then perform set_config('role', 'bob', false);
    when 'search_path' then set search_path = hidden_place;
    when 'lock' then perform pg_advisory_lock(4714);
    when 'table' then create temp table if not exists hidden_rows as select 'secret' as a;
    when 'write' then insert into hidden.log values (1);
    else null;
  end case; return 0; end $$;
create function hidden.shown() returns int language sql stable as 'select pg_is_in_recovery()::int';
create function hidden.port() returns int language sql stable as 'select (coalesce(inet_server_port(), {port}) <> {port})::int';
create function hidden.tries() returns int language sql stable as 'select pg_try_advisory_xact_lock(4716)::int';
create function hidden.plain() returns int language sql stable as 'select 0';
grant all on all tables in schema hidden to public;
"""
"""The functions with an effect. Each returns 0 at the primary; `shown`, `port` and `tries` something else at a standby, if 4716 is locked at the primary.
`plain` has none: what leads to it may be read anywhere."""

STARTS = ["hidden.act", "hidden.shown", "hidden.port", "hidden.tries", "hidden.plain"]
"""The functions at which chains start; without standbys the first alone."""

LOOKS = {
    "setting": "select current_setting('work_mem') = '1234kB'",
    "custom setting": "select coalesce(current_setting('hidden.name', true), '') = 'secret'",
    "role": "select current_user = 'bob'",
    "search_path": "select current_setting('search_path') = 'hidden_place'",
    "lock": "select exists (select from pg_catalog.pg_locks where locktype = 'advisory' and objid = 4714 and pid = pg_backend_pid())",
    "table": "select to_regclass('pg_temp.hidden_rows') is not null",
    "write": "select false",
}
"""The effects of `hidden.act`, and whether a session has it."""

ROUTINES = {
    "in SQL": "create function {n}() returns int language sql {v} as 'select {f}()'",
    "in PL/pgSQL": "create function {n}() returns int language plpgsql {v} as 'begin return {f}(); end'",
    "in standard SQL": "create function {n}() returns int {v} begin atomic select {f}(); end",
    "put together": "create function {n}() returns int language plpgsql {v} as $$ declare r int; begin execute 'sel' || 'ect {f}' || '()' into r; return r; end $$",
    "found by search_path": "create function {n}() returns int language sql {v} set search_path = {s} as 'select {bare}()'",
    "of its definer": "create function {n}() returns int language plpgsql {v} security definer as 'begin return {f}(); end'",
    "a quoted name": 'create function {s}."{k} of a""b"() returns int language sql {v} as \'select {f}()\'',
    "a name beyond ASCII": 'create function {s}."Größe{k}"() returns int language sql {v} as \'select {f}()\'',
}
"""Functions without arguments that return what the link before returns. {f}: that link; {bare}: without its schema; {v}: a volatility."""

NAMED = {"a quoted name": '{s}."{k} of a""b"', "a name beyond ASCII": '{s}."Größe{k}"'}
"""The names of functions that are not {n}."""

READS = {
    "an aggregate": ("create function {n}_s(int, int) returns int language plpgsql immutable as 'begin return {f}(); end';"
                     "create aggregate {n}(int) (sfunc = {n}_s, stype = int, initcond = 0)", "select {n}(1)"),
    "an aggregate's end": ("create function {n}_e(int) returns int language plpgsql immutable as 'begin return {f}(); end';"
                           "create aggregate {n}(int) (sfunc = int4pl, stype = int, finalfunc = {n}_e, initcond = 0)", "select {n}(1)"),
    "an aggregate as window": ("create function {n}_s(int, int) returns int language plpgsql immutable as 'begin return {f}(); end';"
                               "create aggregate {n}(int) (sfunc = {n}_s, stype = int, initcond = 0)", "select {n}(1) over ()"),
    "an operator": ("create function {n}_o(int, int) returns int language plpgsql stable as 'begin return {f}(); end';"
                    "create operator {s}.{op} (leftarg = int, rightarg = int, function = {n}_o)", "select 1 operator({s}.{op}) 2"),
    "a cast": ("create type {n}_t as (a int); create function {n}_c({n}_t) returns int language plpgsql stable as 'begin return {f}(); end';"
               "create cast ({n}_t as int) with function {n}_c as implicit", "select row(1)::{n}_t::int"),
    "an implicit cast": ("create type {n}_t as (a int); create function {n}_c({n}_t) returns int language plpgsql stable as 'begin return {f}(); end';"
                         "create cast ({n}_t as int) with function {n}_c as implicit; create table {n} (a {n}_t); insert into {n} values (row(1))",
                         "select 0 + a from {n}"),
    "a default argument": ("create function {n}(a int default {f}()) returns int language sql stable as 'select a'", "select {n}()"),
    "a view": ("create view {n} as select {f}() as a", "select a from {n}"),
    "a view's condition": ("create view {n} as select 0 as a where {f}() = 0", "select count(*)::int - 1 from {n}"),
    "a domain": ("create domain {n} as int check ({f}() = 0 or value > 1)", "select 0::{n}::int"),
    "a policy": ("create table {n} (a int); insert into {n} values (0); alter table {n} enable row level security;"
                 "create policy p on {n} using ({f}() = 0)", "select count(*)::int - 1 from {n}"),
    "a polymorphic function": ("create function {n}(anyelement) returns int language plpgsql stable as 'begin return {f}(); end'", "select {n}('x'::text)"),
    "a variadic function": ("create function {n}(variadic int[]) returns int language plpgsql stable as 'begin return {f}(); end'", "select {n}(1, 2, 3)"),
    "one of two overloads": ("create function {n}(text) returns int language sql stable as 'select 0';"
                             "create function {n}(int) returns int language plpgsql stable as 'begin return {f}(); end'", "select {n}(1)"),
    "a column notation": ("create table {n}_t (a int); insert into {n}_t values (1);"
                          "create function {n}({n}_t) returns int language plpgsql stable as 'begin return {f}(); end'", "select x.{k} from {n}_t x"),
    "a set of rows": ("create function {n}() returns setof int language plpgsql stable as 'begin return next {f}(); end'", "select * from {n}()"),
    "a table's function": ("create function {n}() returns table (a int) language plpgsql stable as 'begin a := {f}(); return next; end'", "select a from {n}()"),
}  # fmt: skip
"""Objects that reads run: how they are made, and a statement that returns what the link before returns. {op}: an operator of its own."""

TRIGGER = "create function {n}_f() returns trigger language plpgsql as 'begin perform {f}(); return new; end';"
CHECKED = "create function {n}_i(int) returns int language plpgsql immutable as 'begin return {f}(); end';"
CHANGES = {
    "a column's default": ("create table {n} (a int default {f}(), b int)", "insert into {n} (b) values (1)"),
    "a generated column": (CHECKED + "create table {n} (a int, b int generated always as ({n}_i(a)) stored)", "insert into {n} values (1)"),
    "a check": (CHECKED + "create table {n} (a int check ({n}_i(a) = 0))", "insert into {n} values (1)"),
    "a rule": ("create table {n} (a int); create rule r as on insert to {n} do also select {f}()", "insert into {n} values (1)"),
    "a rule in place": ("create table {n} (a int); create rule r as on insert to {n} do instead select {f}()", "insert into {n} values (1)"),
    "a policy's check": ("create table {n} (a int); alter table {n} enable row level security;"
                         "create policy p on {n} for insert with check ({f}() = 0)", "insert into {n} values (1)"),
    "a trigger": (TRIGGER + "create table {n} (a int); create trigger t before insert on {n} for each row execute function {n}_f()",
                  "insert into {n} values (1)"),
    "a trigger at the end": (TRIGGER + "create table {n} (a int); create constraint trigger t after insert on {n} deferrable initially deferred "
                             "for each row execute function {n}_f()", "insert into {n} values (1)"),
    "a trigger of an update": (TRIGGER + "create table {n} (a int); insert into {n} values (1);"
                               "create trigger t before update of a on {n} for each row execute function {n}_f()", "update {n} set a = a"),
    "a trigger in place of a change": (TRIGGER + "create view {n} as select 1 as a;"
                                       "create trigger t instead of insert on {n} for each row execute function {n}_f()", "insert into {n} values (1)"),
    "an index": (CHECKED + "create table {n} (a int); create index on {n} ({n}_i(a))", "insert into {n} values (1)"),
    "an index's predicate": (CHECKED + "create table {n} (a int); create index on {n} (a) where {n}_i(a) = 0", "insert into {n} values (1)"),
    "a column of a domain": ("create domain {n}_d as int check ({f}() = 0); create table {n} (a {n}_d)", "insert into {n} values (1)"),
    "a procedure": ("create procedure {n}() language plpgsql as 'begin perform {f}(); end'", "call {n}()"),
    "a function that changes rows": ("create table {n}_t (a int); create function {n}() returns int language plpgsql as "
                                     "'begin insert into {n}_t values ({f}()); return 0; end'", "select {n}()"),
}  # fmt: skip
"""Objects that run it when something changes."""

EVENT = """
create function {s}.on_command() returns event_trigger language plpgsql as $$ begin
  if exists (select from pg_event_trigger_ddl_commands() where schema_name = '{s}') then perform {f}(); end if; end $$;
create event trigger {s} on ddl_command_end when tag in ('COMMENT') execute function {s}.on_command();
create table {s}.commented (a int); alter table {s}.commented owner to alice
"""


@dataclass(frozen=True)
class Chain:
    """Objects in a schema of their own, and a statement that leads to a function with an effect through all of them."""

    seed: int
    kinds: tuple
    made: tuple
    statement: str
    changes: bool

    def __str__(self):
        return f"seed {self.seed}, {' <- '.join(reversed(self.kinds))}: {self.statement}\n  " + "\n  ".join(self.made)


def chain_of(seed, major, start=None):
    """The chain of a seed. `start`: the function with the effect."""
    chance = random.Random(seed)
    schema = f"hidden{seed}"
    function, kinds, made = start or "hidden.act", [], [f"create schema {schema}", f"grant all on schema {schema} to public"]
    statement, changes = f"select {function}()", False
    for number in range(chance.choice([1, 2, 2, 3, 3, 4])):
        name = f"k{number}"
        words = {"s": schema, "k": name, "n": f"{schema}.{name}", "f": function, "op": "#" * 3 + "+-*"[number % 3] + "#",
                 "v": chance.choice(["volatile", "stable", "immutable"])}  # fmt: skip
        pool = chance.choice([ROUTINES, READS, READS, CHANGES])
        kind = chance.choice(sorted(pool))
        if kind == "in standard SQL" and major < 14 or kind == "found by search_path" and not number:
            kind = "in PL/pgSQL"
        kinds.append(kind)
        if pool is ROUTINES:
            made.append(ROUTINES[kind].format(**words, bare=function.removeprefix(f"{schema}.")))
            function = NAMED.get(kind, "{n}").format(**words)
            statement = f"select {function}()"
            continue
        sql, statement = (part.format(**words) for part in pool[kind])
        made += [sql, f"grant all on all tables in schema {schema} to public"]
        changes |= pool is CHANGES
        # What the next link runs.
        function = f"{schema}.{name}_next"
        body = f"{statement}; return 0" if pool is CHANGES and not statement.startswith("select") else f"return ({statement})"
        made.append(f"create function {function}() returns int language plpgsql as $$ begin {body}; end $$")
    if chance.random() < 0.05:
        kinds.append("an event trigger")
        made.append(EVENT.format(s=schema, f=function))
        statement, changes = f"comment on table {schema}.commented is 'x'", True
    return Chain(seed, tuple(kinds), tuple(made), statement, changes)


class Hunt:
    """Holds chains against a cluster and the pooler of an arena. `faults` are texts."""

    def __init__(self, arena):
        self.arena, self.faults = arena, []
        self.tried, self.met, self.at_standbys = 0, 0, 0
        """Effects that were tried, those that came about, and reads that standbys were given."""
        self.beside = arena.cluster.connect(DATABASE)
        self.beside.execute(WANTED.replace("{port}", str(arena.cluster.port)))
        # At the primary nothing else gets this lock.
        self.beside.execute("select pg_advisory_lock(4716)")

    def close(self):
        """Leaves the database as it was."""
        self.beside.execute("drop schema hidden cascade")
        self.beside.close()

    def run(self, seeds):
        """Makes the chains of these seeds, a few at a time, tries each, and drops them."""
        for first in range(0, len(seeds), BATCH):
            self._batch(seeds[first : first + BATCH])

    def _batch(self, seeds):
        starts = STARTS if self.arena.standbys else STARTS[:1]
        chains = [(chain_of(seed, int(self.arena.cluster.major), starts[seed % len(starts)]), starts[seed % len(starts)]) for seed in seeds]
        try:
            for chain, _ in chains:
                for sql in chain.made:
                    self.beside.execute(sql)
            if self.arena.standbys:
                self.arena.await_standbys()
            pooler = self.arena.fresh_pooler(Round(1, {}, ()))
            for chain, start in chains:
                for effect in LOOKS if start == STARTS[0] else ["nothing"]:
                    self._try(pooler, chain, effect)
                    self.tried += 1
            self.at_standbys += self.arena.reads_at_standbys()[0]
        finally:
            for chain, _ in chains:
                self.beside.execute(f"drop event trigger if exists hidden{chain.seed}; drop schema if exists hidden{chain.seed} cascade")

    def _try(self, pooler, chain, effect):
        look = LOOKS.get(effect, "select false")
        self._want(effect)
        wanted = self._direct(chain.statement, look)
        # A server that has run the statement before has its plans, in which calls of IMMUTABLE functions are values already.
        pooler.admin("RECONNECT")
        self.met += wanted[0] is None and (wanted[3] == [["t"]] or wanted[2] > 0 or effect == "nothing")
        with pooler.raw(DATABASE) as caller, pooler.raw(DATABASE) as other:
            before = self._written()
            answer = caller.query(chain.statement)
            written = self._written() - before
            code = answer.error["C"] if answer.errors else None
            got = (code, answer.rows, written, caller.query(look).rows)
            if got != wanted and not (code and wanted[0] == code):
                self.faults.append(f"{effect}: PostgreSQL {wanted}, the pooler {got}\n{chain}")
            # From here on the code does nothing.
            self._want("nothing")
            caller.terminate()
            found = other.query(look).rows
            other.terminate()
            if found != [["f"]]:
                self.faults.append(f"{effect}: reaches the next client, {found}\n{chain}")

    def _direct(self, statement, look):
        # A server of the pooler that was left with the lock must be a fault, not a hang.
        with self.arena.cluster.connect(DATABASE, user="alice", options="-c lock_timeout=2s") as session:
            before = self._written()
            try:
                cursor = session.execute(statement)
                rows = [[None if value is None else str(value) for value in row] for row in cursor.fetchall()] if cursor.description else []
                code = None
            except psycopg.Error as error:
                rows, code = [], error.sqlstate
            written = self._written() - before
            return code, rows, written, [["t" if session.execute(look).fetchone()[0] else "f"]]

    def _want(self, effect):
        self.beside.execute("update hidden.wanted set name = %s", [effect])
        if self.arena.standbys:
            self.arena.await_standbys()

    def _written(self):
        return self.beside.execute("select count(*) from hidden.log").fetchone()[0]


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each chain has the next one")
    parser.add_argument("--major", default=clusters.DISTRIBUTION, help="PostgreSQL's major version")
    parser.add_argument("--standbys", type=int, default=0, help="this many standbys, to which the pooler sends reads (route=auto)")
    parser.add_argument("--most", type=int, default=10, help="stop after this many faults")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the pooler")
    given = parser.parse_args()
    folder = scratch_folder("tls")
    certificates = Certificates(folder / "files")
    cluster = clusters.Cluster(given.major, certificates)
    standbys = [clusters.Cluster(given.major, certificates, follows=cluster) for _ in range(given.standbys)]
    arena = Arena(cluster, standbys, **pairs(given.set))
    hunt = Hunt(arena)
    try:
        for first in range(given.seed, given.seed + given.chains, BATCH):
            known = len(hunt.faults)
            hunt.run(range(first, min(first + BATCH, given.seed + given.chains)))
            print(*hunt.faults[known:], sep="\n", flush=True)
            if len(hunt.faults) >= given.most:
                break
    finally:
        hunt.close()
        faults = arena.finish()
        for node in [*standbys, cluster]:
            node.discard()
        shutil.rmtree(folder)
    print(f"{hunt.tried} effects, of which {hunt.met} came about, {hunt.at_standbys} reads at standbys, of chains from seed {given.seed} on PostgreSQL {given.major}: {len(hunt.faults)} faults", *faults, sep="\n")
    sys.exit(1 if hunt.faults or faults else 0)


if __name__ == "__main__":
    main()

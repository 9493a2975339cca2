"""Where rounds are played: one cluster, a database with what the sessions use, and a pooler for each size of a pool.

Each round gets a pool of its own (a database name that the pooler has not heard before), so that nothing is known there of the
rounds before. `clean` puts the tables and sequences back between two plays.
"""

import itertools
from dataclasses import dataclass

import psycopg

from harness.machine import eventually
from harness.pooler import Pooler
from sessions import cache, rules, told
from sessions.play import Player

DATABASE = "sessions"
CLIENTS = 8
"""For how many clients there are objects: the schemas c0, c1, ..."""

OBJECTS = """
create schema fz;
grant usage on schema fz to public;
create function fz.put(text, text) returns text language plpgsql as 'begin return set_config($1, $2, false); end';
create function fz.put_local(text, text) returns text language plpgsql as 'begin return set_config($1, $2, true); end';
create function fz.tenant(text) returns void language plpgsql as 'begin perform set_config(''body.tenant'', $1, false); end';
create function fz.zone(text) returns void language plpgsql as 'begin execute format(''set timezone = %L'', $1); end';
create function fz.reset_zone() returns void language plpgsql as 'begin execute ''reset timezone''; end';
create function fz.reset_all() returns void language plpgsql as 'begin reset all; end';
create function fz.own_value() returns text language sql set work_mem = '9MB' as 'select current_setting(''work_mem'')';
create function fz.sql_tenant(text) returns text language sql as 'select set_config(''body.tenant'', $1, false)';
create function fz.prepare_it(text, text) returns void language plpgsql as 'begin execute format(''prepare %I as select %L'', $1, $2); end';
create function fz.deallocate_it(text) returns void language plpgsql as 'begin execute format(''deallocate %I'', $1); end';
create function fz.temporary(text) returns void language plpgsql as 'begin execute format(''create temp table %I (v text)'', $1); end';
create function fz.fail() returns int language plpgsql as 'begin perform set_config(''body.tenant'', ''failed'', false); return 1/0; end';
create procedure fz.enter(text) language plpgsql as 'begin perform set_config(''body.tenant'', $1, false); end';
create procedure fz.enter_twice(text) language plpgsql
    as 'begin perform set_config(''body.tenant'', $1, false); commit; set work_mem = ''6MB''; end';
create function fz.on_insert() returns trigger language plpgsql
    as 'begin perform set_config(''body.trigger'', new.v, false); return new; end';
grant execute on all functions in schema fz to public;
grant bob to alice;
"""

OF_CLIENT = """
create schema c{n};
grant all on schema c{n} to public;
create table c{n}.t (id serial primary key, v text);
create table c{n}.watched (v text);
create trigger on_insert before insert on c{n}.watched for each row execute function fz.on_insert();
create table c{n}.shaped (id int, v int);
create sequence c{n}.s;
grant all on all tables in schema c{n} to public;
grant all on all sequences in schema c{n} to public;
"""

CONFUSED = b"MStartTransactionCommand: unexpected state"
"""PostgreSQL's answer (XX000, an internal error) if it has to start a transaction while it begins another one: 18 says so to a
client that notifies itself in an extended query that a simple query ends."""

CLEAN = """
do $$
declare r record;
begin
    while exists (select from pg_locks where locktype = 'advisory') loop perform pg_sleep(0.001); end loop;
    for r in select c.oid::regclass as name from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname ~ '^(c[0-9]|public)' and c.relname like 'made%' and c.relkind = 'r' loop
        execute 'drop table ' || r.name;
    end loop;
    for n in 0..{last} loop
        execute format('delete from c%s.t; delete from c%s.watched', n, n);
        perform setval(format('c%s.t_id_seq', n)::regclass, 1, false), setval(format('c%s.s', n)::regclass, 1, false);
    end loop;
end $$
"""

RESHAPE = """
drop table c{n}.shaped;
create table c{n}.shaped (id int, v int);
grant all on c{n}.shaped to public;
insert into c{n}.shaped select g, g from generate_series(1, 3) g;
"""
"""The table whose columns change, as it is at first."""


class Invalid(Exception):
    """A round that hangs with PostgreSQL itself, crashes it or shows an internal error: nothing can be compared."""


@dataclass
class Difference:
    """Two answers that should have been equal."""

    client: int
    group: int
    wanted: list
    got: list

    def signature(self):
        """What kind of difference it is: shrinking keeps to it."""
        first = next((p for p in itertools.zip_longest(self.wanted, self.got) if p[0] != p[1]), (None, None))
        return tuple(m and (m[0], dict(m[1]).get("C") if m[0] in ("E", "N") else None) for m in first)

    def is_of_end(self):
        """Only the pooler says that a connection has ended."""
        return any(tag == "E" and dict(fields).get("S") == "FATAL" for tag, fields in self.got)

    def __str__(self):
        lines = [f"client {self.client}, its answer {self.group + 1}:"]
        lines += ["  PostgreSQL: " + " ".join(map(rules.shown, self.wanted))]
        lines += ["  the pooler: " + " ".join(map(rules.shown, self.got))]
        return "\n".join(lines)


@dataclass
class Misled:
    """A row that a client would take for something else, because it was told other columns."""

    row: str

    def signature(self):
        """What kind of difference it is."""
        return ("misled",)

    def is_of_end(self):
        """It is of a row."""
        return False

    def __str__(self):
        return f"a client is misled {self.row}"


WATCH = "check_interval_ms=100 check_timeout_ms=5000 down_after_ms=20000 primary_max_age_ms=60000"
"""How the pooler watches nodes to which nothing happens, on a machine that may be slow."""


class Arena:
    """Plays rounds on this cluster, and on its standbys if there are some. `settings` go to the poolers, `options` to the cluster."""

    def __init__(self, cluster, standbys=(), options=None, **settings):
        self.cluster = cluster
        self.standbys = standbys
        self.options = {"route": "auto", "causal_reads": "database", "causal_wait_ms": 2000, **(options or {})}
        self.settings = settings
        self.drawn = {}
        """The settings of the round that was played last; those of the cluster have `cluster.` before their names."""
        self.faults = []
        """What was wrong with poolers that have been stopped."""
        self.poolers = {}
        self.consoles = {}
        self.numbers = itertools.count()
        self.rules = rules.RULES
        self.incomparable = 0
        self.hits = 0
        """How many answers clients were given from the query cache."""
        self.crashes = []
        """The rounds that crashed PostgreSQL."""
        self._make_database()
        self.beside = self._beside()
        self.lasting = {oid for (oid,) in self.beside.execute("select oid::int8 from pg_class where oid >= 16384").fetchall()}

    def _beside(self):
        """A connection beside the rounds, or None while PostgreSQL recovers."""
        try:
            return self.cluster.connect(DATABASE, options="-c lock_timeout=5s -c synchronous_commit=on")
        except psycopg.OperationalError:
            return None

    def _make_database(self):
        if self.cluster.sql("select 1 from pg_database where datname = %s", [DATABASE]):
            return
        self.cluster.sql(f"create database {DATABASE}")
        self.cluster.sql(OBJECTS, database=DATABASE)
        for n in range(CLIENTS):
            self.cluster.sql(OF_CLIENT.format(n=n), database=DATABASE)

    def pooler(self, played):
        """The pooler with the round's settings whose pools have its number of servers."""
        servers = played.servers
        if played.settings != self.drawn:
            self._stop_poolers()
            self.drawn = played.settings
        if servers not in self.poolers:
            at = f"cluster=main dbname={DATABASE}" if self.standbys else self.cluster.at(DATABASE)
            where = {"*": at, "sessions": at}
            options = {"default_pool_size": servers, "autodb_idle_timeout": 3, "query_wait_timeout": 60, "query_wait_notify": 0, **self.followed(), **self.settings}
            options.update({name: value for name, value in self.drawn.items() if not name.startswith("cluster.")})
            pooler = self.poolers[servers] = Pooler(where, ini_tail=self._sections(), **options)
            self.consoles[servers] = pooler.console()
            states = ["primary"] + ["standby"] * len(self.standbys)
            eventually(lambda: not self.standbys or [row["state"] for row in pooler.show("NODES")] == states, "all nodes are known")
        return self.poolers[servers]

    def fresh_pooler(self, played):
        """The same, started for this call: it knows nothing yet."""
        self._stop_poolers()
        return self.pooler(played)

    def _sections(self):
        """The rules of the query cache, and with standbys the sections [nodes] and [clusters]."""
        if not self.standbys:
            return cache.RULES
        nodes = [self.cluster, *self.standbys]
        lines = ["[nodes]", *(f"m{n} = host=127.0.0.1 port={node.port}" for n, node in enumerate(nodes, 1)), "[clusters]"]
        names = ",".join(f"m{n}" for n in range(1, len(nodes) + 1))
        drawn = {name.removeprefix("cluster."): value for name, value in self.drawn.items() if name.startswith("cluster.")}
        words = " ".join(f"{name}={value}" for name, value in {**self.options, **drawn}.items())
        return "\n".join([*lines, f"main = nodes={names} check_user=postgres {WATCH} {words}", cache.RULES])

    def reads_at_standbys(self):
        """How many reads standbys were given, and how many of them the primary ran after that."""
        rows = [row for pooler in self.poolers.values() for row in pooler.show("NODES") if row["state"] == "standby"]
        return tuple(sum(int(row[name]) for row in rows) for name in ("reads", "second_tries"))

    def followed(self):
        """PostgreSQL 18 is the first to report search_path. (session-state.md, What is not seen.)"""
        return {"track_extra_parameters": "IntervalStyle,search_path"} if int(self.cluster.major) >= 18 else {}

    def caches(self, played):
        """Whether the pooler of this round gives answers again."""
        return cache.caches({**self.settings, **played.settings})

    def clean(self, played):
        """Everything as it was before the first round."""
        self.beside.execute(CLEAN.replace("{last}", str(CLIENTS - 1)))
        for n in played.startups:
            if any(f"c{n}.shaped" in text for text in played.texts()):
                self._do_beside(RESHAPE.format(n=n))

    def await_standbys(self):
        """Waits until each standby has replayed what the connection beside the rounds has done: the pooler knows nothing of it."""
        if self.standbys:
            ((written,),) = self.beside.execute("select pg_current_wal_flush_lsn()::text").fetchall()
            for standby in self.standbys:
                replayed = lambda: standby.sql("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [written]) == [(True,)]  # noqa: B023
                eventually(replayed, "the standby has replayed it")

    def direct(self, played):
        """The clients, played to PostgreSQL itself."""
        self.clean(played)
        player = Player(f"{self.cluster.folder}/.s.PGSQL.{self.cluster.port}", DATABASE, lambda sql, then=None: self._do_beside(sql), lambda clients: True)
        clients = player.play(played)
        if player.hung or any(tag == "E" and CONFUSED in body for client in clients.values() for tag, body in client.told):
            self.incomparable += 1
            raise Invalid(str(played))
        return clients

    def pooled(self, played):
        """The clients, played through a pool that has just been opened."""
        pooler = self.pooler(played)
        self.clean(played)
        database = f"round{next(self.numbers)}"
        console = self.consoles[played.servers]

        def purge():
            # The cache does not see what did not go through the pooler, nor what the client changed on a connection before.
            # (query-cache.md, What is promised.)
            if self.caches(played):
                # An error says that the database has no pool yet.
                console.query(f"CACHE PURGE {database}")

        def meanwhile(sql, then=None):
            self._do_beside(sql)
            purge()
            if then:
                assert not console.query(f"{then} {database}").errors

        def shown(topic):
            answer = console.query(f"SHOW {topic}")
            rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
            return [row for row in rows if row["database"] == database]

        def are(clients):
            # A client that said Terminate leaves at once, and its server runs what it had sent.
            return len(shown("CLIENTS")) == clients and not [row for row in shown("SERVERS") if row["state"] == "active" and not row["link"]]

        try:
            return Player(pooler.unix_address, database, meanwhile, are, purge).play(played)
        finally:
            if self.caches(played):
                self.hits += sum(int(row["hits"]) + int(row["coalesced"]) for row in shown("CACHE"))
            console.query(f"RECONNECT {database}")

    def _do_beside(self, sql):
        """Another session's SQL, without going through the pooler."""
        try:
            self.beside.execute(sql)
        except psycopg.errors.LockNotAvailable as error:
            raise Invalid(sql) from error
        self.await_standbys()

    def compare(self, played):
        """Plays the round on both sides; the first difference of any client, or what misleads one, or None."""
        try:
            found = self._difference(played, self.direct(played), self.pooled(played))
            if found and found.is_of_end():
                # A crash of PostgreSQL behind the pooler, perhaps. It ends the connection beside the rounds a moment later.
                self.beside.execute("select pg_sleep(1)")
        except psycopg.OperationalError as error:
            # The crash of one backend ends them all, and so the connection beside them.
            self.incomparable += 1
            self.crashes.append(played)
            self.beside = eventually(self._beside, "PostgreSQL is up again", timeout_s=30)
            raise Invalid(str(played)) from error
        return found

    def _difference(self, played, direct, pooled):
        """What misleads a client, or the first difference of any, or None."""
        for name, clients in (("PostgreSQL", direct), ("the pooler", pooled)):
            try:
                misled = next(filter(None, map(told.misled, clients.values())), None)
            except told.Misread as error:
                misled = f"answers that fit no message: {error}"
            if misled:
                return Misled(f"by {name}: {misled}")
        made_up = {**self.settings, **played.settings}.get("pool_mode") == "session"
        for number in played.startups:
            wanted, got = (rules.groups(side[number], self.lasting, made_up) for side in (direct, pooled))
            found = rules.difference(wanted, got, played.started(number), self.rules, played.prepared(number))
            if found:
                return Difference(number, *found)
        return None

    def _stop_poolers(self):
        for console in self.consoles.values():
            console.hang_up()
        self.faults += [fault for pooler in self.poolers.values() for fault in pooler.finish()]
        self.poolers, self.consoles = {}, {}

    def finish(self):
        """Stops the poolers; what was wrong with them."""
        self.beside.close()
        self._stop_poolers()
        return self.faults

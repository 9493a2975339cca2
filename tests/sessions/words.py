"""The statements that sessions are made of, by topic. Each function is a topic: it returns one statement of it.

What the clients of a round share on purpose: names of settings, of prepared statements, of temporary tables, cursors. What they do
not share, so that no client changes another's answers: values (each begins with its client's number), schemas, channels, keys of locks.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """A statement, and the values of its parameters if it goes through the extended protocol only."""

    sql: str
    values: tuple = ()
    data: tuple = ()
    """Lines for its COPY FROM STDIN."""


BUILTIN = {
    "work_mem": ["1MB", "2MB", "64kB", "3072"],
    "TimeZone": ["UTC", "Asia/Tokyo", "America/New_York", "+3"],
    "DateStyle": ["ISO, DMY", "German", "SQL", "Postgres, MDY"],
    "IntervalStyle": ["iso_8601", "postgres_verbose"],
    "application_name": ["one", "two words", "Aa", ""],
    "client_encoding": ["UTF8", "LATIN1", "WIN1252"],
    "search_path": ["pg_catalog", "public", "nowhere", "public, nowhere"],
    "extra_float_digits": ["0", "-3"],
    "statement_timeout": ["1min", "55555"],
    "bytea_output": ["escape"],
    "default_transaction_isolation": ["serializable"],
    "enable_seqscan": ["off"],
    "lock_timeout": ["59s"],
    "standard_conforming_strings": ["off", "on"],
}
CUSTOM = ["tenant.id", "app.user_id", "a.b", "Shop.Tenant", "body.tenant", "body.trigger", "deep.er.name"]
"""Names of settings of the users' own."""
NAMES = ["p1", "p2", "P 3"]
"""Names of prepared statements."""


def literal(text):
    """A string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def value(at):
    """A value that tells whose it is."""
    at.values += 1
    return f"{at.client}v{at.values}" + at.pick(["", "", "", " x", "'q", "\\" if at.may("backslashes") else "", "ä"])


def cased(at, word):
    """A key word in some case."""
    return at.pick([word, word, word.upper(), word.capitalize()])


def gap(at):
    """What may stand between two words."""
    return at.pick([" ", " ", " ", " ", "  ", "\n", "\t", " /* x */ ", "/**/", " -- x\n"]) if at.may("comments") else " "


def spelled(at, name):
    """The name of a setting as it may be written."""
    how = at.chance.random()
    if not at.may("quoted names") or how < (0.1 if at.secretive else 0.6):
        return at.pick([name, name, name.lower(), name.upper()])
    parts = name.split(".")
    if how < 0.75:
        return ".".join(f'"{part}"' for part in parts)
    if how < 0.85:
        return at.pick([" . ", "./**/", " .", ". "]).join(parts)
    if how < 0.92:
        return (
            'U&"' + ".".join(parts).replace("e", "\\0065") + '"'
            if len(parts) == 1
            else ".".join('U&"' + p.replace("e", "\\0065") + '"' for p in parts)
        )
    return ".".join(at.pick([part, f'"{part}"']) for part in parts)


def setting(at):
    """A name and a value for it."""
    if at.chance.random() < 0.5:
        return at.pick(at.custom), value(at)
    name = at.pick(list(BUILTIN))
    return name, at.pick(BUILTIN[name])


def assigned(name, shown):
    """The value as SET takes it."""
    return shown if name == "search_path" else literal(shown)


def sets(at):
    """SET in its forms."""
    name, shown = setting(at)
    how = at.chance.random()
    if how < 0.1:
        return Statement(at.pick(["set time zone 'Europe/Paris'", "SET TIME ZONE -7", "set time zone local", "set names 'LATIN1'",
            "set names" if at.may("null settings") else "set names 'UTF8'",
                                  "set session characteristics as transaction isolation level serializable",
                                  "set time zone interval '+02' hour to minute"]))  # fmt: skip
    words = [cased(at, "set")]
    if how < 0.35:
        words.append(at.pick(["session", "local", "LOCAL"]))
    words += [spelled(at, name), at.pick(["=", "to"])]
    words.append("default" if how > 0.9 else assigned(name, shown))
    return Statement(gap(at).join(words))


def resets(at):
    """RESET in its forms, DISCARD."""
    how = at.chance.random()
    if how < 0.5:
        return Statement(f"{cased(at, 'reset')}{gap(at)}{spelled(at, setting(at)[0])}")
    return Statement(at.pick(["reset all", "RESET ALL", "discard all", "DISCARD ALL", "discard all", "discard plans", "discard temp", "reset/**/all",
                              "reset session authorization", "reset role", "discard sequences"]))  # fmt: skip


def set_config(at):
    """set_config, with literals, computed or bound."""
    name, shown = setting(at)
    keeps = at.pick(["false", "false", "false", "true"])
    how = at.chance.random() * (0.5 if at.secretive else 1)
    if how < 0.1 and at.may("null settings") and not (at.started and name in CUSTOM):
        # A custom setting from the startup packet is left empty, and the value that it returns is the server's until the
        # statement is over. (session-state.md, What is not seen.)
        return Statement(f"select set_config({literal(name)}, null, {keeps}) is null")
    if how < 0.35:
        return Statement(f"select set_config($1, $2, {keeps})", (name, shown))
    if how < 0.5 and at.may("computed names"):
        return Statement(f"select set_config({literal(name[:2])} || {literal(name[2:])}, {literal(shown)}, {keeps})")
    if how < 0.6:
        return Statement(f"with x as (select set_config({literal(name)}, {literal(shown)}, {keeps}) as v) select v from x")
    if how < 0.66:
        return Statement(f"update pg_settings set setting = {literal(at.pick(BUILTIN['work_mem'][3:]))} where name = 'work_mem'")
    return Statement(f"select {at.pick(['', 'pg_catalog.'])}set_config({literal(name)}, {literal(shown)}, {keeps})")


def looks(at):
    """Reads settings: its own and what is not its own."""
    how = at.chance.random() * (0.8 if at.secretive else 1)
    name = setting(at)[0]
    if how < (0.5 if at.secretive else 0.25):
        names = at.chance.sample(CUSTOM, at.pick([1, 2, len(CUSTOM)]))
        return Statement("select " + ", ".join(f"current_setting('{n[:3]}' || '{n[3:]}', true)" for n in names))
    if how < 0.35:
        return Statement("select $1::text, current_setting($1, true)", (name,))
    if how < 0.55:
        return Statement(f"{cased(at, 'show')} {at.pick(list(BUILTIN))}")
    if how < 0.65:
        return Statement("select current_user, session_user, current_setting('role'), now() is null")
    if how < 0.8:
        names = ", ".join(literal(n) for n in at.chance.sample(sorted(BUILTIN), at.pick([1, 3, len(BUILTIN)])))
        return Statement(f"select name, setting from pg_settings where name in ({names}) order by name")
    if how < 0.85 and at.may("many names"):
        return Statement("select count(*) from generate_series(0, 399) g where current_setting('many' || '.n' || g, true) <> ''")
    return Statement(f"select current_setting({literal(name)}, true)")


def many(at):
    """More names than a list may hold."""
    count = at.pick([65, 70, 100, 300]) if at.may("many names") else 30
    who = at.client
    how = at.chance.random()
    if how < 0.35:
        return Statement("; ".join(f"set many.n{n} = '{who}'" for n in range(count)))
    if how < 0.65:
        return Statement("select " + ", ".join(f"set_config('many.n{n}', '{who}', false)" for n in range(count)))
    if how < 0.8:
        return Statement(f"select count(set_config('many.n' || g, '{who}', false)) from generate_series(0, {count - 1}) g")
    long = "long." + "x" * at.pick([40, 58, 120, 130] if at.may("long identifiers") else [40, 58])
    return Statement(f"set {long} = '{who}'")


def bodies(at):
    """Functions, procedures and DO blocks that change the session."""
    shown = literal(value(at))
    calls = [f"select fz.put('tenant.id', {shown})", f"select fz.put_local('tenant.id', {shown})", f"select fz.tenant({shown})",
             f"select fz.zone({literal(at.pick(BUILTIN['TimeZone']))})", "select fz.own_value()", f"select fz.sql_tenant({shown})",
             f"call fz.enter({shown})", f"call fz.enter_twice({shown})", "select fz.fail()",
             f"insert into c{at.client}.watched values ({shown})"]  # fmt: skip
    if at.may("resets in a body"):
        calls += ["select fz.reset_zone()", "select fz.reset_all()", "do $$begin reset all; end$$", "do $$begin execute 'reset timezone'; end$$",
                  "do $$begin reset datestyle; perform 1/0; exception when others then null; end$$"]  # fmt: skip
    calls += [f"do $$begin perform set_config('a.b', {shown}, false); end$$", "do $$begin set work_mem = '5MB'; end$$",
              f"do $$begin set a.b = {shown}; raise exception 'no'; end$$"]  # fmt: skip
    return Statement(at.pick(calls))


def prepared(at):
    """PREPARE, EXECUTE and DEALLOCATE by SQL."""
    name = at.pick(NAMES)
    quoted = f'"{name}"' if name != name.lower() or " " in name else at.pick([name, name, name.upper(), f'"{name}"'])
    how = at.chance.random()
    if how < 0.35:
        body = at.pick([f"select {literal(value(at))}", "select current_setting('tenant' || '.id', true)",
        f"select v from c{at.client}.t order by id",
                        f"select set_config('{'tenant.id' if at.may('prepared settings') else 'work_mem'}', '{at.client}MB', false)",
                        "select now() is null, 'copy'"])  # fmt: skip
        return Statement(f"{cased(at, 'prepare')} {quoted} as {body}")
    if how < 0.4:
        return Statement(f"prepare {quoted} (int, text) as select $1 + 1, $2")
    if how < 0.65:
        return Statement(f"{cased(at, 'execute')} {quoted}" + at.pick(["", "", "(1, 'x')"]))
    if how < 0.8:
        return Statement(f"{cased(at, 'deallocate')} {at.pick(['', 'prepare '])}{quoted}")
    if how < 0.85:
        return Statement("deallocate all")
    if how < 0.9 and at.may("prepared in a body"):
        act = at.pick([f"prepare {quoted} as select 4", f"deallocate {quoted}"])
        return Statement(f"do $$begin execute {literal(act)}; end$$")
    if at.may("pg_prepared_statements"):
        return Statement("select name, statement, parameter_types::text, from_sql from pg_prepared_statements order by name")
    return Statement("select 1")


def temporary(at):
    """Temporary tables, of the same names for all clients."""
    name = at.pick(["tt", "tu"])
    return Statement(at.pick([
        f"create temp table {name} (v text)", f"create temporary table {name} (v text) on commit drop",
        f"create temp table {name} on commit delete rows as select {literal(value(at))} as v", f"select {literal(value(at))} as v into temp {name}",
        f"insert into {name} values ({literal(value(at))})", f"select * from {name}", f"select * from {name}", f"drop table {name}",
        f"drop table if exists {name}",
        "select count(*) from pg_class where relnamespace = pg_my_temp_schema()", "discard temp", f"select fz.temporary('{name}')",
        "create function pg_temp.f() returns int language sql as 'select 7'", "select pg_temp.f()", "set search_path = pg_temp, public",
    ]))  # fmt: skip


def cursors(at):
    """Cursors with and without hold."""
    return Statement(at.pick([
        f"declare c1 cursor with hold for select v from (values ({literal(value(at))}), ('b'), ('c')) x (v)", "fetch 1 from c1", "fetch 2 from c1",
        "declare c2 cursor for select generate_series(1, 5)", "fetch 2 from c2", "close c1", "close all", "move 1 in c1",
        "select name, is_holdable from pg_cursors order by 1",
    ]))  # fmt: skip


def locks(at):
    """Advisory locks of the session and of the transaction."""
    key = at.key + at.pick([0, 1])
    return Statement(at.pick([
        f"select pg_advisory_lock({key})", f"select pg_advisory_lock({key})", f"select pg_advisory_unlock({key})", "select pg_advisory_unlock_all()",
        f"select pg_advisory_xact_lock({key})", f"select pg_advisory_lock_shared({key})",
        f"select pg_advisory_lock({key}) from generate_series(1, 3)",
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
    ]))  # fmt: skip


def listening(at):
    """LISTEN and NOTIFY on channels of its own."""
    channel = at.pick([f"ch{at.client}", f"ch{at.client}", f'"Ch {at.client}"'])
    return Statement(at.pick([
        f"listen {channel}", f"listen {channel}", f"notify {channel}", f"notify {channel}, {literal(value(at))}", f"unlisten {channel}", "unlisten *",
        f"select pg_notify({literal(channel.strip(chr(34)))}, {literal(value(at))})", "select pg_listening_channels() order by 1",
        "select pg_listening_channels() order by 1",
    ]))  # fmt: skip


def sequences(at):
    """Draws values; what asks for drawn ones is made by the generator, which knows what was drawn."""
    n = at.client
    return Statement(at.pick([
        f"select nextval('c{n}.s')", f"insert into c{n}.t (v) values ({literal(value(at))}) returning id",
        f"insert into c{n}.t (v) values ({literal(value(at))})",
        f"select setval('c{n}.s', 50)", f"select nextval('c{n}.s'), currval('c{n}.s'), lastval()", f"select max(id), count(*) from c{n}.t",
    ]))  # fmt: skip


def roles(at):
    """SET ROLE and SET SESSION AUTHORIZATION."""
    return Statement(at.pick([
        "set role bob", "set role none", "reset role", "set local role bob", "set session authorization alice", "set session authorization default",
        "set role nobody_there", "select current_user, session_user", "select current_user, session_user", "set session authorization bob",
        "select set_config('role', 'bob', false)", "set role to 'bob'", 'set role "bob"', "set session role bob",
    ]))  # fmt: skip


def copies(at):
    """COPY in and out, and the word where it is not a COPY."""
    n = at.client
    how = at.chance.random()
    if how < 0.4:
        lines = tuple(f"{literal(value(at))[1:-1].replace(chr(92), '')}\n" for _ in range(at.pick([0, 1, 3])))
        return Statement(f"copy c{n}.t (v) from stdin", data=lines or ("",))
    if how < 0.5:
        return Statement(f"copy c{n}.t (id, v) from stdin", data=("not a number\tx\n",))
    return Statement(at.pick([f"copy (select v from c{n}.t order by id) to stdout", "copy (select set_config('a.b', 'copied', false)) to stdout",
                              "select 'copy'", "copy nothing_there to stdout", "copy (select 1/0) to stdout"]))  # fmt: skip


def plain(at):
    """Statements that leave nothing behind, and mistakes."""
    n = at.client
    return Statement(at.pick([
        "select 1", "select 'x'", f"select v from c{n}.t order by id", "select now() is null", "", ";", "select 1/0", "selec", "select nonsense",
        "select '2020-01-02 12:00+00'::timestamptz", "select 1.5::float8, '\\x41'::bytea, '1 day 2 hours'::interval", "select 'ä'", "values (1), (2)",
        f"update c{n}.t set v = v where id = 1", "select generate_series(1, 3)", f"create table if not exists c{n}.made (a int)",
        f"drop table if exists c{n}.made",
    ]))  # fmt: skip


TOPICS = {
    "sets": sets, "resets": resets, "set_config": set_config, "looks": looks, "many": many, "bodies": bodies, "prepared": prepared,
    "temporary": temporary, "cursors": cursors, "locks": locks, "listening": listening, "sequences": sequences, "roles": roles, "copies": copies,
    "plain": plain,
}  # fmt: skip

"""Clients that act as drivers do.

They describe a statement once and decode by what they were told, in binary; they send many statements at once; they say BEGIN apart from the
transaction's first statement, in one packet with it or in one group with it; they vanish, and say Terminate behind their last message.
"""

from sessions.rounds import Turn


def described_once(at):
    """A statement that is prepared and described once, and run later, as pgjdbc, asyncpg and npgsql do."""
    n, name = at.client, f"d{at.chance.randrange(3)}"
    text, value = at.pick([
        (f"select id, v from c{n}.t where id >= $1 order by id", 1), (f"insert into c{n}.t (v) values ($1) returning id, v", "x"),
        (f"update c{n}.t set v = $1 where id = 1 returning id", "y"), ("select $1::int + 1, now() is null", 4),
        ("select set_config('tenant.id', $1, false)", f"{n}d"), ("select current_setting($1, true)", "tenant.id"),
        (f"update c{n}.t set v = v where id = $1", 1),
    ])  # fmt: skip
    formats = at.pick([[], [1], [1]])
    run = [("B", "", name, [value], formats), ("E", "", 0)]
    prepare = [("C", "S", name), ("P", name, text, []), ("D", "S", name)]
    how = at.chance.random()
    if how < 0.3:
        turns = [at.turn([*prepare, ("H",)]), at.turn([*run, ("S",)])]
    else:
        turns = [at.turn([*prepare, ("S",)]), at.turn([*run, ("S",)])]
    if at.chance.random() < 0.4:
        turns += at.simple()
    many = at.pick([1, 2, 3, 20])
    # With a Sync for each, as a loop of executions; or with one, as a batch.
    batch = run * many if at.chance.random() < 0.5 else [*run, ("S",)] * many
    return [*turns, at.turn([*batch, ("S",)])]


def begun(at):
    """A transaction, with its BEGIN apart from its first statement, in one packet, in one group or in one string with it."""
    n = at.client
    first = at.pick([f"select v from c{n}.t order by id", f"insert into c{n}.t (v) values ('b')", "select 1/0", f"update c{n}.t set v = 'u' where id = 1",
                     "select current_setting('tenant.id', true)", "set local work_mem = '3MB'", f"select nextval('c{n}.s')"])  # fmt: skip
    begin = at.pick(["begin", "BEGIN", "begin read write", "start transaction", "begin isolation level repeatable read"])
    group = lambda text: [("P", "", text, []), ("B", "", "", []), ("E", "", 0)]  # noqa: E731
    turns = at.pick([
        [at.turn([("Q", begin)]), at.turn([("Q", first)])], [at.turn([("Q", begin), ("Q", first)])], [at.turn([("Q", f"{begin}; {first}")])],
        [at.turn([*group(begin), *group(first), ("S",)])], [at.turn([*group(begin), ("S",), *group(first), ("S",)])],
        [at.turn([("Q", begin), *group(first), ("S",)])], [at.turn([*group(begin), ("S",)]), at.turn([*group(first), ("S",)])],
        [at.turn([*group(begin), ("H",)]), at.turn([*group(first), ("S",)])],
    ])  # fmt: skip
    more = [at.turn([*group(f"select count(*) from c{n}.t"), ("S",)])] if at.chance.random() < 0.6 else []
    end = at.pick(["commit", "rollback"])
    return [*turns, *more, at.turn(at.pick([[("Q", end)], [*group(end), ("S",)], [("Q", end), ("Q", "select 1")]]))]


def deep(at):
    """Many statements at once."""
    n, said = at.client, []
    for number in range(at.pick([10, 30, 60])):
        text = at.pick([f"select {number}", f"select v from c{n}.t order by id", f"insert into c{n}.t (v) values ('{number}')", "select repeat('x', 2000)"])
        said += [("P", "", text, []), ("B", "", "", []), ("D", "P", ""), ("E", "", 0)]
        if at.chance.random() < 0.3:
            said.append(("S",))
    return [at.turn([*said, ("S",)])]


def vanished(at):
    """A client that goes without a word, in a transaction whose answers it has not read: nothing of it remains."""
    n = at.client
    turns = [at.turn([("S",), ("Q", "select 'done'")], True), at.turn([("Q", "commit")], True)]
    said = [("Q", "begin"), ("Q", f"update c{n}.t set v = 'gone'"), ("Q", at.pick(["select 1", "select repeat('x', 100000)", "select 1/0", "savepoint a"]))]
    return come_again(at, [*turns, at.turn(said, False), Turn(n, (("hang up",),))])


def ended(at):
    """A client that says Terminate in one packet with its last statement: that runs."""
    n = at.client
    last = at.pick([[("Q", f"insert into c{n}.t (v) values ('last')")], [("Q", f"update c{n}.t set v = 'last'; select 1")],
                    [("P", "", f"insert into c{n}.t (v) values ('last')", []), ("B", "", "", []), ("E", "", 0), ("S",)],
                    [("Q", "begin"), ("Q", f"insert into c{n}.t (v) values ('last')"), ("Q", "commit")], [("Q", "select 1/0")],
                    [("Q", f"begin; insert into c{n}.t (v) values ('never')")]])  # fmt: skip
    turns = [at.turn([("S",), ("Q", "select 'done'")], True), at.turn([("Q", "commit")], True)]
    return [*come_again(at, [*turns, at.turn([*last, ("X",)], True)]), at.turn([("Q", f"select id, v from c{n}.t order by id")], True)]


def come_again(at, turns):
    """The turns, and another login."""
    at.named.clear()
    return [*turns, Turn(at.client, (("connect", at.started),))]


def changed(at):
    """A client describes its statement once and never again, as pgjdbc and asyncpg do, while another session changes the table."""
    table, name = f"c{at.client}.shaped", f"w{at.chance.randrange(3)}"
    text = at.pick([
        f"select id, v from {table} where id = $1", f"select * from {table} where id >= $1 order by id",
        f"insert into {table} (id, v) values ($1, 7) returning v", f"insert into {table} (id) values ($1) returning *",
        f"update {table} set id = id where id = $1 returning *", f"select count(*) from {table} where id > $1",
        f"insert into {table} (id, v) values (1, $1)", f"select id from {table} where v = $1 order by id",
    ])  # fmt: skip
    # A driver encodes values by the types that it was told: that of v is another one each time.
    formats, binary = at.pick([[], [1], [0]]), at.chance.random() < 0.5 and "(1, $1)" not in text and "v = $1" not in text
    asks = at.chance.random() < 0.25

    def run():
        number = at.pick([1, 2, 9])
        asked = [("D", "P", "")] if asks or at.chance.random() < 0.05 else []
        return [("B", "", name, [number if binary else str(number)], formats), *asked, ("E", "", 0)]

    turns = [at.turn([("C", "S", name), ("P", name, text, []), ("D", "S", name), *run(), ("S",)], True)]
    for _ in range(at.pick([1, 1, 2, 3])):
        change = at.pick([
            f"alter table {table} alter v type real using v::text::real", f"alter table {table} alter v type text using v::text",
            f"alter table {table} alter v type int using v::text::numeric::int", f"alter table {table} add column if not exists x int default 5",
            f"alter table {table} drop column if exists x", f"alter table {table} alter v set default 3", f"analyze {table}", "select 1",
        ])  # fmt: skip
        # Clients that listen are disconnected by RECONNECT. (session-state.md, LISTEN and NOTIFY)
        then = [] if "listening" in at.topics else at.pick([[], ["RECONNECT"], ["RECONNECT"]])
        turns.append(Turn(at.client, (("meanwhile", change, *then),)))
        how = at.chance.random()
        if how < 0.5:
            turns += [at.turn([*run(), ("S",)], True) for _ in range(at.pick([1, 2]))]
        elif how < 0.7:
            turns.append(at.turn([*run(), ("S",), *run(), ("S",)], True))
        else:
            turns += [at.turn([("Q", "begin")], True), at.turn([*run(), *run(), ("S",)], True), at.turn([("Q", "commit")], True)]
    return [*turns, at.turn([("Q", f"select id from {table} order by id")], True)]


WAYS = [(described_once, 8), (begun, 6), (deep, 1), (vanished, 1), (ended, 1)]
"""What such a client does, and how often."""

"""`follow=wal`, answers that depend on one row: changes of other rows leave them, changes of the row, and all that may be one, end them."""

import pytest
from test_query_cache_wal import MAX_AGE_S, READ, hits, publish_counters, reason, row, unpublish_counters, until_hit
from test_query_cache_wal_versions import begun

from harness.cluster import DISTRIBUTION
from harness.machine import eventually

SUM = "select coalesce(sum(value), 0)::bigint from counted"
BY_KEY = "yes, by key"


@pytest.fixture(params=sorted({DISTRIBUTION, "18"}))
def server(request, cluster_of):
    """A PostgreSQL with a published table of counters."""
    server = cluster_of(request.param)
    server.end_all_backends()
    publish_counters(server, rows=100, more=", more text")
    yield server
    unpublish_counters(server)


def change_key(server, column, *keys):
    """Gives the table of counters a key of this type, and a row for each of these keys."""
    server.sql(f"alter table counted drop column id, add column id {column}")
    server.sql("truncate counted")
    server.sql(f"insert into counted (id, value) values {', '.join(f'({key}, 0)' for key in keys)}")
    server.sql("alter table counted add primary key (id)")


class Watched:
    """A pooler, and a client whose answer to a statement by key is kept."""

    def __init__(self, pooler, server, client, *statement):
        self.pooler, self.server, self.client, self.statement = pooler, server, client, statement
        # The answer to a named statement is another one.
        client.prepare_threshold = None
        self.answer = until_hit(pooler, client, *statement)
        self.dropped = self._dropped()

    def _dropped(self):
        return int(row(self.pooler)["dropped_by_key"])

    def _after(self, change):
        """Makes a change past the pooler, and waits until the pooler has received it: the cache gives the client an answer that has it, after a
        server has shown it to the client."""
        with self.server.connect() as outside:
            for statement in [change] if isinstance(change, str) else change:
                outside.execute(statement)
            now = outside.execute(SUM).fetchone()
        eventually(lambda: self.client.execute(SUM).fetchone() == now, f"{change} is seen", timeout_s=MAX_AGE_S + 20)
        assert until_hit(self.pooler, self.client, SUM) == now

    def outlives(self, change):
        """The change leaves the answer: the cache gives it again, and has not dropped it meanwhile."""
        self._after(change)
        assert until_hit(self.pooler, self.client, *self.statement) == self.answer, change
        assert self._dropped() == self.dropped, change

    def ends_with(self, change):
        """The change ends the answer: the next one is new, and is kept."""
        self._after(change)
        with self.server.connect() as outside:
            now = outside.execute(*self.statement).fetchone()
        assert self.client.execute(*self.statement).fetchone() == now, change
        assert self._dropped() > self.dropped, change
        assert until_hit(self.pooler, self.client, *self.statement) == now, change
        self.answer, self.dropped = now, self._dropped()


@pytest.fixture
def watched(poolers, server):
    """Returns a function that has the answer to a statement kept."""
    clients = []

    def watch(*statement):
        pooler = begun(poolers, server)
        clients.append(pooler.connect())
        return Watched(pooler, server, clients[-1], *statement)

    yield watch
    [client.close() for client in clients]


def test_only_changes_of_the_row_end_its_answer(watched):
    """Writes of other rows leave the answer; those of the row, of its key, and TRUNCATE end it."""
    known = watched(READ, [1])
    assert reason(known.pooler, "select value from counted where id") == BY_KEY
    known.outlives("update counted set value = value + 1 where id = 2")
    known.outlives("insert into counted values (1000, 5)")
    known.outlives("delete from counted where id = 1000")
    known.outlives("update counted set id = 1001, value = value + 1 where id = 3")
    known.ends_with("update counted set value = value + 1 where id = 1")
    known.ends_with("update counted set id = 1002, value = value + 1 where id = 1")
    known.outlives("update counted set value = value + 1 where id = 1002")
    known.ends_with("update counted set id = 1, value = value + 1 where id = 1002")
    known.ends_with("delete from counted where id = 1")
    known.ends_with("insert into counted values (1, 9)")
    known.ends_with(["begin", "truncate counted", "insert into counted values (2, 9)", "commit"])


def test_a_change_of_many_rows_ends_all_answers(watched, server):
    """A transaction with more than 64 keys counts as one that may have changed any row."""
    with server.configured(logical_decoding_work_mem="64kB"):
        known = watched(READ, [1])
        known.outlives("update counted set value = value + 1 where id between 2 and 60")
        known.ends_with("update counted set value = value + 1 where id between 2 and 80")
        # It is sent in parts.
        known.ends_with("insert into counted select n, n from generate_series(2000, 12000) n")


def test_a_transaction_that_is_sent_in_parts_has_its_keys(watched, server):
    """Rows of many kilobytes are sent before their transaction is committed; other rows stay."""
    with server.configured(logical_decoding_work_mem="64kB"):
        known = watched(READ, [1])
        large = "update counted set value = value + 1, more = (select string_agg(md5(n::text), '') from generate_series(1, 1000) n) where id = {}"
        known.outlives(["begin", *[large.format(row) for row in range(10, 30)], "commit"])
        known.ends_with(["begin", *[large.format(row) for row in range(1, 20)], "commit"])


@pytest.mark.parametrize("way", ["parameter", "binary", "literal", "text"])
def test_a_key_in_each_format(watched, server, way):
    """The key is a parameter in text or binary format, a number or a text in the statement."""
    statement = {
        "parameter": ("select value from counted where id = %s", [1]),
        "binary": ("select value from counted where id = %b", [1]),
        "literal": ("select value from counted where id = 1",),
        "text": ("select value from counted where id = '1'",),
    }[way]
    known = watched(*statement)
    known.outlives("update counted set value = value + 1 where id = 2")
    known.ends_with("update counted set value = value + 1 where id = 1")


@pytest.mark.parametrize(
    "column, key, others",
    [
        ("smallint", "7", "8"),
        ("bigint", "5000000000", "8"),
        ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'"),
        ("text", "'one'", "'two'"),
        ("varchar(20)", "'one'", "'ONE'"),
    ],
)
def test_types_whose_texts_tell_values_apart(watched, server, column, key, others):
    """Keys of these types are compared by their texts."""
    change_key(server, column, key, others)
    known = watched(f"select value from counted where id = {key}")
    assert reason(known.pooler, "select value from counted where id") == BY_KEY
    known.outlives(f"update counted set value = value + 1 where id = {others}")
    known.ends_with(f"update counted set value = value + 1 where id = {key}")


@pytest.mark.parametrize(
    "column, key, same",
    [
        ("numeric", "1.0", "1.00"),
        ("character(5)", "'a'", "'a  '"),
        ('text collate "blind"', "'a'", "'A'"),
        ("timestamptz", "'2020-01-01 00:00+00'", "'2020-01-01 01:00+01'"),
        ("float8", "'1'", "'1.0'"),
    ],
)
def test_other_types_depend_on_the_table(watched, server, column, key, same):
    """Equal values of these types can have different texts: each change of the table ends the answer."""
    server.sql("drop collation if exists blind")
    server.sql("create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    change_key(server, column, key)
    try:
        known = watched(f"select value from counted where id = {key}")
        assert reason(known.pooler, "select value from counted where id") == "yes"
        server.sql(f"update counted set value = 5, id = {same} where id = {key}")
        eventually(lambda: known.client.execute(*known.statement).fetchone() == (5,), "the change is seen", timeout_s=MAX_AGE_S + 20)
    finally:
        server.sql("drop table counted cascade")
        server.sql("drop collation blind")


def test_a_key_of_several_columns(watched, server):
    """All columns of the key are compared; their order in the statement is of no matter."""
    server.sql("alter table counted drop constraint counted_pkey, add column tenant varchar(9) default 'a', add column word text default 'x'")
    server.sql("alter table counted add primary key (tenant, id, word)")
    known = watched("select value from counted where id = %s and word = 'x' and tenant = %s", [1, "a"])
    assert reason(known.pooler, "select value from counted where id") == BY_KEY
    known.outlives("update counted set value = value + 1 where id = 2")
    known.outlives("insert into counted (tenant, id, value) values ('b', 1, 7)")
    known.ends_with("update counted set value = value + 1 where tenant = 'a' and id = 1")
    known.ends_with("update counted set tenant = 'c', value = value + 1 where tenant = 'a' and id = 1")


def test_a_key_that_is_stored_apart(watched, server):
    """A long key is stored apart from its row: changes of such rows end no answer to a short key that they do not have."""
    server.sql("alter table counted drop column id, add column id text, add column filler text")
    server.sql("alter table counted alter column id set storage external")
    server.sql("truncate counted")
    server.sql("insert into counted values (1, null, 'one'), (2, null, repeat('x', 2500))")
    server.sql("alter table counted add primary key (id)")
    known = watched("select value from counted where id = 'one'")
    known.outlives("update counted set value = value + 1 where id <> 'one'")
    known.ends_with("update counted set value = value + 1 where id = 'one'")
    known.ends_with("update counted set value = value + 1, id = 'one' || id where id = 'one'")
    known.ends_with("update counted set value = value + 1, id = 'one' where id = 'oneone'")


@pytest.mark.parametrize(
    "definition",
    [
        "alter table counted replica identity full",
        "alter table counted replica identity using index counted_more",
        "alter table counted drop constraint counted_pkey",
        "alter table counted drop constraint counted_pkey, add primary key (value)",
        "alter table counted rename column id to number; alter table counted rename column spare to id",
        "alter table counted alter column id type bigint",
    ],
)
def test_another_replica_identity_past_the_pooler(poolers, server, definition):
    """A definition is changed past the pooler, which does not ask for it in this test. Then the stream tells other keys, or none: no answer stays."""
    server.sql("alter table counted alter column value set not null, add column spare int, add constraint counted_more unique (more)")
    server.sql("update counted set value = id, more = id, spare = id")
    server.sql("alter table counted alter column more set not null")
    pooler = begun(poolers, server, query_cache_ddl_ms=600_000)
    with pooler.connect() as client:
        known = Watched(pooler, server, client, "select min(value), max(value), count(*) from counted where id = 1")
        # PostgreSQL refuses to change rows of a table without replica identity.
        change = "update counted set value = 5000 where more = '1'"
        if definition.endswith("drop constraint counted_pkey"):
            change = "insert into counted values (1, 5000, 'new')"
        known.ends_with([*definition.split(";"), change])


def test_without_a_primary_key_as_replica_identity_the_table_counts(watched, server):
    """With REPLICA IDENTITY FULL or USING INDEX from the start, answers depend on the whole table."""
    server.sql("update counted set more = id")
    server.sql("alter table counted alter column more set not null, add constraint counted_more unique (more)")
    for definition in ("full", "using index counted_more"):
        server.sql(f"alter table counted replica identity {definition}")
        known = watched(READ, [1])
        assert reason(known.pooler, "select value from counted where id") == "yes", definition
        server.sql("update counted set value = value + 1 where id = 1")
        now = server.sql("select value from counted where id = 1")[0]
        eventually(lambda: known.client.execute(READ, [1]).fetchone() == now, "it is seen", timeout_s=MAX_AGE_S + 20)  # noqa: B023


def test_an_operator_of_the_database_makes_keys_uncertain(watched, server):
    """A user's operator `=` for a type of PostgreSQL may be the one that a statement compares with: then answers depend on the table."""
    server.sql("create schema own")
    server.sql("create operator own.= (leftarg = int4, rightarg = int4, function = int4ge)")
    try:
        known = watched(READ, [1])
        assert reason(known.pooler, "select value from counted where id") == "yes"
    finally:
        server.sql("drop schema own cascade")


def test_a_policy_takes_the_table_out(watched, server):
    """A table with row-level security is not followed at all."""
    known = watched(READ, [1])
    server.sql("alter table counted enable row level security")
    server.sql("create policy p on counted using (id > 1)")
    eventually(lambda: known.client.execute(READ, [1]).fetchone() is None, "the policy holds", timeout_s=20)
    before = hits(known.pooler)
    not_followed = lambda: reason(known.pooler, "select value from counted where id") == "reads a table that is not followed"  # noqa: E731
    eventually(lambda: known.client.execute(READ, [2]) and not_followed(), "it is not kept", timeout_s=20)
    assert hits(known.pooler) == before


def test_statements_of_other_forms_depend_on_the_table(watched, server):
    """What is not certainly one row by its key ends with each change of the table."""
    known = watched(READ, [1])
    texts = [
        "select value from counted where id = 1 or id = 2",
        "select value from counted where id = 1 order by value",
        "select value from counted where id = 1::bigint",
        "select c.value from counted c join counted d on true where c.id = 1 and d.id = 2",
        "select (select max(value) from counted) from counted where id = 1",
        "select value from counted where id in (1)",
    ]
    for text in texts:
        until_hit(known.pooler, known.client, text)
    shown = {one["query"]: one["cache"] for one in known.pooler.show("STATEMENTS")}
    forms = [cache for query, cache in shown.items() if "counted" in query and "sum" not in query]
    assert forms.count(BY_KEY) == 1 and forms.count("yes") == len(texts), shown


def test_a_transaction_that_spills_ends_the_stream(poolers, server):
    """One row of many megabytes cannot be sent before it is complete, so PostgreSQL writes its parts to the disk: above the limit pgweir leaves,
    and begins again after that transaction."""
    server.sql("alter table counted alter column more set storage external")
    pooler = begun(poolers, server, query_cache_lag_bytes=8 * 1024 * 1024)
    large = "update counted set value = 7, more = (select string_agg(md5(n::text), '') from generate_series(1, 1000000) n) where id = 1"
    with server.configured(logical_decoding_work_mem="64kB"), server.connect() as outside:
        outside.execute("begin")
        outside.execute(large)
        eventually(lambda: "to its disk" in (row(pooler)["follow_reason"] or ""), "the reason is shown", timeout_s=60)
        assert row(pooler)["follow_state"] != "following"
        outside.execute("commit")
    eventually(lambda: row(pooler)["follow_state"] == "following", "it is followed again", timeout_s=60)
    with pooler.connect() as client:
        assert until_hit(pooler, client, READ, [1]) == (7,)


def test_a_large_transaction_that_is_sent_in_parts_does_not_spill(poolers, server):
    """PostgreSQL sends a large transaction of small rows before its commit, also if its table is not published: nothing is written to the disk."""
    server.sql("create table if not exists loaded (id int, more text)")
    pooler = begun(poolers, server, query_cache_lag_bytes=64 * 1024 * 1024)
    load = "insert into loaded select n, md5(n::text) from generate_series(1, 50000) n"
    spilled = "select coalesce(sum(spill_bytes), 0)::bigint, coalesce(sum(stream_bytes), 0)::bigint from pg_stat_replication_slots"
    with server.configured(logical_decoding_work_mem="64kB"):
        server.sql(load)
        eventually(lambda: server.sql(spilled)[0][1] > 0, "it is sent in parts", timeout_s=30)
    assert server.sql(spilled)[0][0] < 1024 * 1024
    assert row(pooler)["follow_state"] == "following"
    server.sql("drop table loaded")

"""Code that a statement runs without naming it: what it changes in the session stays its client's, and what it is asked is asked where
the answer is right."""

import pytest

from harness import hidden
from harness.cluster import DISTRIBUTION, Cluster
from harness.machine import eventually
from harness.pooler import kind
from sessions.arena import Arena
from sessions.objects import CHANGES, READS, ROUTINES, Hunt, chain_of

from test_cluster_auto import marked, ran_on
from test_cluster_reads import reading  # noqa: F401: a fixture
from test_clusters import Later, nodes  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

ACT = """
create function hunt.act() returns int language plpgsql as $$ begin
  case (select name from hunt.wanted)
    when 'setting' then perform set_config('work_mem', '1234kB', false);
    when 'custom setting' then perform set_config('hunted.name', 'secret', false);
    when 'role' then perform set_config('role', 'hunted', false);
    when 'search_path' then set search_path = hidden_place;
    when 'lock' then perform pg_advisory_lock(4714);
    when 'table' then create temp table hunted_rows as select 'secret' as a;
    else null;
  end case; return 1; end $$;
"""

EFFECTS = {
    "setting": "select current_setting('work_mem') = '1234kB'",
    "custom setting": "select coalesce(current_setting('hunted.name', true), '') = 'secret'",
    "role": "select current_user = 'hunted'",
    "search_path": "select current_setting('search_path') = 'hidden_place'",
    "lock": "select exists (select from pg_catalog.pg_locks where locktype = 'advisory' and objid = 4714 and pid = pg_backend_pid())",
    "table": "select to_regclass('pg_temp.hunted_rows') is not null",
}

ONCE = {"an operator class", "a trigger at the end", "a trigger of a child", "a range's difference"}
"""Run the code several times: the second time the table is there already."""

REFUSED = {("role", "a trigger behind a foreign key")}
"""PostgreSQL lets it change no role."""


@pytest.fixture
def hunted(pg):
    """The database app with all these objects."""
    with pg.connect("app") as connection:
        connection.execute(hidden.OBJECTS.replace("{act}", ACT) + hidden.STANDARD)
        connection.execute("create role hunted; grant hunted to alice; grant all on all tables in schema hunt to hunted")
        yield connection
        connection.execute(hidden.GONE)
        assert connection.execute("select to_regnamespace('hunt')").fetchone() == (None,)
        connection.execute("drop owned by hunted; drop role hunted")


@pytest.mark.parametrize("way", [*hidden.READS, *hidden.CHANGES])
def test_what_hidden_code_changes_is_its_callers(pooled, hunted, way):
    """One server, two clients that follow each other on it, and every way of changing a session."""
    text = {**hidden.READS, **hidden.CHANGES}[way]
    pooler = pooled(default_pool_size=1)
    wrong = []
    for effect, look in EFFECTS.items():
        if effect == "table" and way in ONCE or (effect, way) in REFUSED:
            continue
        with pooler.raw() as caller, pooler.raw() as other:
            hunted.execute("update hunt.wanted set name = %s", [effect])
            answer = caller.query(text)
            hunted.execute("update hunt.wanted set name = 'nothing'")
            if answer.errors:
                wrong.append((effect, answer.errors))
                continue
            kept = caller.query(look)
            if kept.rows != [["t"]]:
                wrong.append((effect, "is not its caller's", kept))
            caller.terminate()
            found = other.query(look)
            if found.rows != [["f"]]:
                wrong.append((effect, "is another client's", found))
            other.terminate()
    assert not wrong, (wrong, pooler.log())
    assert "not what it should be" not in pooler.log()


def test_what_the_code_is_not_run_for_costs_nothing(pooled, hunted):
    """Reads of tables whose triggers, defaults and constraints change sessions are reads; other tables are not concerned."""
    hunted.execute("create table hunt.plain (a serial primary key, b text default 'x', c timestamptz default now()); grant all on hunt.plain to public")
    hunted.execute("grant all on all sequences in schema hunt to public")
    pooler = pooled(default_pool_size=1)
    with pooler.raw() as session:
        for text in [
            "insert into hunt.plain (b) values ('y')", "select * from hunt.plain where a = 1", "update hunt.plain set b = 'z'",
            "select a from hunt.triggered", "select b from hunt.defaulted", "select a from hunt.parted", "select id from hunt.referenced",
        ]:  # fmt: skip
            assert not session.query(text).errors
            [row] = pooler.show("POOLS_EXTENDED", database="app")
            assert row["total_session_audits"] == "0", (text, pooler.log())


AT_STANDBYS = {
    "shows": "create function hunt.act() returns int language sql stable as 'select pg_is_in_recovery()::int';",
    "locks": "create function hunt.act() returns int language sql stable as 'select pg_try_advisory_lock(4715)::int';",
    "waits": "create function hunt.act() returns int language sql stable as 'select 1 from (select pg_advisory_xact_lock(4716)) as a';",
}


@pytest.mark.parametrize("how", AT_STANDBYS)
def test_hidden_code_that_a_standby_answers_otherwise(nodes, reading, how):  # noqa: F811
    """With route=auto the primary runs what leads to it, and a standby everything else."""
    made = nodes(2)
    primary, standby = made.all
    made.primary.sql(hidden.OBJECTS.replace("{act}", AT_STANDBYS[how]) + hidden.STANDARD + "create table hunt.plain (a int); grant all on hunt.plain to public")
    eventually(lambda: standby.sql("select to_regclass('hunt.plain') is not null") == [(True,)], "the standby has it")
    pooler = reading(made, options={"route": "auto", "lag_limit_ms": 0})
    wrong = []
    plain = ["select a from hunt.plain", "select a from hunt.triggered", "select b from hunt.defaulted"]
    with pooler.raw() as first:
        first.query("select 1")
    for text in [*hidden.READS.values(), *plain]:
        # A client that holds a lock stays at the primary.
        with pooler.raw() as session:
            whole, mark = marked(text)
            answer = session.query(whole)
            at = standby if text in plain else primary
            if answer.errors or ran_on(made.all, mark) not in ([at.port], []):
                wrong.append((text, answer.errors, ran_on(made.all, mark)))
            literal = text.replace("'", "''")
            (explained,) = pooler.admin(f"SHOW ROUTE app '{literal}'")
            if explained["runs_on"] != ("standby" if at is standby else "primary"):
                wrong.append(("explained", text, explained))
    assert not wrong, wrong


@pytest.mark.parametrize("standbys", [0, 1])
def test_random_chains(certificates, standbys):
    """Random chains of one to five objects; for hours of them: `python -m sessions.objects`."""
    cluster = Cluster(DISTRIBUTION, certificates)
    nodes = [Cluster(DISTRIBUTION, certificates, follows=cluster) for _ in range(standbys)]
    arena = Arena(cluster, nodes)
    hunt = Hunt(arena)
    try:
        hunt.run(range(15))
        assert hunt.faults == []
        assert hunt.met > hunt.tried * 0.8, "what PostgreSQL refuses proves nothing"
        assert (hunt.at_standbys > 0) == bool(standbys)
    finally:
        hunt.close()
        faults = arena.finish()
        for node in [*nodes, cluster]:
            node.discard()
    assert faults == []


def test_chains_have_everything():
    """Each kind of link is in one of 500 chains."""
    kinds = {kind for seed in range(500) for kind in chain_of(seed, 18).kinds}
    assert kinds == {*ROUTINES, *READS, *CHANGES, "an event trigger"}

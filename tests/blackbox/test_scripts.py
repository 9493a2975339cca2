"""SQL scripts of many kinds give the same output directly, through session pooling, and through transaction pooling with other clients between."""

import difflib
import re

import psycopg
import pytest

from harness.pooler import kind
from harness.scripts import Others, run_psql

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="PgBouncer does not keep sessions")

SCRIPTS = {
    "listen": r"""
listen c; notify c; notify c, 'payload'; select pg_notify('c', 'by function');
begin; notify c, 'one'; rollback; begin; notify c, 'three'; savepoint s; notify c, 'four'; rollback to s; commit;
begin; listen d; notify d, 'self'; commit; notify d, 'after';
begin; listen e; rollback; notify e, 'nobody'; select * from pg_listening_channels() order by 1;
begin; savepoint s; listen g; rollback to s; commit; select * from pg_listening_channels() order by 1;
unlisten c; notify c, 'gone'; select * from pg_listening_channels() order by 1;
do $$ begin execute 'listen f'; end $$; notify f, 'deep';
listen "Odd ""Name"; notify "Odd ""Name", 'quoted'; select * from pg_listening_channels() order by 1;
unlisten *; notify d; select * from pg_listening_channels();
listen h; discard all; notify h; select * from pg_listening_channels();
select pg_notify('', 'x'); select pg_notify(repeat('x', 64), 'y'); unlisten nowhere;
""",
    "transactions and errors": r"""
begin; select 1/0; select 2; commit; begin; savepoint a; select 1/0; rollback to a; select 3; release a; commit;
begin isolation level repeatable read read only; show transaction_isolation; create table no_table (a int); rollback;
start transaction read only; show transaction_read_only; commit and chain; show transaction_read_only; rollback;
set transaction read only; commit; rollback; savepoint x; release x; select 1 \; select 2 \; select 3;
select 1 \; begin \; select 2; select 3; rollback; set default_transaction_read_only = on; create table no_table (a int); reset default_transaction_read_only;
begin; set constraints all deferred; abort; select 'unterminated; select 1;';
\set ON_ERROR_ROLLBACK on
begin; select 1/0; select 'goes on'; commit;
\set ON_ERROR_ROLLBACK off
\set AUTOCOMMIT off
select 1; rollback; select 2; commit;
\set AUTOCOMMIT on
select pg_terminate_backend(0); select * from nowhere; selec 1; prepare transaction 'x'; lock table pg_class;
""",
    "cursors": r"""
begin; declare c scroll cursor for select generate_series(1, 10); fetch 3 from c; fetch backward 2 from c; move last in c; fetch prior from c; fetch absolute 5 from c; commit; fetch c;
declare no_block cursor for select 1;
begin; declare h cursor with hold for select generate_series(1, 5) as n; declare i cursor for select 1; commit; fetch 2 from h; fetch i; select name, is_holdable from pg_cursors; fetch all from h; close h; close h;
begin; declare h2 cursor with hold for select 1/(3 - g) from generate_series(1, 5) g; commit; fetch h2;
begin; declare h3 cursor with hold for select 1; rollback; fetch h3; begin; declare h4 insensitive scroll cursor with hold for select g from generate_series(1, 6) g; fetch 2 from h4; commit;
fetch last from h4; fetch first from h4; close all; select count(*) from pg_cursors;
\set FETCH_COUNT 3
select generate_series(1, 8);
\set FETCH_COUNT 0
""",
    "copy": r"""
create temp table t (a int, b text);
copy t from stdin;
1	one
2	two
\.
copy t from stdin csv;
3,"thr,ee"
four,bad
\.
select * from t order by a; copy t to stdout; copy (select a from t order by a desc) to stdout csv header;
begin; copy t from stdin;
9	nine
\.
rollback; copy nowhere from stdin; copy t (a) from stdin where a > 5;
5
6
\.
table t; copy t from '/nonexistent'; drop table t;
""",
    "functions": r"""
create function f_guc(int) returns text language plpgsql set work_mem = '1MB' as $$ begin return current_setting('work_mem'); end $$;
create function f_set() returns text language plpgsql as $$ begin perform set_config('work_mem', '2MB', false); return current_setting('work_mem'); end $$;
create function f_local() returns text language plpgsql set work_mem = '1MB' as $$ begin set local work_mem = '3MB'; return current_setting('work_mem'); end $$;
select f_guc(0), current_setting('work_mem'); select f_local(), current_setting('work_mem');
do $$ begin raise notice 'from %', current_user; raise warning 'careful'; end $$; do $$ begin raise exception 'no' using errcode = 'P0042', hint = 'h', detail = 'd'; end $$;
create procedure p_commit() language plpgsql as $$ begin create table p_t (a int); commit; insert into p_t values (1); rollback; end $$;
call p_commit(); select count(*) from p_t; drop table p_t; begin; call p_commit(); rollback;
create function f_temp() returns void language plpgsql as $$ begin create temp table in_f (a int) on commit preserve rows; insert into in_f values (7); end $$;
do $$ begin perform f_temp(); end $$; select * from in_f; drop table in_f;
set client_min_messages = warning; drop function f_guc; drop function f_set; drop function f_local; drop procedure p_commit; drop function f_temp; reset client_min_messages;
""",
    "psql": r"""
select 1 as one, 'b' as two \gset
select :one, :'two'; select 'select ' || g from generate_series(1, 3) g \gexec
select 1 as gone where false \gset
select error_here;
\echo :ERROR :SQLSTATE :ROW_COUNT
\d nowhere
select 1 \gx
\pset null '(null)'
select null;
\timing off
\encoding SQL_ASCII
\encoding
\encoding UTF8
select 'ä';
\crosstabview
select 'r' as r, 'c' as c, 1 as v \crosstabview
\if :one
select 'yes';
\else
select 'no';
\endif
""",
    "large objects": r"""
begin; select lo_create(987654) as oid; select lo_open(987654, 131072 | 262144) as fd; select lowrite(0, 'hello'); select lo_lseek(0, 0, 0); select loread(0, 3); select lo_close(0); commit;
select lo_open(987654, 262144); select loread(0, 3); select lo_get(987654); select lo_put(987654, 1, 'u'); select lo_get(987654); select lo_unlink(987654); select lo_unlink(987654);
""",
    "tables, views, sequences, temporary names": r"""
create temp table a (id serial primary key, t text default 'x'); insert into a default values returning id; select currval('a_id_seq'), lastval(); insert into a (t) values ('y') returning *;
create temp view v as select * from a; select * from v; create temp sequence s start 5; select nextval('s'), currval('s'); alter table a add column z int; select * from a;
begin; create temp table odc (a int) on commit delete rows; insert into odc values (1); select count(*) from odc; commit; select count(*) from odc;
create table pg_temp.b (a int); select count(*) from pg_temp.b; set search_path = pg_temp, pg_catalog; select relname from pg_class where relnamespace = pg_my_temp_schema() and relkind = 'r' order by 1;
discard sequences; select lastval(); discard temp; reset search_path; select * from a; create temp table a (other int); table a; discard all; table a;
""",
    "prepared": r"""
prepare p1 as select 1; prepare p2 (text, int) as select $1 || $2; execute p2('a', 2); execute p1; prepare p1 as select 2; execute p2('a'); select name, from_sql from pg_prepared_statements where from_sql order by 1;
deallocate p1; execute p1; deallocate prepare p2; prepare p3 as select * from pg_class where oid = $1; explain (costs off) execute p3(1259); deallocate all; select count(*) from pg_prepared_statements where from_sql;
create temp table pc (a int); prepare p4 as select * from pc; execute p4; alter table pc add column b int; execute p4; drop table pc; execute p4; deallocate p4; prepare bad as select nothing_here; execute bad;
""",
    "locks and roles": r"""
select pg_try_advisory_lock(5001), pg_try_advisory_lock(5001), pg_try_advisory_lock_shared(5002); select pg_advisory_unlock(5001), pg_advisory_unlock(5001), pg_advisory_unlock(5001); select pg_advisory_unlock_all();
begin; select pg_advisory_xact_lock(5003); select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid(); commit; select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid();
set role bob; create table not_allowed.x (a int); select current_user; begin; set local role none; select current_user; rollback; select current_user; discard all; select current_user;
set session authorization bob; set session authorization default; select session_user; set role none; grant bob to nobody_known;
""",
    "settings": r"""
set datestyle to 'postgres, dmy'; select '2001-02-03'::date, now() is not null; set datestyle to 'nonsense'; show datestyle; set time zone interval '-08:00' hour to minute; show timezone; set timezone to 'nowhere/else'; reset timezone;
set extra_float_digits = 0; select 0.1::float8 * 3; reset extra_float_digits; set intervalstyle = sql_standard; select interval '1 2:03:04'; set bytea_output = escape; select '\x00'::bytea; reset all; show intervalstyle; show bytea_output;
set my.own = 'a b'; show my.own; begin; set local my.own = 'local'; show my.own; rollback; show my.own; reset my.own; show my.unknown; set my.list = 'a', 'b'; show my.list; set "my.q" = 'x';
alter system set work_mem = '1MB'; set seed = 0.5; set xmloption = document; show xmloption; set enable_seqscan to off; show enable_seqscan; set enable_seqscan to default; select set_config('enable_seqscan', 'off', true), current_setting('enable_seqscan'); show enable_seqscan;
select name, setting from pg_settings where source = 'session' and name = 'xmloption'; set standard_conforming_strings = off; set escape_string_warning = off; select 'a\'b'; reset standard_conforming_strings; select 'a\b';
set lc_messages = 'C'; set client_encoding = 'LATIN1'; show client_encoding; reset client_encoding; show client_encoding; set statement_timeout = 20; select pg_sleep(5); reset statement_timeout; show statement_timeout;
""",
}
"""Every script leaves the database as it found it."""


@pytest.fixture
def roles(pg):
    """A role that alice may become, and the right to make things."""
    with psycopg.connect(host="127.0.0.1", port=pg.port, user="postgres", dbname="app", autocommit=True) as session:
        session.execute("do $$ begin create role bob; exception when duplicate_object then null; end $$")
        session.execute("grant bob to alice")
        session.execute("grant create on schema public to alice")


def without_numbers_of_chance(output):
    """Process ids, ports and object ids differ in each run."""
    output = re.sub(r"server process with PID \d+", "server process with PID n", output)
    output = re.sub(r'at port "\d+"', 'at port "n"', output)
    return re.sub(r"relation with OID \d+", "relation with OID n", output)


def run(port, script):
    return without_numbers_of_chance(run_psql("127.0.0.1", port, script))


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_output_is_the_same(pooled, pg, roles, mode):
    """Each script on a connection of its own."""
    pooler = pooled(default_pool_size=6 if mode == "session" else 3, pool_mode=mode)
    direct = {name: run(pg.port, script) for name, script in SCRIPTS.items()}
    different = []
    with Others(pooler, 4):
        for name, script in SCRIPTS.items():
            got = run(pooler.port, script)
            different += difflib.unified_diff(direct[name].splitlines(), got.splitlines(), f"{name}, directly", "pooled", lineterm="")
    assert not different, "\n".join(different)

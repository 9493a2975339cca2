"""Objects of each kind that can run code which a statement does not name, and a statement that comes to each."""

OBJECTS = """
create schema hunt;
grant all on schema hunt to public;
create table hunt.wanted (name text);
insert into hunt.wanted values ('nothing');
{act}
create function hunt.act1(int) returns int language plpgsql immutable as $$ begin return $1 + 0 * hunt.act(); end $$;
create function hunt.act2(int, int) returns int language plpgsql immutable as $$ begin return $1 + 0 * hunt.act(); end $$;
create function hunt.check1(int) returns bool language plpgsql immutable as $$ begin return hunt.act() is not null; end $$;
create function hunt.outer_one() returns int language sql stable as 'select hunt.act()';
create function hunt."Größe"() returns int language sql stable as 'select hunt.act()';
create function hunt."a""b"() returns int language sql stable as 'select hunt.act()';
create function hunt.composed() returns int language plpgsql stable as
  $$ declare r int; begin execute 'select hunt.' || 'ac' || 't()' into r; return r; end $$;
create view hunt.in_view as select hunt.act() as a;
create view hunt.above_view as select a from hunt.in_view;
create table hunt.ruled (a int);
create rule also as on insert to hunt.ruled do also select hunt.act();
create table hunt.guarded (a int);
insert into hunt.guarded values (1);
alter table hunt.guarded enable row level security;
create policy guard on hunt.guarded using (hunt.check1(a));
create table hunt.checked_by_policy (a int);
alter table hunt.checked_by_policy enable row level security;
create policy guard on hunt.checked_by_policy for insert with check (hunt.check1(a));
create table hunt.defaulted (a int default hunt.act(), b int);
create view hunt.over_defaulted as select b from hunt.defaulted;
create table hunt.generated (a int, b int generated always as (hunt.act1(a)) stored);
create table hunt.constrained (a int check (hunt.check1(a)));
create domain hunt.limited as int check (hunt.check1(value));
create table hunt.of_domain (a hunt.limited);
create table hunt.of_array (a hunt.limited[]);
create table hunt.indexed (a int);
create index on hunt.indexed (hunt.act1(a));
create table hunt.partly (a int);
create index on hunt.partly (a) where hunt.check1(a);
create aggregate hunt.total(int) (sfunc = hunt.act2, stype = int, initcond = 0);
create aggregate hunt.ended(int) (sfunc = int4pl, stype = int, finalfunc = hunt.act1, initcond = 0);
create operator hunt.### (leftarg = int, rightarg = int, function = hunt.act2);
create type hunt.pair as (a int);
create function hunt.compare(hunt.pair, hunt.pair) returns int language plpgsql immutable as
  $$ begin return $1.a - $2.a + 0 * hunt.act(); end $$;
create function hunt.less(hunt.pair, hunt.pair) returns bool language plpgsql immutable as $$ begin return $1.a < $2.a; end $$;
create operator hunt.< (leftarg = hunt.pair, rightarg = hunt.pair, function = hunt.less);
create function hunt.same(hunt.pair, hunt.pair) returns bool language plpgsql immutable as $$ begin return $1.a = $2.a; end $$;
create operator hunt.= (leftarg = hunt.pair, rightarg = hunt.pair, function = hunt.same);
create operator class hunt.pair_order default for type hunt.pair using btree as
  operator 1 hunt.<, operator 3 hunt.=, function 1 hunt.compare(hunt.pair, hunt.pair);
create table hunt.pairs (p hunt.pair);
insert into hunt.pairs values (row(1)), (row(2));
create type hunt.single as (a int);
create function hunt.to_int(hunt.single) returns int language plpgsql immutable as $$ begin return $1.a + 0 * hunt.act(); end $$;
create cast (hunt.single as int) with function hunt.to_int as implicit;
create table hunt.singles (s hunt.single);
insert into hunt.singles values (row(1));
create function hunt.with_default(a int default hunt.act()) returns int language sql stable as 'select a';
create function hunt.on_row() returns trigger language plpgsql as
  $$ begin perform hunt.act(); if tg_op = 'DELETE' then return old; end if; return new; end $$;
create table hunt.triggered (a int);
create trigger on_row before insert on hunt.triggered for each row execute function hunt.on_row();
create table hunt.deferred (a int);
create constraint trigger on_row after insert on hunt.deferred deferrable initially deferred for each row execute function hunt.on_row();
create table hunt.sometimes (a int);
create function hunt.quiet() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger on_row before insert on hunt.sometimes for each row when (hunt.check1(new.a)) execute function hunt.quiet();
create table hunt.parted (a int) partition by list (a);
create table hunt.part partition of hunt.parted for values in (1);
create trigger on_row before insert on hunt.part for each row execute function hunt.on_row();
create table hunt.parent (a int);
create table hunt.child () inherits (hunt.parent);
insert into hunt.child values (1);
create trigger on_row before update on hunt.child for each row execute function hunt.on_row();
create table hunt.referenced (id int primary key);
insert into hunt.referenced select generate_series(1, 9);
create table hunt.referring (id int references hunt.referenced on delete cascade);
insert into hunt.referring select generate_series(1, 9);
create trigger on_row before delete on hunt.referring for each row execute function hunt.on_row();
create table hunt.cleared (a int);
alter table hunt.cleared owner to alice;
create trigger on_truncate before truncate on hunt.cleared for each statement execute function hunt.on_row();
create function hunt.on_command() returns event_trigger language plpgsql as $$ begin perform hunt.act(); end $$;
create event trigger hunted on ddl_command_end when tag in ('COMMENT') execute function hunt.on_command();
create function hunt.far(int, int) returns float8 language plpgsql immutable as $$ begin return $1 - $2 + 0 * hunt.act(); end $$;
create type hunt.spread as range (subtype = int4, subtype_diff = hunt.far);
create table hunt.spreads (s hunt.spread);
create index on hunt.spreads using gist (s);
insert into hunt.spreads select hunt.spread(i, i + 1) from generate_series(1, 300) i;
create function hunt.writes() returns void language plpgsql as $$ begin insert into hunt.triggered values (1); end $$;
grant all on all tables in schema hunt to public;
"""

STANDARD = "create function hunt.standard() returns int stable begin atomic select hunt.act(); end;"
"""From PostgreSQL 14 on."""

GONE = "drop event trigger if exists hunted; drop schema if exists hunt cascade"

READS = {
    "a function": "select hunt.act()",
    "a function that calls it": "select hunt.outer_one()",
    "a name beyond ASCII": 'select hunt."Größe"()',
    "a name with a quote": 'select hunt."a""b"()',
    "SQL that is put together": "select hunt.composed()",
    "a body in standard SQL": "select hunt.standard()",
    "a view": "select a from hunt.in_view",
    "a view of a view": "table hunt.above_view",
    "a policy": "select a from hunt.guarded",
    "a domain": "select 1::hunt.limited",
    "an array of a domain": "select '{1}'::hunt.limited[]",
    "an aggregate": "select hunt.total(1)",
    "an aggregate's end": "select hunt.ended(1)",
    "an operator": "select 1 operator(hunt.###) 2",
    "an operator class": "select p from hunt.pairs order by p",
    "a cast without a word": "select s + 1 from hunt.singles",
    "a default argument": "select hunt.with_default()",
}
CHANGES = {
    "a rule": "insert into hunt.ruled values (1)",
    "a policy's check": "insert into hunt.checked_by_policy values (1)",
    "a column's default": "insert into hunt.defaulted (b) values (1)",
    "a column's default below a view": "insert into hunt.over_defaulted values (1)",
    "a generated column": "insert into hunt.generated values (1)",
    "a constraint": "insert into hunt.constrained values (1)",
    "a column of a domain": "insert into hunt.of_domain values (1)",
    "a column of an array of a domain": "insert into hunt.of_array values ('{1}')",
    "an index": "insert into hunt.indexed values (1)",
    "an index's predicate": "insert into hunt.partly values (1)",
    "a trigger": "insert into hunt.triggered values (1)",
    "a trigger at the end": "insert into hunt.deferred values (1)",
    "a trigger's condition": "insert into hunt.sometimes values (1)",
    "a trigger of a partition": "insert into hunt.parted values (1)",
    "a trigger of a child": "update hunt.parent set a = 2",
    "a trigger behind a foreign key": "delete from hunt.referenced where id = (select min(id) from hunt.referenced)",
    "a trigger of TRUNCATE": "truncate hunt.cleared",
    "an event trigger": "comment on table hunt.cleared is 'x'",
    "a range's difference": "insert into hunt.spreads select hunt.spread(i, i + 1) from generate_series(1, 300) i",
    "a function that changes rows": "select hunt.writes()",
}

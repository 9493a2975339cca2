use super::*;

fn shown(names: &SettingNames) -> String {
    let mut parts: Vec<String> =
        names.names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    parts.extend(names.parameters.iter().map(|number| format!("${number}")));
    parts.extend(names.unreadable.then(|| "?".to_owned()));
    parts.join(" ")
}

#[test]
fn calls_are_read_by_their_first_argument() {
    for (sql, expected) in [
        ("select set_config('App.Tenant', 'x', false)", "app.tenant"),
        ("select pg_catalog.\"set_config\"($$a.b$$, $1, false), set_config(E'c.d', '', false)", "a.b c.d"),
        ("select set_config($1, $2, false), set_config($3::text, $4, $5)", "$1 $3"),
        ("select set_config('work_mem', '1MB', false), set_config(null, 'x', false)", ""),
        ("select set_config('it''s.b', 'x', false)", "it's.b"),
        ("select set_config('a.' || $1, 'x', false)", "?"),
        ("select set_config('a.' || $1, 'x', true), set_config($1, f('x', y[1]), true)", ""),
        ("select set_config(name, value, false) from t", "?"),
        ("select set_config('a\\b.c', 'x', false)", "?"),
        ("select set_config(E'a\\x2eb', 'x', false)", "?"),
        ("select set_config('größe.b', 'x', false)", "?"),
        ("select set_config('a.b'\n'.c', 'x', false)", "?"),
        ("select U&\"set\\005fconfig\"('a.b', 'x', false)", "?"),
        ("select 'set_config' from t", ""),
        ("update t set a.b = 1", ""),
        ("select 'x\\', set_config('a.b', 'y', false)", "?"),
        ("select 'x\\y' from t where a = 'it\\'s so; set a.b = 1'", "a.b"),
    ] {
        assert_eq!(shown(&SettingNames::of(sql.as_bytes(), false)), expected, "{sql}");
    }
}

#[test]
fn blocks_are_read_with_the_strings_in_them() {
    for (sql, expected) in [
        (
            "do $$begin set a.b = 1; set local c.d = 2; perform set_config('e.f', 'x', false); end$$",
            "a.b e.f",
        ),
        ("do 'begin set session \"A\" . /* b */ b to 1; end'", "a.b"),
        (
            "do $$begin update t set a.b = 1, c = null; insert into t values (1) on conflict do update set größe = 1; end$$",
            "",
        ),
        ("do $$begin execute 'set a.b = 1'; execute format('set c.d = %L', x); end$$", "a.b c.d"),
        ("do $$begin execute 'set ' || x || ' = 1'; end$$", "?"),
        ("do $$begin execute 'set a.' || x || ' = 1'; end$$", "?"),
        ("do $$begin execute format('set %I = 1', x); end$$", "?"),
        ("do $$begin execute format('set a.%I = 1', x); end$$", "?"),
        ("do $$begin execute format('%s %s', 'set', x); end$$", "?"),
        ("do $$begin execute E'create table\\n t ()'; execute 'drop table ' || x; end$$", ""),
        ("do $$begin execute E'\\163et a.b = 1'; end$$", "?"),
        ("do $$begin for r in select c from t loop execute r.c; end loop; end$$", "?"),
        ("do $$declare v text; begin select c into v from t; execute v; end$$", "?"),
        ("do $$declare v text; begin v := 'drop table '; v := v || x; execute v using y; end$$", ""),
        ("do $$declare v text := format('drop table %I', x); begin execute v; end$$", ""),
        ("do $$declare v text := x; begin execute v; end$$", "?"),
        ("do $$begin execute 'select ' || x; end$$", "?"),
        ("do $$begin execute 's' || 'et a.b = 1'; end$$", "?"),
        ("do $$begin execute 'analyze ' || x; execute 'select f(' || x || ')'; end$$", ""),
        ("do $$begin execute 'do ''begin set a.b = 1; end'''; end$$", "a.b"),
        ("do $$begin grant execute on function f to r; execute 'select 1'; end$$", ""),
        (
            "create or replace function f() returns void language plpgsql as 'begin set a.b = 1; end'; do 'set c.d = 1'",
            "c.d",
        ),
        ("select runs('set a.b = 1'), runs('the whole set of it')", "a.b"),
        ("do $$begin set time zone 'UTC'; set role x; set transaction read only; end$$", ""),
    ] {
        assert_eq!(shown(&SettingNames::of(sql.as_bytes(), true)), expected, "{sql}");
    }
}

#[test]
fn a_body_is_read() {
    for (body, expected) in [
        ("select set_config('a.b', $1, false)", "a.b"),
        ("begin return set_config(name, value, false); end", "?"),
        ("begin execute format('set %s = %L', name, value); end", "?"),
        ("begin execute what; end", "?"),
        ("SPI: plpy.execute(\"select set_config('a.b', 'x', false)\")", "?"),
        ("", ""),
    ] {
        assert_eq!(shown(&SettingNames::of_body(body.as_bytes())), expected, "{body}");
    }
}

#[test]
fn of_a_part_every_word_counts() {
    for (part, expected) in [
        ("values ('a'), ('on the set of 1'), ('x = set')", "?"),
        ("('a set of things'), ('set') on conflict do update set a = excluded.a", "?"),
        ("('a set of things') on conflict do update set a = excluded.a, größe = 1", ""),
        ("'; set a.b = 1; set work_mem = 2", "a.b"),
        ("; set local a.b = 1; begin set c.d = 1", "a.b c.d"),
        ("; set \"a\".b = 1", "?"),
        ("; set a.\"b\" = 1", "?"),
        ("; set a . b = 1", "?"),
        ("; set a/**/.b = 1", "?"),
        ("; set größe.b = 1", "?"),
        ("(set_config", "?"),
        ("U&\"x\"", "?"),
        ("update t set (a, b) = (1, 2)", ""),
        (";set", "?"),
    ] {
        assert_eq!(shown(&SettingNames::of_part(part.as_bytes(), 0)), expected, "{part}");
    }
}

//! What is read after the configuration file: which line wins, what is told of it, and what is refused.

use pgweir_settings::{Config, Layer, Place, PoolMode, Route};
use proptest::prelude::*;

const FILE: &str = "[databases]\nshop = host=a port=1 pool_size=5 password=hunter2\n* = host=a\n[users]\nbob = pool_mode=session\n\
                    [clusters]\nmain = nodes=n1,n2 check_user=c\n[nodes]\nn1 = host=x\nn2 = host=y\n[routes]\nfirst = user=a route=primary\n\
                    second = user=b route=standby\n[pgbouncer]\npool_mode = session\nadmin_users = a, b\n";

fn layers(texts: &[(&str, &str)]) -> Vec<Layer> {
    let layer = |(name, text): &(&str, &str)| match name.strip_prefix("PGWEIR_") {
        Some(_) => Layer::of_variable(name, (*text).to_owned()).expect("a variable of ours"),
        None => Layer { name: (*name).to_owned(), setting: None, text: (*text).to_owned() },
    };
    texts.iter().map(layer).collect()
}

fn load(texts: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let (config, faults) = Config::survey("t.ini", &layers(texts), &mut |_| Ok(FILE.to_owned()));
    if faults.is_empty() { Ok(config) } else { Err(faults.iter().map(|fault| fault.text.clone()).collect()) }
}

fn good(texts: &[(&str, &str)]) -> Config {
    load(texts).expect("good layers")
}

fn told(config: &Config) -> Vec<String> {
    config.overlay.iter().map(pgweir_settings::LayerEffect::summary).collect()
}

#[test]
fn the_last_layer_wins_and_a_line_replaces_the_whole_line() {
    let config = good(&[
        (
            "a.ini",
            "[databases]\nshop = cluster=main\n[pgbouncer]\npool_mode = transaction\nadmin_users = c\n",
        ),
        ("b.ini", "[pgweir]\npool_mode = statement\n"),
        ("PGWEIR_MAX_CLIENT_CONN", " 7 "),
    ]);
    let shop = &config.databases["shop"];
    assert_eq!((shop.cluster.as_deref(), shop.pool_size, &shop.password), (Some("main"), None, &None));
    assert_eq!((config.main.pool_mode, config.main.max_client_conn), (PoolMode::Statement, 7));
    assert_eq!(config.main.admin_users, ["c"], "lists replace");
    assert_eq!(
        told(&config),
        [
            "a.ini sets [databases] shop, pool_mode, admin_users",
            "b.ini sets pool_mode",
            "PGWEIR_MAX_CLIENT_CONN sets max_client_conn"
        ]
    );
    let replaced = |layer: usize, number: usize| config.overlay[layer].changed[number].replaced.clone();
    assert_eq!(replaced(0, 0), Some(Place { file: "t.ini".to_owned(), line: 2 }));
    assert_eq!(replaced(1, 0), Some(Place { file: "a.ini".to_owned(), line: 4 }));
    assert_eq!(replaced(2, 0), None, "it was the default");
    let source = |key: &str| config.show().into_iter().find(|row| row.key == key).expect("a setting").source;
    assert_eq!(source("pool_mode"), "b.ini:2");
    assert_eq!((&*source("max_client_conn"), &*source("listen_port")), ("PGWEIR_MAX_CLIENT_CONN", "default"));
}

#[test]
fn a_header_of_a_layer_takes_nothing_back() {
    let config = good(&[("a.ini", "[pgbouncer]\nmax_client_conn = 7\n[users]\n[pgbouncer]\n[pgbouncer]\n")]);
    assert_eq!((config.main.pool_mode, config.main.max_client_conn), (PoolMode::Session, 7));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let none = good(&[("a.ini", "; nothing\n"), ("b.ini", "[pgbouncer]\npool_mode = session\n")]);
    assert_eq!(told(&none), ["a.ini changes nothing", "b.ini changes nothing"]);
}

#[test]
fn lines_that_add_keys() {
    let config = good(&[
        (
            "a.ini",
            "[databases]\nshop += pool_size=9 dbname='it''s'\n* += cluster=main route=auto\n[users]\nbob += pool_size=3\n",
        ),
        ("b.ini", "[clusters]\nmain += route=auto\n[nodes]\nn1 += weight=5\n[routes]\nfirst += percent=50\n"),
    ]);
    let shop = &config.databases["shop"];
    assert_eq!((&*shop.hosts, shop.port, shop.pool_size), (&["a".to_owned()][..], 1, Some(9)));
    assert_eq!(
        (shop.dbname.as_deref(), shop.password.as_ref().map(|secret| secret.reveal())),
        (Some("it's"), Some("hunter2"))
    );
    let fallback = config.fallback.as_ref().expect("*");
    assert_eq!(
        (fallback.cluster.as_deref(), fallback.hosts.len(), fallback.route),
        (Some("main"), 0, Some(Route::Auto))
    );
    assert_eq!(
        (config.users["bob"].pool_mode, config.users["bob"].pool_size),
        (Some(PoolMode::Session), Some(3))
    );
    assert_eq!((config.nodes["n1"].weight, &*config.nodes["n1"].host), (5, "x"));
    assert_eq!((config.routes[0].percent, config.routes.len()), (50, 2), "it keeps its place");
    assert_eq!(told(&config)[0], "a.ini sets [databases] shop, [databases] *, [users] bob");
}

#[test]
fn routes_replace_those_of_their_name() {
    let config = good(&[("a.ini", "[routes]\nfirst = user=z route=standby\nthird = user=c route=any\n")]);
    let names: Vec<&str> = config.routes.iter().map(|line| line.name.as_str()).collect();
    assert_eq!((names, config.routes[0].user.as_deref()), (vec!["first", "second", "third"], Some("z")));
}

#[test]
fn faults_name_the_layer_and_no_secret() {
    let faults = load(&[
        ("a.ini", "[databases]\nnone += pool_size=1\nshop += hunter3\n[pgbouncer]\nadmin_users += c\npool_mod = x\n"),
        ("b.ini", "before = 1\n"),
        ("PGWEIR_POOL_MODE", "fast"),
        ("PGWEIR_LOGFILE", "a\nb"),
    ])
    .expect_err("faults");
    for (fault, words) in faults.iter().zip([
        "[databases] has no entry \"none\" that += could add to (a.ini:2)",
        "[databases] shop +=: syntax error in connection string (a.ini:3)",
        "\"admin_users\": += adds key=value pairs to an entry; a setting is replaced with = (a.ini:5)",
        "unknown parameter: pgbouncer/pool_mod in configuration (a.ini:6); did you mean \"pool_mode\"?",
        "value without section: before in configuration (b.ini:1)",
        "invalid value \"fast\" for parameter pool_mode in configuration (PGWEIR_POOL_MODE): it must be one of",
        "syntax error in configuration (PGWEIR_LOGFILE)",
    ]) {
        assert!(fault.starts_with(words) && !fault.contains("hunter"), "{fault}");
    }
    assert_eq!(faults.len(), 7, "{faults:?}");
}

/// PgBouncer's files have no `+=`.
#[test]
fn the_file_itself_adds_nothing() {
    let read = |text: &str| Config::load("t.ini", &mut |_| Ok(text.to_owned()));
    for text in ["[pgbouncer]\n[databases]\na = host=b\na += port=1\n", "[pgbouncer]\nadmin_users += a\n"] {
        let faults = read(text).expect_err("a fault");
        assert!(faults[0].text.starts_with("syntax error in configuration (t.ini:"), "{faults:?}");
    }
}

#[test]
fn layers_may_include_files() {
    let mut read = |path: &str| match path {
        "t.ini" => Ok(FILE.to_owned()),
        "more.ini" => Ok("max_client_conn = 9\n".to_owned()),
        _ => Err("No such file".to_owned()),
    };
    let layers = layers(&[("a.ini", "[pgbouncer]\n%include more.ini\n")]);
    let (config, faults) = Config::survey("t.ini", &layers, &mut read);
    assert_eq!((faults.len(), config.main.max_client_conn), (0, 9));
    assert_eq!(told(&config), ["a.ini sets max_client_conn"]);
}

proptest! {
    /// Reading a layer that repeats what holds changes nothing, and no text makes the loader panic.
    #[test]
    fn any_text_is_read_without_panic(text in "[\\[\\]a-z+= '\n*]{0,80}") {
        let _ = load(&[("a.ini", &text)]);
    }
}

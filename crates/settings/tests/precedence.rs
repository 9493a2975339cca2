//! Which value counts if several could.

mod common;

use std::time::Duration;

use common::load;
use pgweir_settings::{
    Balance, BeginUndeclared, CausalReads, LoadBalanceHosts, PoolMode, Route, SessionState,
};

const FILE: &str = "
[pgbouncer]
pool_mode = session
default_pool_size = 20
min_pool_size = 1
reserve_pool_size = 2
max_db_connections = 30
max_db_client_connections = 31
max_user_connections = 40
max_user_client_connections = 41
query_timeout = 50
query_wait_timeout = 60
idle_transaction_timeout = 70
transaction_timeout = 80
client_idle_timeout = 90
server_lifetime = 100

[databases]
plain = host=a
own = pool_mode=transaction pool_size=5 min_pool_size=6 reserve_pool=7 max_db_connections=8 max_db_client_connections=9 server_lifetime=10 query_wait_timeout=11 load_balance_hosts=disable
zero = pool_size=0 min_pool_size=0 reserve_pool_size=0 max_db_connections=0 max_db_client_connections=0 server_lifetime=0 query_wait_timeout=0
below = pool_size=-1 min_pool_size=-1 reserve_pool_size=-1 max_db_connections=-1 max_db_client_connections=-1 query_wait_timeout=-1

[users]
own = pool_mode=statement pool_size=12 reserve_pool_size=13 max_user_connections=14 max_user_client_connections=15 query_timeout=16 query_wait_timeout=17 idle_transaction_timeout=18 transaction_timeout=19 client_idle_timeout=1.5
zero = pool_size=0 reserve_pool_size=0 max_user_connections=0 max_user_client_connections=0 query_timeout=0 query_wait_timeout=0 idle_transaction_timeout=0 transaction_timeout=0 client_idle_timeout=0
below = pool_size=-1 reserve_pool_size=-1 max_user_connections=-1 max_user_client_connections=-1
";

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn the_user_goes_before_the_database_before_the_global_value() {
    let config = load(FILE).expect("good");
    let plain = &config.databases["plain"];
    let own = &config.databases["own"];
    assert_eq!(config.pool_mode(plain, "nobody"), PoolMode::Session);
    assert_eq!(config.pool_mode(own, "nobody"), PoolMode::Transaction);
    assert_eq!(config.pool_mode(own, "own"), PoolMode::Statement);
    assert_eq!(
        [config.pool_size(plain, "nobody"), config.pool_size(own, "nobody"), config.pool_size(own, "own")],
        [20, 5, 12]
    );
    let reserve = [(plain, "nobody"), (own, "nobody"), (own, "own")]
        .map(|(db, user)| config.reserve_pool_size(db, user));
    assert_eq!(reserve, [2, 7, 13]);
    let wait = [(plain, "nobody"), (own, "nobody"), (own, "own")]
        .map(|(db, user)| config.query_wait_timeout(db, user));
    assert_eq!(wait, [seconds(60), seconds(11), seconds(17)]);
}

#[test]
fn what_only_a_database_has() {
    let config = load(FILE).expect("good");
    let plain = &config.databases["plain"];
    let own = &config.databases["own"];
    assert_eq!([config.min_pool_size(plain), config.min_pool_size(own)], [1, 6]);
    assert_eq!([config.max_db_connections(plain), config.max_db_connections(own)], [30, 8]);
    assert_eq!([config.max_db_client_connections(plain), config.max_db_client_connections(own)], [31, 9]);
    assert_eq!(
        [config.server_lifetime(plain), config.server_lifetime(own)].map(Some),
        [seconds(100), seconds(10)]
    );
    assert_eq!(config.load_balance_hosts(plain), LoadBalanceHosts::RoundRobin);
    assert_eq!(config.load_balance_hosts(own), LoadBalanceHosts::Disable);
}

#[test]
fn what_only_a_user_has() {
    let config = load(FILE).expect("good");
    let users = ["nobody", "own", "zero"];
    assert_eq!(users.map(|user| config.max_user_connections(user)), [40, 14, 40]);
    assert_eq!(users.map(|user| config.max_user_client_connections(user)), [41, 15, 41]);
    assert_eq!(users.map(|user| config.query_timeout(user)), [seconds(50), seconds(16), None]);
    assert_eq!(users.map(|user| config.idle_transaction_timeout(user)), [seconds(70), seconds(18), None]);
    assert_eq!(users.map(|user| config.transaction_timeout(user)), [seconds(80), seconds(19), None]);
    let idle = users.map(|user| config.client_idle_timeout(user));
    assert_eq!(idle, [seconds(90), Some(Duration::from_millis(1500)), None]);
}

#[test]
fn zero_and_below_mean_what_they_mean_in_pgbouncer() {
    let config = load(FILE).expect("good");
    let zero = &config.databases["zero"];
    assert_eq!((config.pool_size(zero, "nobody"), config.min_pool_size(zero)), (0, 0));
    assert_eq!(config.pool_size(zero, "zero"), 0);
    assert_eq!(config.reserve_pool_size(zero, "nobody"), 0);
    // A limit of a database cannot lift the global one, and its lifetime of zero is the global one.
    assert_eq!((config.max_db_connections(zero), config.max_db_client_connections(zero)), (30, 31));
    assert_eq!(Some(config.server_lifetime(zero)), seconds(100));
    assert_eq!(config.query_wait_timeout(zero, "nobody"), None);

    let below = &config.databases["below"];
    assert_eq!((config.pool_size(below, "below"), config.min_pool_size(below)), (20, 1));
    assert_eq!(config.reserve_pool_size(below, "below"), 2);
    assert_eq!((config.max_db_connections(below), config.max_db_client_connections(below)), (30, 31));
    assert_eq!((config.max_user_connections("below"), config.max_user_client_connections("below")), (40, 41));
    assert_eq!(config.query_wait_timeout(below, "nobody"), None);
}

/// One user's idle timeout must not become that of all users (PgBouncer's issue with a global timeout of zero).
#[test]
fn one_users_timeout_is_no_other_users() {
    let config = load("[pgbouncer]\n[users]\na = client_idle_timeout=5\n").expect("good");
    assert_eq!((config.client_idle_timeout("a"), config.client_idle_timeout("b")), (seconds(5), None));
}

#[test]
fn a_fraction_of_a_second_is_no_inherited_lifetime() {
    let config = load("[pgbouncer]\n[databases]\na = server_lifetime=0.4\n").expect("good");
    assert_eq!(config.databases["a"].server_lifetime, Some(Duration::from_millis(400)));
}

#[test]
fn session_state_goes_by_user_then_database() {
    let file = "[pgbouncer]\nsession_state = preserve\n[databases]\nplain = host=a\nown = host=a session_state=pgbouncer\n\
                [users]\nown = session_state=error\n";
    let config = load(file).expect("good");
    let (plain, own) = (&config.databases["plain"], &config.databases["own"]);
    let states = [(plain, "nobody"), (own, "nobody"), (own, "own"), (plain, "own")]
        .map(|(database, user)| config.session_state(database, user));
    use SessionState::{Error, Pgbouncer, Preserve};
    assert_eq!(states, [Preserve, Pgbouncer, Error, Error]);
}

#[test]
fn session_audit_sample_goes_by_user_then_database() {
    let file = "[pgbouncer]\nsession_audit_sample = 1\n[databases]\nplain = host=a\nown = host=a session_audit_sample=2\n\
                [users]\nown = session_audit_sample=0\n";
    let config = load(file).expect("a good file");
    let samples = [("plain", "u"), ("own", "u"), ("own", "own")].map(|(database, user)| {
        let database = config.database(database).expect("it is there");
        config.session_audit_sample(&database, user)
    });
    assert_eq!(samples, [1, 2, 0]);
}

#[test]
fn balance_goes_by_user_then_database_then_cluster() {
    let file = "[pgbouncer]\nauth_user = a\n[databases]\nalone = host=a\nplain = cluster=main\nown = cluster=main balance=session\n\
                [clusters]\nmain = nodes=n balance=statement\n[nodes]\nn = host=a\n[users]\nown = balance=statement\n";
    let config = load(file).expect("a good file");
    for (database, user, expected) in [
        ("alone", "x", Balance::Session),
        ("plain", "x", Balance::Statement),
        ("own", "x", Balance::Session),
        ("own", "own", Balance::Statement),
    ] {
        let config = (&config, config.database(database).expect("it is there"));
        assert_eq!(config.0.balance(&config.1, user), expected, "{database} {user}");
    }
}

#[test]
fn route_goes_by_user_then_database_then_cluster() {
    let file = "[pgbouncer]\nauth_user = a\n[databases]\nalone = host=a\nplain = cluster=main\nown = cluster=main route=standby\n\
                [clusters]\nmain = nodes=n route=any\n[nodes]\nn = host=a\n[users]\nown = route=prefer-standby\n";
    let config = load(file).expect("a good file");
    let routes = [("alone", "u"), ("plain", "u"), ("own", "u"), ("own", "own"), ("alone", "own")]
        .map(|(database, user)| config.route(&config.databases[database], user));
    use Route::{Any, PreferStandby, Primary, Standby};
    assert_eq!(routes, [Primary, Any, Standby, PreferStandby, PreferStandby]);
}

#[test]
fn lists_of_names_go_by_user_then_database_then_cluster() {
    let keys = ["read_functions", "write_functions", "primary_names"];
    for (place, key) in keys.into_iter().enumerate() {
        let file = format!(
            "[pgbouncer]\nauth_user = a\n[databases]\nplain = cluster=main\nown = cluster=main {key}=b,c\n\
             [clusters]\nmain = nodes=n {key}=a*\n[nodes]\nn = host=a\n[users]\nown = {key}=d\n"
        );
        let config = load(&file).expect("a good file");
        let lists = [("plain", "u"), ("own", "u"), ("own", "own")]
            .map(|(database, user)| config.name_lists(&config.databases[database], user)[place].join(" "));
        assert_eq!(lists, ["a*", "b c", "d"], "{key}");
        assert!(config.name_lists(&config.databases["plain"], "u")[(place + 1) % 3].is_empty());
    }
}

#[test]
fn commit_outcome_goes_by_user_then_database_then_cluster() {
    let file = "[pgbouncer]\nauth_user = a\n[databases]\nalone = host=a commit_outcome=on\nplain = cluster=main\n\
                own = cluster=main commit_outcome=off\n[clusters]\nmain = nodes=n commit_outcome=exact\n[nodes]\nn = host=a\n\
                [users]\nown = commit_outcome=on\n";
    let config = load(file).expect("a good file");
    let told = [("alone", "u"), ("plain", "u"), ("own", "u"), ("own", "own")]
        .map(|(database, user)| config.commit_outcome(&config.databases[database], user));
    use pgweir_settings::CommitOutcome::{Exact, Off, On};
    assert_eq!(told, [Off, Exact, Off, On]);
}

#[test]
fn causal_reads_go_by_user_then_database_then_cluster() {
    let file = "[pgbouncer]\nauth_user = a\n[databases]\nalone = host=a\nplain = cluster=main\nown = cluster=main causal_reads=database causal_wait_ms=5\n\
                [clusters]\nmain = nodes=n\n[nodes]\nn = host=a\n[users]\nown = causal_reads=off causal_wait_ms=7\n";
    let config = load(file).expect("a good file");
    let asked = [("alone", "u"), ("plain", "u"), ("own", "u"), ("own", "own"), ("alone", "own")];
    let of = |(database, user): (&str, &str)| {
        let database = &config.databases[database];
        (config.causal_reads(database, user), config.causal_wait_ms(database, user))
    };
    use CausalReads::{Database, Off, Session};
    assert_eq!(asked.map(of), [(Off, 0), (Session, 10), (Database, 5), (Off, 7), (Off, 7)]);
}

#[test]
fn begin_undeclared_goes_by_user_then_database_then_cluster() {
    let file = "[pgbouncer]\nauth_user = a\n[databases]\nalone = host=a\nplain = cluster=main\nown = cluster=main begin_undeclared=primary\n\
                [clusters]\nmain = nodes=n begin_undeclared=first\n[nodes]\nn = host=a\n[users]\nown = begin_undeclared=first\n";
    let config = load(file).expect("a good file");
    let asked = [("alone", "u"), ("plain", "u"), ("own", "u"), ("own", "own")];
    let of = |(database, user): (&str, &str)| config.begin_undeclared(&config.databases[database], user);
    use BeginUndeclared::{First, Primary};
    assert_eq!(asked.map(of), [Primary, First, Primary, First]);
}

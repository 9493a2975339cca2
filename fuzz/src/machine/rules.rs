//! The configurations that an input can choose from. They are read once.

use std::sync::{Arc, LazyLock};

use pgweir_auth::UserList;
use pgweir_core::mail::Rules;
use pgweir_settings::Config;

/// The users. No input can know the first one's password.
const USERS: &str = "\"alice\" \"tZ6#wq-9Lm;vR2@xK8_hB4\"\n\"admin\" \"Qp4!nW8$eR1^uT6&\"\n\"bob\" \"\"\n";

const DATABASES: &str = "[databases]
p = host=10.0.0.1
few = host=10.0.0.1,10.0.0.2 user=alice pool_size=1 reserve_pool_size=1 connect_query='select 1'
kept = host=/tmp user=alice min_pool_size=1 pool_size=2
own = host=10.0.0.3 pool_mode=session
* = host=10.0.0.4
[users]
bob = pool_mode=statement max_user_connections=1
";

/// What is the same in all of them: short times, so that an input can let them pass.
const TIMES: &str = "[pgbouncer]
admin_users = admin
query_timeout = 100
query_wait_timeout = 50
idle_transaction_timeout = 60
client_idle_timeout = 200
server_login_retry = 1
server_idle_timeout = 30
server_check_delay = 5
autodb_idle_timeout = 100
pool_idle_timeout = 100
";

const MODES: [&str; 4] = [
    "pool_mode = transaction\n",
    "pool_mode = session\n",
    "pool_mode = statement\nserver_protocol = 3.0\n",
    "pool_mode = transaction\nmax_prepared_statements = 1\ndefault_pool_size = 1\nmax_db_connections = 1\n\
     server_reset_query_always = 1\nserver_check_delay = 0\n",
];

const LOGINS: [&str; 4] = [
    "auth_type = trust\nserver_tls_sslmode = disable\n",
    "auth_type = md5\nserver_tls_sslmode = disable\n",
    "auth_type = scram-sha-256\nclient_tls_sslmode = allow\n",
    "auth_type = trust\nclient_tls_sslmode = allow\nserver_tls_sslmode = prefer\nmax_client_conn = 3\n",
];

static ALL: LazyLock<Vec<Rules>> = LazyLock::new(|| {
    let (users, warnings) = UserList::parse(USERS);
    assert!(warnings.is_empty(), "{warnings:?}");
    let users = Arc::new(users);
    let mut all = Vec::new();
    for login in LOGINS {
        for mode in MODES {
            let text = format!("{DATABASES}{TIMES}{mode}{login}");
            let config = Config::load("fuzz.ini", &mut |_| Ok(text.clone()));
            let config = config.unwrap_or_else(|errors| panic!("{errors:?}"));
            all.push(Rules {
                config: Arc::new(config),
                users: Arc::clone(&users),
                access: Arc::default(),
                server_tls_epoch: 0,
            });
        }
    }
    all
});

/// The configuration of an input's first byte.
pub fn rules(selector: u8) -> Rules {
    ALL[usize::from(selector) % ALL.len()].clone()
}

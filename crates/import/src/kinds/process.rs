//! The environment of a process in a container: finds the variables that are meant for the pooler, and their
//! names.

use pgweir_settings::{MAIN_ROWS, did_you_mean, is_of_kubernetes, row as setting};

use super::environment::{Origin, ROWS, translate};
use crate::mapping::row;
use crate::reader::Reader;
use crate::tree::{Node, Table, Value};

/// The prefix of pgweir's variables. They override those without it, and a misspelled one is a fault.
const OURS: &str = "PGWEIR_";
const THEIRS: &str = "PGBOUNCER_";

/// Settings whose name in upper case is a variable that a shell or an image sets for itself. Only the prefix
/// makes them pgweir's.
const COMMON: [&str; 1] = ["USER"];

pub(crate) fn read(variables: &[(String, String)], reader: &mut Reader<'_, '_>) {
    let mut table = Table::default();
    let mut add = |key: &str, text: &str| {
        if table.get(key).is_none() {
            table.0.push((key.to_owned(), Node { line: 0, value: Value::Text(text.to_owned()) }));
        }
    };
    let meant: Vec<&(String, String)> =
        variables.iter().filter(|(key, text)| !is_of_kubernetes(key, text)).collect();
    for (key, text) in &meant {
        // `PGWEIR_INI` completes the file that is written from the other variables.
        let Some(name) = key.strip_prefix(OURS).filter(|name| *name != "INI") else { continue };
        if is_known(name) {
            add(name, text);
        } else {
            reader.fault(0, unknown(key, name));
        }
    }
    for (key, text) in meant.iter().filter(|(key, _)| !key.starts_with(OURS) && is_variable(key)) {
        add(key, text);
    }
    translate(table, Origin::Process, reader);
    let settings = &reader.plan.settings;
    if settings.contains_key("auth_file") && !reader.plan.secrets.is_empty() {
        let text = "AUTH_FILE and a password are both set: list that user in AUTH_FILE and leave the password out, or leave AUTH_FILE out";
        reader.fault(0, text);
    }
}

/// Returns whether a variable is meant for a pooler, by its name.
pub(crate) fn is_variable(key: &str) -> bool {
    let is_prefixed = [OURS, THEIRS, "POSTGRESQL_"].iter().any(|prefix| key.starts_with(prefix));
    is_prefixed || !COMMON.contains(&key) && is_known(key)
}

/// Returns whether a name without prefix is known: a variable of the images, a file with its value, or a
/// setting.
fn is_known(name: &str) -> bool {
    let has_row = |name: &str| row(ROWS, name).is_some();
    let is_upper = !name.bytes().any(|byte| byte.is_ascii_lowercase());
    has_row(name)
        || name.strip_suffix("_FILE").is_some_and(has_row)
        || is_upper && setting(MAIN_ROWS, &name.to_ascii_lowercase()).is_some()
}

fn unknown(key: &str, name: &str) -> String {
    let settings = MAIN_ROWS.iter().map(|row| row.name);
    format!("unknown variable {key}{}", did_you_mean(&name.to_ascii_lowercase(), settings))
}

#[cfg(test)]
mod tests {
    use crate::{Fault, Import, Places, import_environment};

    fn read(variables: &[(&str, &str)]) -> Result<Import, Vec<Fault>> {
        let variables: Vec<_> =
            variables.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        let defaults = [("unix_socket_dir", "/run/pgweir".to_owned())];
        import_environment(&variables, &defaults, &mut |name| match name {
            "/run/secrets/db" => Ok("from-file\n".to_owned()),
            "/etc/pgbouncer/userlist.txt" if variables.iter().any(|(key, _)| key == "HAS_LIST") => {
                Ok("; a comment\n\"carol\" \"md5a3556571e93b0d20722ba62be61e8c2d\"\n\"alice\" \"other\"\n"
                    .to_owned())
            }
            _ => Err("no such file".to_owned()),
        })
    }

    fn ini(variables: &[(&str, &str)]) -> String {
        read(variables).expect("it is good").ini(&Places::default())
    }

    fn faults(variables: &[(&str, &str)]) -> String {
        let faults = read(variables).map(|_| ()).expect_err("it is bad");
        faults.iter().map(|fault| format!("{fault}\n")).collect()
    }

    const URL: (&str, &str) = ("DATABASE_URL", "postgres://alice:s3cret@db:5433/shop");

    #[test]
    fn the_url_and_settings_become_files() {
        let import =
            read(&[URL, ("POOL_MODE", "transaction"), ("PATH", "/bin"), ("HOME", "/")]).expect("good");
        let ini = import.ini(&Places::default());
        for line in ["shop = host=db port=5433\n", "pool_mode = transaction\n", "listen_port = 6432\n"] {
            assert!(ini.contains(line), "{line} in {ini}");
        }
        assert!(ini.contains("unix_socket_dir = /run/pgweir\n") && !ini.contains("s3cret"), "{ini}");
        assert!(ini.starts_with("; Written by pgweir entrypoint. "), "{ini}");
        assert_eq!(import.users().as_deref(), Some("\"alice\" \"s3cret\"\n"));
        assert!(import.findings().is_empty(), "{:?}", import.findings());
    }

    #[test]
    fn parts_in_old_and_new_names() {
        for prefix in ["DB", "DATABASES", "PGWEIR_DB"] {
            let name =
                if prefix == "DATABASES" { "DATABASES_DBNAME".to_owned() } else { format!("{prefix}_NAME") };
            let [host, user, secret] =
                ["HOST", "USER", "PASSWORD_FILE"].map(|part| format!("{prefix}_{part}"));
            let given = [(&*host, "db"), (&*user, "bob"), (&*secret, "/run/secrets/db"), (&*name, "shop")];
            let import = read(&given).expect("good");
            assert!(import.ini(&Places::default()).contains("shop = host=db port=5432\n"), "{prefix}");
            assert_eq!(import.users().as_deref(), Some("\"bob\" \"from-file\"\n"), "{prefix}");
        }
        let bitnami =
            [("POSTGRESQL_HOST", "db"), ("POSTGRESQL_PASSWORD", "x"), ("PGBOUNCER_POOL_MODE", "statement")];
        let ini = ini(&bitnami);
        assert!(
            ini.contains("postgres = host=db port=5432\n") && ini.contains("pool_mode = statement\n"),
            "{ini}"
        );
    }

    #[test]
    fn the_console_and_auth_query_of_edoburus_image() {
        let given = [
            ("DB_HOST", "db"),
            ("DB_USER", "asker"),
            ("DB_PASSWORD", "hunter2"),
            ("AUTH_QUERY", "SELECT u, p FROM l($1)"),
            ("ADMIN_USERS", "root, ops"),
            ("ADMIN_PASSWORDS", "hunter3,hunter4"),
            ("STATS_USERS", "stat"),
            ("STATS_PASSWORDS", "hunter5"),
            ("POOL_SIZE", "7"),
            ("TIMEZONE", "UTC"),
        ];
        let import = read(&given).expect("good");
        let ini = import.ini(&Places::default());
        assert!(ini.contains("* = host=db port=5432 auth_user=asker pool_size=7 timezone=UTC\n"), "{ini}");
        assert!(ini.contains("admin_users = root, ops\n") && ini.contains("stats_users = stat\n"), "{ini}");
        assert!(!ini.contains("hunter"), "{ini}");
        let users = import.users().expect("users");
        for line in
            ["\"ops\" \"hunter4\"", "\"root\" \"hunter3\"", "\"stat\" \"hunter5\"", "\"asker\" \"hunter2\""]
        {
            assert!(users.contains(line), "{line} in {users}");
        }
        assert!(!self::ini(&[URL]).contains("admin_users"), "that user could not log in");
        let postgres = self::ini(&[("DB_HOST", "db"), ("DB_USER", "postgres"), ("DB_PASSWORD", "x")]);
        assert!(postgres.contains("admin_users = postgres\n"), "the image's default: {postgres}");
        assert!(faults(&[URL, ("ADMIN_PASSWORDS", "a,b")]).contains("ADMIN_PASSWORDS has more passwords"));
    }

    #[test]
    fn a_list_of_users_that_is_mounted_counts_beside_the_variables() {
        let import = read(&[URL, ("HAS_LIST", "1")]).expect("good");
        let users = import.users().expect("users");
        assert_eq!(users, "\"alice\" \"s3cret\"\n\"carol\" \"md5a3556571e93b0d20722ba62be61e8c2d\"\n");
    }

    #[test]
    fn lines_of_bitnamis_image() {
        let given = [
            ("PGBOUNCER_DSN_0", "pg1=host=a port=5433 password=hunter2"),
            ("PGBOUNCER_DSN_1", "my db=host=b"),
            ("PGBOUNCER_AUTH_TYPE", "any"),
        ];
        let import = read(&given).expect("good");
        let ini = import.ini(&Places::default());
        assert!(ini.contains("pg1 = host=a port=5433 password=hunter2\n"), "{ini}");
        assert!(ini.contains("\"my db\" = host=b\n") && !ini.contains("postgresql"), "{ini}");
        assert!(import.ini_has_secret());
        let shown = import.ini(&Places { hide_secrets: true, ..Places::default() });
        assert!(!shown.contains("hunter2"), "{shown}");
        let said = faults(&[("PGBOUNCER_DSN_0", "pg1=host=a pasword=hunter2")]);
        assert!(said.contains("pasword") && !said.contains("hunter2"), "{said}");
        let both = self::ini(&[given[0], ("POSTGRESQL_HOST", "c"), ("POSTGRESQL_PASSWORD", "x")]);
        assert!(both.contains("pg1 = ") && both.contains("postgres = host=c port=5432\n"), "{both}");
    }

    #[test]
    fn the_environment_of_zalandos_operator() {
        let given = [
            ("CONNECTION_POOLER_PORT", "5432"),
            ("CONNECTION_POOLER_MODE", "transaction"),
            ("CONNECTION_POOLER_DEFAULT_SIZE", "12"),
            ("CONNECTION_POOLER_MAX_CLIENT_CONN", "900"),
            ("CONNECTION_POOLER_MAX_DB_CONN", "60"),
            ("PGHOST", "acid-minimal"),
            ("PGPORT", "5432"),
            ("PGUSER", "pooler"),
            ("PGSCHEMA", "pooler"),
            ("PGPASSWORD", "hunter2"),
        ];
        let import = read(&given).expect("good");
        let ini = import.ini(&Places::default());
        for line in [
            "* = host=acid-minimal port=5432 auth_query='SELECT * FROM \"pooler\".user_lookup($1)' auth_user=pooler\n",
            "listen_port = 5432\n",
            "pool_mode = transaction\n",
            "default_pool_size = 12\n",
            "max_db_connections = 60\n",
            "server_tls_sslmode = require\n",
            "auth_type = scram-sha-256\n",
            "admin_users = pooler\n",
        ] {
            assert!(ini.contains(line), "{line} in {ini}");
        }
        assert_eq!(import.users().as_deref(), Some("\"pooler\" \"hunter2\"\n"));
        // The operator's own image makes a certificate as well.
        assert!(import.needs_certificate() && import.findings().is_empty());
        assert!(
            ini.contains("client_tls_sslmode = require\n")
                && ini.contains("client_tls_cert_file = client.crt\n")
        );
        let plain = [&given[..], &[("PGWEIR_CLIENT_TLS_SSLMODE", "disable")]].concat();
        assert!(!read(&plain).expect("good").needs_certificate());
        let offered = [&given[..], &[("PGWEIR_CLIENT_TLS_SSLMODE", "prefer")]].concat();
        assert!(self::ini(&offered).contains("client_tls_sslmode = prefer\n"));
        let without_port: Vec<_> = given[1..].to_vec();
        assert!(self::ini(&without_port).contains("listen_port = 5432\n"), "the port of PostgreSQL");
        let without: Vec<_> = given.iter().copied().filter(|(key, _)| *key != "PGHOST").collect();
        assert!(faults(&without).contains("PGHOST is not set"));
        let tls = [
            &given[..],
            &[
                ("CONNECTION_POOLER_CLIENT_TLS_CRT", "/tls/tls.crt"),
                ("CONNECTION_POOLER_CLIENT_TLS_KEY", "/tls/tls.key"),
            ],
        ]
        .concat();
        let mounted = read(&tls).expect("good");
        assert!(!mounted.needs_certificate());
        let ini = mounted.ini(&Places::default());
        assert!(
            ini.contains("client_tls_sslmode = require\n")
                && ini.contains("client_tls_cert_file = /tls/tls.crt\n")
        );
        // libpq's own variables have no meaning in the other images.
        assert!(!self::ini(&[URL, ("PGHOST", "elsewhere")]).contains("elsewhere"));
    }

    #[test]
    fn our_prefix_wins_and_its_names_are_checked() {
        let ini = ini(&[
            URL,
            ("POOL_MODE", "session"),
            ("PGWEIR_POOL_MODE", "statement"),
            ("PGBOUNCER_MAX_DB_CONNECTIONS", "7"),
        ]);
        assert!(ini.contains("pool_mode = statement\n") && ini.contains("max_db_connections = 7\n"), "{ini}");
        assert!(
            !self::ini(&[URL, ("PGWEIR_INI", "[databases]")]).contains("INI"),
            "it is read after the file"
        );
        let said = faults(&[URL, ("PGWEIR_POOL_MOD", "hunter2")]);
        assert!(said.contains("unknown variable PGWEIR_POOL_MOD; did you mean \"pool_mode\"?"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }

    #[test]
    fn variables_of_the_surroundings_are_left_alone() {
        let links = [
            URL,
            ("USER", "nobody"),
            ("PGWEIR_PORT", "tcp://10.0.0.1:6432"),
            ("PGWEIR_SERVICE_HOST", "10.0.0.1"),
            ("PGWEIR_PORT_6432_TCP_ADDR", "10.0.0.1"),
            ("DB_PORT", "tcp://10.0.0.2:5432"),
        ];
        let ini = ini(&links);
        assert!(!ini.contains("10.0.0") && !ini.contains("nobody"), "{ini}");
    }

    #[test]
    fn faults_name_the_variable_and_no_secret() {
        assert!(faults(&[]).contains("neither DATABASE_URL nor DB_HOST"));
        let said = faults(&[("DATABASE_URL", "mysql://alice:s3cret@db/shop")]);
        assert!(said.contains("DATABASE_URL: it must be postgres://") && !said.contains("s3cret"), "{said}");
        let said = faults(&[("DB_HOST", "db"), ("DB_USER", "a"), ("DB_PASSWORD_FILE", "/gone")]);
        assert!(said.contains("DB_PASSWORD_FILE") && said.contains("no such file"), "{said}");
        let said = faults(&[URL, ("AUTH_FILE", "/etc/pgweir/userlist.txt")]);
        assert!(said.contains("AUTH_FILE and a password are both set"), "{said}");
        let ini = ini(&[("DB_HOST", "db"), ("AUTH_FILE", "/etc/pgweir/userlist.txt")]);
        assert!(ini.contains("auth_file = /etc/pgweir/userlist.txt\n"), "{ini}");
    }
}

//! How PostgreSQL is entered: the role, its password from the password file, TLS, and the same as a connection string for PostgreSQL's
//! own programs. A password never becomes part of a connection string.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{Uid, User};
use pgweir_auth::{Credential, PlainPassword};
use pgweir_client::{Address, Login, Tls};
use pgweir_net::{Pems, TlsConfigs};
use pgweir_settings::Config;

use crate::probe;

/// How long PostgreSQL may take for an answer. CHECKPOINT, which takes longer, is asked without a limit.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The database of sessions that ask and of slots.
const DATABASE: &str = "postgres";

/// The word for which password files and servers know replication connections.
const REPLICATION: &str = "replication";

/// Variables of libpq that say how TLS is used, each with its key in a connection string.
const TLS_VARIABLES: [(&str, &str); 4] = [
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
];

/// The way into the servers of a cluster.
pub(super) struct Access {
    pub(super) user: String,
    /// The password file, if there is one that libpq would read.
    pub(super) password_file: Option<PathBuf>,
    lines: String,
    tls: TlsConfigs,
    /// Keys and values for connection strings.
    tls_words: Vec<(&'static str, String)>,
}

impl Access {
    /// Reads the password file and the variables.
    ///
    /// # Errors
    /// TLS cannot be used as the variables say, or the user has no name.
    pub(super) fn of_environment(user: Option<&str>) -> Result<Access, String> {
        let own = User::from_uid(Uid::effective()).ok().flatten();
        let user = match (user, &own) {
            (Some(user), _) => user.to_owned(),
            (None, Some(own)) => own.name.clone(),
            (None, None) => return Err("this user has no name; name the role with --user".to_owned()),
        };
        let home = own.map(|own| own.dir.join(".pgpass"));
        let file = std::env::var_os("PGPASSFILE").map(PathBuf::from).or(home);
        let read = file.and_then(|file| Some((password_lines(&file)?, file)));
        let (lines, password_file) = read.map_or((String::new(), None), |(lines, file)| (lines, Some(file)));
        let known = |(variable, key): (&str, &'static str)| Some((key, std::env::var(variable).ok()?));
        let tls_words: Vec<(&str, String)> = TLS_VARIABLES.into_iter().filter_map(known).collect();
        let tls = tls_configs(&tls_words)?;
        Ok(Access { user, password_file, lines, tls, tls_words })
    }

    /// A login for statements.
    pub(super) fn session(&self, host: &str, port: u16) -> Result<Login, String> {
        self.login(host, port, DATABASE)
    }

    /// A login for replication commands, as pg_basebackup and the standby make it.
    pub(super) fn replication(&self, host: &str, port: u16) -> Result<Login, String> {
        let mut login = self.login(host, port, REPLICATION)?;
        login.parameters.push((REPLICATION.to_owned(), "true".to_owned()));
        Ok(login)
    }

    fn login(&self, host: &str, port: u16, database: &str) -> Result<Login, String> {
        let is_unix = host.starts_with(['/', '@']);
        let address = match is_unix {
            true => Address::Unix(host.into(), port),
            false => Address::Tcp(host.to_owned(), port),
        };
        let mut login = Login::trusted(address, &self.user, database, "pgweir node");
        let password = password(&self.lines, [host, &port.to_string(), database, &self.user]);
        if let Some(password) = password {
            login.credential = Credential::Password(PlainPassword::new(&password));
        }
        login.wait_max = WAIT_MAX;
        let tls: Option<Tls> = if is_unix { None } else { probe::of_server(&self.tls, host)? };
        login.tls = tls;
        Ok(login)
    }

    /// A connection string, to which the password file is the only way to a password.
    pub(super) fn conninfo(&self, host: &str, port: u16, more: &[(&str, &str)]) -> String {
        let port = port.to_string();
        let mut words = vec![("host", host), ("port", &*port), ("user", &*self.user)];
        let file = self.password_file.as_deref().and_then(Path::to_str);
        words.extend(file.map(|file| ("passfile", file)));
        words.extend(self.tls_words.iter().map(|(key, value)| (*key, value.as_str())));
        words.extend_from_slice(more);
        let words: Vec<String> =
            words.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
        words.join(" ")
    }

    /// The connection string of a session for statements.
    pub(super) fn session_conninfo(&self, host: &str, port: u16) -> String {
        self.conninfo(host, port, &[("dbname", DATABASE)])
    }
}

/// A value of a connection string.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// The lines of a password file. As libpq does, a file that others may read is not used.
fn password_lines(file: &Path) -> Option<String> {
    let about = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    if about.permissions().mode() & 0o077 != 0 {
        eprintln!("pgweir node: {} is not used: others may read it (chmod 0600)", file.display());
        return None;
    }
    fs::read_to_string(file).ok()
}

/// The password of the first line that fits a host, a port, a database and a user.
fn password(lines: &str, wanted: [&str; 4]) -> Option<String> {
    let fits = |line: &&str| {
        let fields = fields(line);
        let is_same = |(field, wanted): (&String, &&str)| field == "*" || field == wanted;
        fields.len() == 5 && fields.iter().zip(&wanted).all(is_same)
    };
    let line = lines.lines().filter(|line| !line.starts_with('#')).find(fits)?;
    fields(line).pop()
}

/// The fields of a line. A backslash before `:` or a backslash takes its meaning away.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut signs) = (vec![String::new()], line.chars());
    while let Some(sign) = signs.next() {
        let last = fields.last_mut().expect("there is always one");
        match sign {
            '\\' => last.extend(signs.next()),
            ':' => fields.push(String::new()),
            sign => last.push(sign),
        }
    }
    fields
}

/// TLS as the variables of libpq say.
fn tls_configs(words: &[(&str, String)]) -> Result<TlsConfigs, String> {
    let of = |key: &str| words.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str());
    let mode = match of("sslmode") {
        Some(mode) => format!("[pgbouncer]\nserver_tls_sslmode = {mode}\n"),
        None => "[pgbouncer]\n".to_owned(),
    };
    let config = Config::load("PGSSLMODE", &mut |_| Ok(mode.clone()));
    let config = config.map_err(|_| "PGSSLMODE has a value that libpq does not know".to_owned())?;
    let read = |key: &str| {
        let file = of(key).filter(|file| !["", "system"].contains(file));
        file.map(|file| fs::read(file).map_err(|error| format!("{file}: {error}"))).transpose()
    };
    let (ca, cert, key) = (read("sslrootcert")?, read("sslcert")?, read("sslkey")?);
    let pems = Pems { cert: cert.as_deref(), key: key.as_deref(), ca: ca.as_deref() };
    TlsConfigs::build(&config.main, Pems::default(), pems).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let lines = "# a comment\nh:5432:replication:repl:a\\:b\n*:*:*:repl:c\\\\d\nh:5432:x:y\n";
        let of = |database, user| password(lines, ["h", "5432", database, user]);
        assert_eq!(of("replication", "repl").as_deref(), Some("a:b"));
        assert_eq!(of("postgres", "repl").as_deref(), Some("c\\d"));
        assert_eq!(of("postgres", "other"), None);
    }

    #[test]
    fn a_connection_string_names_the_password_file() {
        let access = Access {
            user: "it's".to_owned(),
            password_file: Some("/var/lib/my file".into()),
            lines: "*:*:*:*:s3cret".to_owned(),
            tls: TlsConfigs::default(),
            tls_words: vec![("sslmode", "require".to_owned())],
        };
        let text = access.conninfo("10.0.0.1", 5432, &[("application_name", "m4")]);
        assert_eq!(
            text,
            "host=10.0.0.1 port=5432 user='it\\'s' passfile='/var/lib/my file' sslmode=require application_name=m4"
        );
        assert!(access.session("10.0.0.1", 5432).expect("good").password().is_some());
    }
}

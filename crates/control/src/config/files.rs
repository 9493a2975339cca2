//! The files besides the configuration itself: the user list and the certificates.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use pgweir_auth::UserList;
use pgweir_settings::{MAIN_ROWS, Main, SslMode};

/// Reads a text file. The error is the reason, without the file's name.
pub(crate) fn read_text(path: &str) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// The attributes that change when a file does, so that a change is noticed without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fingerprint {
    place: (u64, u64),
    owner: (u32, u32, u32),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    fn of(path: &str) -> std::io::Result<Fingerprint> {
        let found = fs::metadata(path)?;
        Ok(Fingerprint {
            place: (found.dev(), found.ino()),
            owner: (found.uid(), found.gid(), found.mode()),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// The users of `auth_file`, with the file and the state of it that they were read from.
#[derive(Clone, Default)]
pub(crate) struct UsersFile {
    pub(crate) users: Arc<UserList>,
    from: Option<(String, Fingerprint)>,
}

impl UsersFile {
    /// Returns the current users of `auth_file`, and the file's faults; with faults, the list has the users
    /// up to there. The file is read again only if its name or its state has changed. Passwords that have not
    /// changed keep what was derived from them.
    pub(crate) fn refresh(&self, auth_file: Option<&str>) -> (UsersFile, Vec<String>) {
        let Some(path) = auth_file.filter(|path| !path.is_empty()) else {
            return (UsersFile::default(), Vec::new());
        };
        // The state is taken before the file is read, so that a change during the reading is noticed next
        // time.
        let fingerprint = match Fingerprint::of(path) {
            Ok(fingerprint) => fingerprint,
            Err(error) => return (UsersFile::default(), vec![could_not_open(path, &error.to_string())]),
        };
        if let Some((known_path, known)) = &self.from
            && known_path == path
            && *known == fingerprint
        {
            return (self.clone(), Vec::new());
        }
        match fs::read(path) {
            Ok(text) => {
                let (mut users, faults) = UserList::parse(&text);
                users.inherit(&self.users);
                // A broken file is read again at each reload, so that each reload reports the fault.
                let from = faults.is_empty().then(|| (path.to_owned(), fingerprint));
                let faults = faults.into_iter().map(|fault| format!("{fault} (auth_file {path})")).collect();
                (UsersFile { users: Arc::new(users), from }, faults)
            }
            Err(error) => (UsersFile::default(), vec![could_not_open(path, &error.to_string())]),
        }
    }
}

fn could_not_open(path: &str, why: &str) -> String {
    format!("could not open auth_file {path}: {why}")
}

/// The parts of TLS with clients, or with servers: the settings, and the contents of the files (PEM).
#[derive(Clone, PartialEq, Eq)]
pub struct TlsSide {
    /// All settings of this side, as SHOW CONFIG writes them. They decide, too, whether anything changed.
    settings: Vec<Option<String>>,
    /// The private key.
    pub key: Option<Vec<u8>>,
    /// The certificate chain that belongs to the key.
    pub cert: Option<Vec<u8>>,
    /// Certificates of the authorities that the peer's certificate is checked against.
    pub ca: Option<Vec<u8>>,
}

/// Prints no contents: one of them is a private key.
impl fmt::Debug for TlsSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSide").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The parts of TLS with both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The settings `client_tls_*` and their files.
    pub clients: TlsSide,
    /// The settings `server_tls_*` and their files.
    pub servers: TlsSide,
}

impl TlsFiles {
    /// Reads the files that the settings name. For a side that is switched off, nothing is read.
    pub(crate) fn read(main: &Main) -> Result<TlsFiles, Vec<String>> {
        let (files, faults) = TlsFiles::read_what_is_there(main);
        if faults.is_empty() { Ok(files) } else { Err(faults) }
    }

    /// Reads the files like [`TlsFiles::read`], for a report: files that cannot be read are faults, and
    /// missing.
    pub(crate) fn read_what_is_there(main: &Main) -> (TlsFiles, Vec<String>) {
        let mut faults = Vec::new();
        let mut side = |prefix: &str, mode, files: [&String; 3]| {
            let rows = MAIN_ROWS.iter().filter(|row| row.name.starts_with(prefix));
            let mut read = |setting: &str, path: &String| {
                if mode == SslMode::Disable || path.is_empty() {
                    return None;
                }
                let fault = |error| format!("invalid {prefix}_{setting}: {path}: {error}");
                fs::read(path).map_err(|error| faults.push(fault(error))).ok()
            };
            TlsSide {
                settings: rows.map(|row| row.render(main)).collect(),
                key: read("key_file", files[0]),
                cert: read("cert_file", files[1]),
                ca: read("ca_file", files[2]),
            }
        };
        let clients = side(
            "client_tls",
            main.client_tls_sslmode,
            [&main.client_tls_key_file, &main.client_tls_cert_file, &main.client_tls_ca_file],
        );
        let servers = side(
            "server_tls",
            main.server_tls_sslmode,
            [&main.server_tls_key_file, &main.server_tls_cert_file, &main.server_tls_ca_file],
        );
        (TlsFiles { clients, servers }, faults)
    }
}

#[cfg(test)]
mod tests {
    use pgweir_auth::{Guard, GuardEnv};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn users_are_read_again_only_when_the_file_changed() {
        let scratch = Scratch::new("users-stat");
        let path = scratch.write("users", "\"a\" \"1\"\n");
        let path = path.to_str();
        let (first, faults) = UsersFile::default().refresh(path);
        assert!(faults.is_empty());
        let (second, _) = first.refresh(path);
        assert!(Arc::ptr_eq(&first.users, &second.users), "unchanged, so it is the same list");

        scratch.write("users", "\"a\" \"1\"\n\"b\" \"2\"\n");
        let (third, _) = second.refresh(path);
        assert_eq!(third.users.names().collect::<Vec<_>>(), ["a", "b"]);

        let other = scratch.write("other", "\"c\" \"3\"\n");
        let (fourth, _) = third.refresh(other.to_str());
        assert_eq!(fourth.users.names().collect::<Vec<_>>(), ["c"]);
        let (none, faults) = fourth.refresh(None);
        assert!(none.users.is_empty() && faults.is_empty());
    }

    #[test]
    fn a_password_that_stays_is_not_derived_again() {
        let scratch = Scratch::new("users-keys");
        let path = scratch.write("users", "\"a\" \"1\"\n\"b\" \"2\"\n");
        let path = path.to_str();
        let env = GuardEnv { mock_seed: &[7; 32], scram_iterations: 2, end_point: None };
        let derives = |file: &UsersFile| -> Vec<String> {
            let done = |(user, secret)| Guard::prepare(user, secret, &env).then(|| user.to_owned());
            file.users.iter().filter_map(done).collect()
        };
        let (first, _) = UsersFile::default().refresh(path);
        assert_eq!(derives(&first), ["a", "b"]);
        scratch.write("users", "\"a\" \"1\"\n\"b\" \"new\"\n\"c\" \"3\"\n");
        let (second, _) = first.refresh(path);
        assert_eq!(derives(&second), ["b", "c"]);
    }

    #[test]
    fn faults_of_the_user_list_name_the_file_each_time() {
        let scratch = Scratch::new("users-broken");
        let path = scratch.write("users", "\"a\" \"1\"\nb 2\n\"c\" \"3\"\n");
        let path = path.to_str().expect("a plain name");
        let (first, faults) = UsersFile::default().refresh(Some(path));
        assert_eq!(first.users.len(), 1);
        assert!(
            faults.len() == 1 && faults[0].contains("broken auth file line 2") && faults[0].contains(path)
        );
        assert_eq!(first.refresh(Some(path)).1, faults);

        let missing = scratch.path("missing");
        let (none, faults) = first.refresh(missing.to_str());
        assert!(none.users.is_empty());
        assert!(faults[0].starts_with("could not open auth_file "), "{faults:?}");

        std::fs::write(&missing, b"; \xff\n\"a\" \"\xff\"\n").expect("writable");
        let (users, faults) = first.refresh(missing.to_str());
        assert_eq!((users.users.len(), faults), (1, Vec::new()), "whatever the encoding");
    }

    #[test]
    fn tls_files_are_read_for_sides_that_are_on() {
        let scratch = Scratch::new("tls-files");
        let name = |path: std::path::PathBuf| path.display().to_string();
        let mut main = Main {
            client_tls_key_file: name(scratch.path("missing")),
            server_tls_sslmode: SslMode::Disable,
            server_tls_ca_file: name(scratch.path("missing")),
            ..Main::default()
        };
        let off = TlsFiles::read(&main).expect("nothing is read");
        assert_eq!((&off.clients.key, &off.servers.ca), (&None, &None));

        main.client_tls_sslmode = SslMode::Require;
        main.server_tls_sslmode = SslMode::VerifyFull;
        let faults = TlsFiles::read(&main).expect_err("both are missing");
        assert_eq!(faults.len(), 2);
        assert!(faults[0].starts_with("invalid client_tls_key_file: "), "{faults:?}");
        assert!(faults[1].starts_with("invalid server_tls_ca_file: "), "{faults:?}");

        main.client_tls_key_file = name(scratch.write("key", "KEY"));
        main.server_tls_ca_file = name(scratch.write("ca", "CA"));
        let on = TlsFiles::read(&main).expect("all there");
        assert_eq!(on.clients.key.as_deref(), Some(&b"KEY"[..]));
        assert_eq!(on.servers.ca.as_deref(), Some(&b"CA"[..]));
        assert!(!format!("{on:?}").contains("75, 69, 89"), "no key in Debug output");

        main.server_tls13_ciphers = Some("TLS_AES_128_GCM_SHA256".to_owned());
        let other = TlsFiles::read(&main).expect("all there");
        assert!(other.clients == on.clients && other.servers != on.servers, "a cipher is a change too");
    }
}

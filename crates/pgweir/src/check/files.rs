//! Files and directories that a configuration names: what is missing or cannot be read, and is no fault of a start.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use pgweir_auth::{Secret, UserList};
use pgweir_control::process::{expected_files, is_root};
use pgweir_settings::{AuthType, Config, Main, SslMode};

use super::Message;

/// Directories that a service manager makes when it starts the service.
const MADE_AT_START: [&str; 2] = ["/run", "/var/run"];

/// The user id that belongs to no user: what it can read, every user can.
const NOBODY: u32 = 65534;

/// Warnings about files and directories.
pub(super) fn warnings(config: &Config, users: Option<&UserList>) -> Vec<Message> {
    let main = &config.main;
    let mut found = directories(config);
    found.extend(users.and_then(|users| passwords_for_all(config, users)));
    found.extend(too_few_files(config));
    for Named { setting, path, unused } in named(main) {
        match (File::open(path), unused) {
            (Ok(_), _) => found.extend(unreadable_for_the_user(config, setting, path)),
            // A file that is in use and cannot be read is a fault, and told already.
            (Err(_), None) => {}
            (Err(error), Some(why)) => {
                let text = format!("{setting} {path} cannot be read ({error}); it has no effect with {why}");
                found.push(placed(config, setting, text));
            }
        }
    }
    found
}

/// Plain passwords that every user of this machine can read.
fn passwords_for_all(config: &Config, users: &UserList) -> Option<Message> {
    let path = config.main.auth_file.as_deref()?;
    let is_open = Reader::other().can_read(&fs::canonicalize(path).ok()?);
    if !is_open || !users.iter().any(|(_, secret)| matches!(secret, Secret::Plain(_))) {
        return None;
    }
    let text = format!(
        "auth_file {path} has passwords in plain text, and every user of this machine can read it: chmod 640 {path}, or write SCRAM secrets"
    );
    Some(placed(config, "auth_file", text))
}

/// More clients than files that a process which is started from here may open.
fn too_few_files(config: &Config) -> Option<Message> {
    let (_, max) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let clients = config.main.max_client_conn;
    if expected_files(u64::from(clients), []) <= max {
        return None;
    }
    let text = format!(
        "max_client_conn ({clients}) is above the limit of open files ({max}) of a process that is started from here: raise it (ulimit -n, LimitNOFILE)"
    );
    Some(placed(config, "max_client_conn", text))
}

fn placed(config: &Config, setting: &str, text: String) -> Message {
    let place = config.given.get(setting).map(|place| (place.file.clone(), place.line));
    Message { place, text }
}

/// The log, the pid file and the unix socket need a directory.
fn directories(config: &Config) -> Vec<Message> {
    let main = &config.main;
    let folder = |path: &str| Path::new(path).parent().map(Path::to_owned).unwrap_or_default();
    let socket = if main.unix_socket_dir.starts_with('@') { "" } else { &*main.unix_socket_dir };
    let wanted = [
        ("logfile", folder(&main.logfile)),
        ("pidfile", folder(&main.pidfile)),
        ("unix_socket_dir", Path::new(socket).to_owned()),
    ];
    let mut found = Vec::new();
    for (setting, folder) in wanted {
        let is_made = MADE_AT_START.iter().any(|start| folder.starts_with(start));
        if !folder.as_os_str().is_empty() && !folder.is_dir() && !is_made {
            let text = format!("{setting}: there is no directory {}", folder.display());
            found.push(placed(config, setting, text));
        }
    }
    found
}

/// A file that a setting names.
struct Named<'a> {
    setting: &'static str,
    path: &'a str,
    /// The setting for which it has no effect.
    unused: Option<String>,
}

fn named(main: &Main) -> Vec<Named<'_>> {
    let hba = (main.auth_type != AuthType::Hba).then(|| format!("auth_type={}", main.auth_type));
    let off = |mode: SslMode, setting: &str| (mode == SslMode::Disable).then(|| format!("{setting}=disable"));
    let clients = off(main.client_tls_sslmode, "client_tls_sslmode");
    let servers = off(main.server_tls_sslmode, "server_tls_sslmode");
    let files: [(&'static str, &str, &Option<String>); 11] = [
        ("auth_file", main.auth_file.as_deref().unwrap_or_default(), &None),
        ("auth_hba_file", &main.auth_hba_file, &hba),
        ("auth_ident_file", main.auth_ident_file.as_deref().unwrap_or_default(), &hba),
        ("client_tls_cert_file", &main.client_tls_cert_file, &clients),
        ("client_tls_key_file", &main.client_tls_key_file, &clients),
        ("client_tls_ca_file", &main.client_tls_ca_file, &clients),
        ("server_tls_cert_file", &main.server_tls_cert_file, &servers),
        ("server_tls_key_file", &main.server_tls_key_file, &servers),
        ("server_tls_ca_file", &main.server_tls_ca_file, &servers),
        ("http_tls_cert_file", &main.http_tls_cert_file, &None),
        ("http_tls_key_file", &main.http_tls_key_file, &None),
    ];
    let is_set = |(setting, path, unused): (&'static str, _, &Option<String>)| Named {
        setting,
        path,
        unused: unused.clone(),
    };
    files.into_iter().map(is_set).filter(|file| !file.path.is_empty()).collect()
}

/// Started by root, pgweir reads its files before it becomes another user. That user cannot read this file at a reload.
fn unreadable_for_the_user(config: &Config, setting: &str, path: &str) -> Option<Message> {
    let name = config.main.user.as_deref().filter(|_| is_root())?;
    let reader = Reader::named(name)?;
    let path = fs::canonicalize(path).ok()?;
    if reader.can_read(&path) {
        return None;
    }
    let text = format!("{setting} {} cannot be read by user \"{name}\": a RELOAD will fail", path.display());
    Some(placed(config, setting, text))
}

/// A user of the operating system with the groups that it is in.
struct Reader {
    user: Uid,
    groups: Vec<Gid>,
}

impl Reader {
    fn other() -> Reader {
        Reader { user: Uid::from_raw(NOBODY), groups: Vec::new() }
    }

    fn named(name: &str) -> Option<Reader> {
        let user = User::from_name(name).ok()??;
        let groups = getgrouplist(&std::ffi::CString::new(name).ok()?, user.gid).ok()?;
        Some(Reader { user: user.uid, groups })
    }

    /// By the file's mode and those of its directories; access control lists are not looked at.
    fn can_read(&self, path: &Path) -> bool {
        const READ: u32 = 0o4;
        const ENTER: u32 = 0o1;
        self.may(path, READ) && path.ancestors().skip(1).all(|folder| self.may(folder, ENTER))
    }

    fn may(&self, path: &Path, right: u32) -> bool {
        let Ok(found) = fs::metadata(path) else { return false };
        let shift = if found.uid() == self.user.as_raw() {
            6
        } else if self.groups.iter().any(|group| group.as_raw() == found.gid()) {
            3
        } else {
            0
        };
        self.user.is_root() || found.mode() >> shift & right == right
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    fn told(main: &str) -> Vec<String> {
        let text = format!("[pgbouncer]\n{main}\n");
        let config = Config::load("t.ini", &mut |_| Ok(text.clone())).expect("a good file");
        warnings(&config, None).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn directories_that_are_not_there() {
        assert_eq!(
            told("logfile = /no/such/pgweir.log\npidfile = /no/pid\nunix_socket_dir = /nor/this"),
            [
                "t.ini:2: logfile: there is no directory /no/such",
                "t.ini:3: pidfile: there is no directory /no",
                "t.ini:4: unix_socket_dir: there is no directory /nor/this",
            ]
        );
        assert_eq!(
            told("logfile = here.log\npidfile = /run/no/such/pid\nunix_socket_dir = @x"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn files_that_cannot_be_read_and_have_no_effect() {
        assert_eq!(
            told("auth_hba_file = /no/hba\nserver_tls_sslmode = disable\nserver_tls_ca_file = /no/ca"),
            [
                "t.ini:2: auth_hba_file /no/hba cannot be read (No such file or directory (os error 2)); it has no effect with auth_type=md5",
                "t.ini:4: server_tls_ca_file /no/ca cannot be read (No such file or directory (os error 2)); it has no effect with server_tls_sslmode=disable",
            ]
        );
        assert_eq!(
            told("auth_type = hba\nauth_hba_file = /no/hba"),
            Vec::<String>::new(),
            "a fault, told elsewhere"
        );
    }

    #[test]
    fn modes_decide_for_another_user() {
        let file = std::env::temp_dir().join(format!("pgweir-check-mode-{}", std::process::id()));
        fs::write(&file, "x").expect("writable");
        let found = fs::metadata(&file).expect("there");
        let stranger = Uid::from_raw(found.uid() + 1);
        let in_group = Reader { user: stranger, groups: vec![Gid::from_raw(found.gid())] };
        let other = Reader { user: stranger, groups: vec![Gid::from_raw(found.gid() + 1)] };
        for (mode, by_group, by_others) in [(0o640, true, false), (0o604, false, true), (0o600, false, false)]
        {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!((in_group.may(&file, 4), other.may(&file, 4)), (by_group, by_others), "{mode:o}");
        }
        fs::remove_file(&file).expect("it is there");
        assert!(!other.can_read(&PathBuf::from("/no/such/file")));
    }
}

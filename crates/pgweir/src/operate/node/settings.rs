//! The settings that make a copy the standby of this primary, on this machine: `postgresql.auto.conf` and `standby.signal`. Also the
//! files of a node's own configuration, which a copy or pg_rewind replaces by those of its source.

use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The file that PostgreSQL reads last, in the data directory on every system.
pub(super) const AUTO: &str = "postgresql.auto.conf";

/// The file that makes a server start as a standby.
const SIGNAL: &str = "standby.signal";

/// Setting and value, in the order of the file.
pub(super) type Entries = Vec<(String, String)>;

/// Writes the settings in place of lines with the same names, and makes the directory a standby's.
///
/// # Errors
/// A file cannot be written.
pub(super) fn write(data: &Path, entries: &Entries) -> io::Result<()> {
    let path = data.join(AUTO);
    let before = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    write_private(&path, merged(&before, entries).as_bytes())?;
    write_private(&data.join(SIGNAL), b"")
}

/// The commands by which a shell does the same.
pub(super) fn as_commands(data: &Path, entries: &Entries) -> String {
    let file = super::programs::shell_quoted(&data.join(AUTO).display().to_string());
    let signal = super::programs::shell_quoted(&data.join(SIGNAL).display().to_string());
    format!("cat >> {file} <<'END'\n{}END\ntouch {signal}", lines(entries))
}

/// The value of a setting in `postgresql.auto.conf`, if its directory is a standby's.
pub(super) fn of_standby(data: &Path, name: &str) -> Option<String> {
    data.join(SIGNAL).exists().then_some(())?;
    let text = fs::read_to_string(data.join(AUTO)).ok()?;
    let line = text.lines().rev().find(|line| name_of(line).eq_ignore_ascii_case(name))?;
    let value = line.split_once('=')?.1.trim().trim_matches('\'');
    Some(value.to_owned())
}

fn merged(before: &str, entries: &Entries) -> String {
    let is_kept = |line: &&str| !entries.iter().any(|(name, _)| name_of(line).eq_ignore_ascii_case(name));
    let mut text: String = before.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    text.push_str(&lines(entries));
    text
}

fn lines(entries: &Entries) -> String {
    let line = |(name, value): &(String, String)| {
        format!("{name} = '{}'\n", value.replace('\\', "\\\\").replace('\'', "''"))
    };
    entries.iter().map(line).collect()
}

fn name_of(line: &str) -> &str {
    line.trim_start().split(|c: char| c == '=' || c.is_whitespace()).next().unwrap_or_default()
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("pgweir");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    io::Write::write_all(&mut file, text)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// Files of a node's own configuration, as they were.
pub(super) struct OwnFiles(Vec<(String, Vec<u8>, u32)>);

impl OwnFiles {
    /// The files of a node without a data directory: none.
    pub(super) fn none() -> OwnFiles {
        OwnFiles(Vec::new())
    }

    /// Reads the configuration, certificates and keys that are in a data directory.
    ///
    /// # Errors
    /// One cannot be read.
    pub(super) fn read(data: &Path) -> Result<OwnFiles, String> {
        let is_own = |name: &str| [".conf", ".key", ".crt", ".pem"].iter().any(|end| name.ends_with(end));
        let failed = |error: io::Error| format!("{}: {error}", data.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(data).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if is_own(&name) && entry.path().is_file() {
                let mode = entry.metadata().map_err(failed)?.permissions().mode();
                files.push((name, fs::read(entry.path()).map_err(failed)?, mode));
            }
        }
        files.sort();
        Ok(OwnFiles(files))
    }

    /// Writes them back.
    ///
    /// # Errors
    /// One cannot be written.
    pub(super) fn restore(&self, data: &Path) -> Result<(), String> {
        for (name, bytes, mode) in &self.0 {
            let path = data.join(name);
            let written = write_private(&path, bytes)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(*mode)));
            written.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    pub(super) fn names(&self) -> String {
        self.0.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_replace_those_of_the_source() {
        let before = "# Do not edit\nwork_mem = '4MB'\nprimary_conninfo = 'host=old'\nPort=5\n";
        let entries = [("primary_conninfo", "host=m1 passfile='/a b'"), ("port", "6")];
        let entries = entries.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        assert_eq!(
            merged(before, &entries),
            "# Do not edit\nwork_mem = '4MB'\nprimary_conninfo = 'host=m1 passfile=''/a b'''\nport = '6'\n"
        );
    }

    #[test]
    fn own_files_come_back_as_they_were() {
        let data = std::env::temp_dir().join(format!("pgweir-own-files-{}", std::process::id()));
        fs::create_dir_all(&data).expect("a folder");
        fs::write(data.join("postgresql.conf"), "port = 1\n").expect("written");
        fs::write(data.join("PG_VERSION"), "15\n").expect("written");
        let own = OwnFiles::read(&data).expect("read");
        assert_eq!(own.names(), "postgresql.conf");
        fs::write(data.join("postgresql.conf"), "port = 2\n").expect("written");
        own.restore(&data).expect("restored");
        assert_eq!(fs::read_to_string(data.join("postgresql.conf")).expect("there"), "port = 1\n");
        write(&data, &vec![("primary_slot_name".to_owned(), "s".to_owned())]).expect("written");
        assert_eq!(of_standby(&data, "primary_slot_name").as_deref(), Some("s"));
        fs::remove_dir_all(&data).expect("removed");
    }
}

//! `pgweir import FILE`: another pooler's configuration as pgweir's. What is read and what it becomes is `pgweir-import`'s matter; here are the
//! files, and the check of the result by the code of `pgweir check`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pgweir_import::{FindingKind, Import, Kind, Places, Source};

use crate::check;
use crate::command_line::ImportOptions;

/// Exit code: carried over, and something has no counterpart.
const INCOMPLETE: u8 = 1;
/// Exit code: nothing was written.
pub(crate) const UNREADABLE: u8 = 2;

pub(crate) const INI: &str = "pgweir.ini";
const USERS: &str = "userlist.txt";
const RULES: &str = "hba.conf";
pub(crate) const CERTIFICATE: &str = "client.crt";
pub(crate) const KEY: &str = "client.key";

/// Mode of files with passwords and keys.
pub(crate) const SECRET_MODE: u32 = 0o600;
pub(crate) const FILE_MODE: u32 = 0o644;

/// Reads, checks, writes, and says what became of it.
pub(crate) fn import(options: &ImportOptions) -> ExitCode {
    match run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(INCOMPLETE),
        Err(faults) => {
            faults.iter().for_each(|fault| eprintln!("error: {fault}"));
            eprintln!("nothing was written");
            ExitCode::from(UNREADABLE)
        }
    }
}

/// Whether everything was carried over.
fn run(options: &ImportOptions) -> Result<bool, Vec<String>> {
    let name = options.file.display().to_string();
    let text = read(&options.file).map_err(|why| vec![format!("could not read {name}: {why}")])?;
    let kinds = || Kind::ALL.map(Kind::name).join(", ");
    let kind = options.kind.or_else(|| Kind::of(&text));
    let kind = kind.ok_or_else(|| {
        vec![format!("{name}: its contents do not tell what it is; give --from with one of {}", kinds())]
    })?;
    let source = Source {
        name: &name,
        text: &text,
        users: options.users.as_deref(),
        rules: options.rules.as_deref(),
        pool_mode: options.pool_mode.as_deref(),
    };
    let import = pgweir_import::import(kind, &source, &mut |further| open_further(options, further));
    let import = import.map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let (faults, warnings) = checked(&import)?;
    if !faults.is_empty() && !options.force {
        let hint = "pgweir check refuses the result; --force writes it".to_owned();
        return Err(faults.into_iter().chain([hint]).collect());
    }
    match &options.output {
        Some(folder) => write(&import, folder, options.force)?,
        None => print(&import),
    }
    Ok(tell(&import, kind, &faults, &warnings))
}

/// A file that the configuration names: relative paths begin where the configuration is, and those of the command line where we are.
fn open_further(options: &ImportOptions, name: &str) -> Result<String, String> {
    let ours = [&options.users, &options.rules].into_iter().flatten().any(|own| own == name);
    let beside = options.file.parent().unwrap_or(Path::new(""));
    read(&if ours { PathBuf::from(name) } else { beside.join(name) })
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// A directory of ours that goes away with what is in it.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Faults and warnings of `pgweir check`, about the files as they would be written.
fn checked(import: &Import) -> Result<(Vec<String>, Vec<String>), Vec<String>> {
    let path = std::env::temp_dir().join(format!("pgweir-import-{}", std::process::id()));
    let failed = |error: io::Error| vec![format!("could not write to {}: {error}", path.display())];
    DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
    let scratch = Scratch(path.clone());
    for (name, text, mode) in files(import, &scratch.0) {
        create(&scratch.0.join(name), &text, mode).map_err(failed)?;
    }
    let report = check::report(&scratch.0.join(INI));
    let place = format!("{}/", scratch.0.display());
    let plain = |messages: Vec<check::Message>| {
        messages.iter().map(|message| message.to_string().replace(&place, "")).collect()
    };
    Ok((plain(report.faults), plain(report.warnings)))
}

/// The files of a result, as they are in this directory: name, text, mode.
pub(crate) fn files(import: &Import, folder: &Path) -> Vec<(&'static str, String, u32)> {
    let path = |name| folder.join(name).display().to_string();
    let places = Places {
        users: path(USERS),
        rules: path(RULES),
        certificate: path(CERTIFICATE),
        key: path(KEY),
        hide_secrets: false,
    };
    let mode = if import.ini_has_secret() { SECRET_MODE } else { FILE_MODE };
    let mut files = vec![(INI, import.ini(&places), mode)];
    files.extend(import.users().map(|text| (USERS, text, SECRET_MODE)));
    files.extend(import.rules().map(|text| (RULES, text, FILE_MODE)));
    files
}

/// Writes the files. None of those that are there is touched without `force`, and each is replaced as a whole.
fn write(import: &Import, folder: &Path, force: bool) -> Result<(), Vec<String>> {
    let failed =
        |path: &Path, error: &io::Error| vec![format!("could not write {}: {error}", path.display())];
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let folder = folder.canonicalize().map_err(|error| failed(folder, &error))?;
    let files = files(import, &folder);
    if !force {
        let there: Vec<PathBuf> =
            files.iter().map(|(name, ..)| folder.join(name)).filter(|path| path.exists()).collect();
        if !there.is_empty() {
            let name = |path: &PathBuf| format!("{} exists; --force replaces it", path.display());
            return Err(there.iter().map(name).collect());
        }
    }
    for (name, text, mode) in files {
        let path = folder.join(name);
        replace(&path, &text, mode).map_err(|error| failed(&path, &error))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Writes a file beside its place and moves it there, so that the file is old or new as a whole.
pub(crate) fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().display();
    let next = path.with_file_name(format!(".{name}.{}", std::process::id()));
    // A process of the same number may have left it: in a container they are all number 1.
    let _ = fs::remove_file(&next);
    let written = create(&next, text, mode).and_then(|()| fs::rename(&next, path));
    if written.is_err() {
        let _ = fs::remove_file(&next);
    }
    written
}

fn create(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())
}

/// The ini alone, for looking at: the list of users has passwords.
fn print(import: &Import) {
    let places = Places { hide_secrets: true, ..Places::default() };
    let _ = io::stdout().write_all(import.ini(&places).as_bytes());
    if import.users().is_some() || import.rules().is_some() {
        eprintln!("the list of users and the rules of access are written with --output only");
    }
}

/// What the administrator has to know, on standard error; whether there was nothing.
fn tell(import: &Import, kind: Kind, faults: &[String], warnings: &[String]) -> bool {
    for finding in import.findings() {
        eprintln!("{finding}");
    }
    for fault in faults {
        eprintln!("error: {fault}");
    }
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    let count = |kind| import.findings().iter().filter(|finding| finding.kind == kind).count();
    let (differs, missing, unknown) =
        (count(FindingKind::Differs), count(FindingKind::Missing), count(FindingKind::Unknown));
    let whole = import.findings().is_empty() && faults.is_empty();
    let (name, verdict) =
        (kind.name(), if faults.is_empty() { "pgweir check accepts it" } else { "pgweir check refuses it" });
    if whole {
        eprintln!("{name}: everything was carried over; {verdict}");
    } else {
        eprintln!(
            "{name}: {missing} not carried over, {differs} with a difference, {unknown} unknown; {verdict}"
        );
    }
    whole
}

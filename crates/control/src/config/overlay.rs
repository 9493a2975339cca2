//! Sources that complete a configuration file which an operator or a chart writes: directories of ini files,
//! and variables. The files are read at the start and at each reload; the variables are those of the start.
//!
//! A file that another user could have written is never used: that user could let anyone log in to pgweir.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{User, getegid, geteuid, getgroups};
use pgweir_settings::{Layer, Variables};

/// The directory that each start reads, if it exists.
const FOLDER: &str = "/etc/pgweir/conf.d";

/// The maximum number of files in a directory.
const FILES_MAX: usize = 1000;

/// The maximum size of a file.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The bit of a directory's mode that gives its group to the files in it. Kubernetes sets it on a volume with `fsGroup`.
const SET_GROUP: u32 = 0o2000;
const GROUP_WRITES: u32 = 0o020;
const WORLD_WRITES: u32 = 0o002;

/// The sources that are read after the configuration file.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// The directories, in the order in which they are read. `true` means that the directory must exist.
    folders: Vec<(PathBuf, bool)>,
    variables: Variables,
}

impl Overlay {
    /// Returns the sources of a plain start: `/etc/pgweir/conf.d`, the directories that the command line
    /// names, and the process's variables.
    ///
    /// # Errors
    ///
    /// A variable of pgweir's is not UTF-8 text.
    pub fn of_process(
        named: &[PathBuf],
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Overlay, Vec<String>> {
        let mut faults = Vec::new();
        let mut texts = Vec::new();
        for (key, text) in variables {
            let Ok(key) = key.into_string() else { continue };
            match text.into_string() {
                Ok(text) => texts.push((key, text)),
                // Variables of other programs may have any bytes.
                Err(_) if Layer::of_variable(&key, String::new()).is_some() => {
                    faults.push(format!("variable {key} is not UTF-8 text"));
                }
                Err(_) => {}
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let folders = std::iter::once((PathBuf::from(FOLDER), false))
            .chain(named.iter().map(|folder| (folder.clone(), true)))
            .collect();
        Ok(Overlay { folders, variables: Variables::of(&texts) })
    }

    /// Returns warnings for the administrator about the variables.
    pub fn remarks(&self) -> impl Iterator<Item = &str> {
        self.variables.remarks.iter().map(|remark| remark.text.as_str())
    }

    /// Drops the warnings about variables that have an effect elsewhere.
    pub fn forget_remarks(&mut self, has_effect: impl Fn(&str) -> bool) {
        self.variables.remarks.retain(|remark| !has_effect(&remark.variable));
    }

    /// Returns the directories that the command line named, and the variables: everything that another
    /// process needs to have the same sources.
    #[must_use]
    pub fn handed_over(&self) -> Vec<(String, String)> {
        let folders = self.folders.iter().filter(|(_, named)| *named);
        let folders = folders.map(|(folder, _)| (String::new(), folder.to_string_lossy().into_owned()));
        let variables = self.variables.layers.iter().map(|layer| (layer.name.clone(), layer.text.clone()));
        folders.chain(variables).collect()
    }

    /// Adds the sources that another process hands over. Directories on the command line, and variables that
    /// this process has itself, take precedence. Returns whether anything changed.
    pub fn inherit(&mut self, handed_over: Vec<(String, String)>) -> bool {
        let before = (self.folders.len(), self.variables.layers.len());
        let has_named = self.folders.iter().any(|(_, named)| *named);
        let (folders, variables): (Vec<_>, Vec<_>) =
            handed_over.into_iter().partition(|(name, _)| name.is_empty());
        if !has_named {
            self.folders.extend(folders.into_iter().map(|(_, folder)| (PathBuf::from(folder), true)));
        }
        let layers = variables.into_iter().filter_map(|(name, text)| Layer::of_variable(&name, text));
        self.variables.inherit(layers.collect());
        (self.folders.len(), self.variables.layers.len()) != before
    }

    /// Reads the files. `user` is the user that pgweir becomes, if it is another one than the process's.
    ///
    /// # Errors
    ///
    /// Every file and directory that cannot be read, or that another user could have written.
    pub(crate) fn layers(&self, user: Option<&str>) -> Result<Vec<Layer>, Vec<String>> {
        let trust = Trust::of(user);
        let mut layers = Vec::new();
        let mut faults = Vec::new();
        for (folder, must_exist) in &self.folders {
            match files(folder, &trust) {
                Ok(files) => {
                    for (path, group) in files {
                        match read(&path, &trust, group) {
                            Ok(text) => {
                                let name = path.to_string_lossy().into_owned();
                                layers.push(Layer { name, setting: None, text });
                            }
                            Err(why) => faults.push(refused(&path, &why)),
                        }
                    }
                }
                Err(Unusable::Missing) if !must_exist => {}
                Err(Unusable::Missing) => faults.push(refused(folder, "there is no such directory")),
                Err(Unusable::For(why)) => faults.push(refused(folder, &why)),
            }
        }
        layers.extend(self.variables.layers.iter().cloned());
        if faults.is_empty() { Ok(layers) } else { Err(faults) }
    }
}

fn refused(path: &Path, why: &str) -> String {
    format!("{}: {why}", path.display())
}

enum Unusable {
    Missing,
    For(String),
}

/// The users whose files are read.
struct Trust {
    owners: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

impl Trust {
    fn of(user: Option<&str>) -> Trust {
        let mut owners = BTreeSet::from([0, geteuid().as_raw()]);
        let named = user.and_then(|name| User::from_name(name).ok().flatten());
        owners.extend(named.map(|user| user.uid.as_raw()));
        let groups = getgroups().unwrap_or_default();
        let groups = groups.into_iter().chain([getegid()]).map(|group| group.as_raw());
        Trust { owners, groups: groups.collect() }
    }

    /// Returns the reason why a file or directory is not used; `None` if it is. `group` may write it: the
    /// group of a volume that Kubernetes gives to the process.
    fn objection(&self, path: &Path, found: &Metadata, group: Option<u32>) -> Option<String> {
        if !self.owners.contains(&found.uid()) {
            let owner = found.uid();
            return Some(format!(
                "it belongs to user {owner}, and must belong to root or to the user that pgweir runs as"
            ));
        }
        let mode = found.mode();
        let by_group = mode & GROUP_WRITES != 0 && group != Some(found.gid());
        if !by_group && mode & WORLD_WRITES == 0 || is_read_only(path) {
            return None;
        }
        let whom = if mode & WORLD_WRITES == 0 { "its group" } else { "all users" };
        Some(format!("{whom} can write it (mode {:04o}): chmod go-w", mode & 0o7777))
    }

    /// Returns the group that may write the files of a directory: the volume's own (`fsGroup`), of which the
    /// process is a member.
    fn volume_group(&self, found: &Metadata) -> Option<u32> {
        let is_volume = found.mode() & SET_GROUP != 0 && self.groups.contains(&found.gid());
        is_volume.then_some(found.gid())
    }
}

/// Returns whether no user can write below this path, whatever the modes: Kubernetes mounts ConfigMaps and
/// Secrets read-only.
fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}

/// Returns the ini files of a directory in the order of their names' bytes, and the group that may write
/// them. Hidden files, such as the `..data` of a ConfigMap, and files with another ending, such as a package
/// manager's `x.ini.dpkg-old`, are skipped.
fn files(folder: &Path, trust: &Trust) -> Result<Vec<(PathBuf, Option<u32>)>, Unusable> {
    let cannot = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Unusable::Missing,
        _ => Unusable::For(format!("could not read the directory: {error}")),
    };
    let found = fs::metadata(folder).map_err(cannot)?;
    if !found.is_dir() {
        return Err(Unusable::For("it is not a directory".to_owned()));
    }
    let group = trust.volume_group(&found);
    if let Some(why) = trust.objection(folder, &found, group) {
        return Err(Unusable::For(why));
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        let bytes = name.as_bytes();
        if bytes.ends_with(b".ini") && !bytes.starts_with(b".") {
            names.push(name);
        }
    }
    if names.len() > FILES_MAX {
        return Err(Unusable::For(format!("it has more than {FILES_MAX} files")));
    }
    names.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    Ok(names.into_iter().map(|name| (folder.join(name), group)).collect())
}

/// Reads a file, following links. The checks are made on the opened file, so no other one can be read in its
/// place.
fn read(path: &Path, trust: &Trust, group: Option<u32>) -> Result<String, String> {
    // Opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("it is not a file".to_owned());
    }
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let found = file.metadata().map_err(|error| error.to_string())?;
    if let Some(why) = trust.objection(path, &found, group) {
        return Err(why);
    }
    let mut bytes = Vec::new();
    file.by_ref().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::scratch::Scratch;

    /// A directory with one file, and an overlay of it.
    fn overlay(name: &str) -> (Scratch, Overlay) {
        let scratch = Scratch::new(name);
        mode(scratch.folder(), 0o755);
        scratch.write("10-a.ini", "[pgbouncer]\n");
        let folders = vec![(scratch.folder().to_owned(), true)];
        (scratch, Overlay { folders, variables: Variables::default() })
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    fn names(overlay: &Overlay) -> Vec<String> {
        let layers = overlay.layers(None).expect("good files");
        let name = |layer: &Layer| layer.name.rsplit('/').next().unwrap_or_default().to_owned();
        layers.iter().map(name).collect()
    }

    fn faults(overlay: &Overlay) -> Vec<String> {
        overlay.layers(None).map(|_| ()).expect_err("a file that is refused")
    }

    #[test]
    fn files_in_the_order_of_their_bytes() {
        let (scratch, overlay) = overlay("overlay-order");
        for name in ["2.ini", "10-B.ini", ".hidden.ini", "x.ini.dpkg-old", "x.ini~", "notes.txt"] {
            scratch.write(name, "");
        }
        assert_eq!(names(&overlay), ["10-B.ini", "10-a.ini", "2.ini"]);
    }

    /// A directory as Kubernetes mounts a ConfigMap: `x.ini -> ..data/x.ini`, `..data -> ..2026_01`.
    #[test]
    fn links_of_a_config_map_are_followed() {
        let (scratch, overlay) = overlay("overlay-links");
        let inner = scratch.path("..2026_01");
        fs::create_dir_all(&inner).expect("a directory");
        fs::write(inner.join("20-b.ini"), "; b").expect("a file");
        symlink("..2026_01", scratch.path("..data")).expect("a link");
        symlink("..data/20-b.ini", scratch.path("20-b.ini")).expect("a link");
        assert_eq!(names(&overlay), ["10-a.ini", "20-b.ini"]);
        assert_eq!(overlay.layers(None).expect("good")[1].text, "; b");
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let (scratch, overlay) = overlay("overlay-modes");
        let file = scratch.path("10-a.ini");
        for (bits, whom) in [(0o664, "its group"), (0o646, "all users"), (0o666, "all users")] {
            mode(&file, bits);
            let told = faults(&overlay);
            assert!(
                told[0].contains(&format!("10-a.ini: {whom} can write it (mode {bits:04o})")),
                "{told:?}"
            );
        }
        mode(&file, 0o644);
        for bits in [0o775, 0o757] {
            mode(scratch.folder(), bits);
            assert!(faults(&overlay)[0].contains("can write it"), "{bits:o}");
        }
        // A volume with fsGroup: the directory has the group's bit, and the group is one of the process's.
        mode(scratch.folder(), 0o2775);
        mode(&file, 0o664);
        assert_eq!(names(&overlay), ["10-a.ini"]);
        mode(&file, 0o666);
        assert!(faults(&overlay)[0].contains("all users"));
    }

    #[test]
    fn another_users_file_is_refused() {
        let (scratch, _overlay) = overlay("overlay-owner");
        let found = fs::metadata(scratch.path("10-a.ini")).expect("it is there");
        let trust = Trust { owners: BTreeSet::from([found.uid() + 1]), groups: BTreeSet::new() };
        let why = trust.objection(scratch.folder(), &found, None).expect("refused");
        assert!(why.starts_with(&format!("it belongs to user {}", found.uid())), "{why}");
        assert!(Trust::of(None).objection(scratch.folder(), &found, None).is_none());
    }

    #[test]
    fn all_that_is_wrong_is_told_in_one_run() {
        let (scratch, mut overlay) = overlay("overlay-faults");
        fs::create_dir_all(scratch.path("20-folder.ini")).expect("a directory");
        fs::write(scratch.path("30-bytes.ini"), b"\xff").expect("a file");
        symlink("/no/such/file", scratch.path("40-gone.ini")).expect("a link");
        overlay.folders.push((PathBuf::from("/no/such/folder"), true));
        overlay.folders.push((PathBuf::from("/nor/this"), false));
        let told = faults(&overlay);
        for (fault, words) in told.iter().zip([
            "20-folder.ini: it is not a file",
            "30-bytes.ini: it is not UTF-8 text",
            "40-gone.ini: No such file",
            "/no/such/folder: there is no such directory",
        ]) {
            assert!(fault.contains(words), "{fault}");
        }
        assert_eq!(told.len(), 4, "{told:?}");
    }

    #[test]
    fn another_process_gets_the_same_sources() {
        let variable = |name: &str, text: &str| (OsString::from(name), OsString::from(text));
        let of = |folders: &[&str], variables: &[(&str, &str)]| {
            let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
            let variables: Vec<_> = variables.iter().map(|(name, text)| variable(name, text)).collect();
            Overlay::of_process(&folders, variables.into_iter()).expect("good")
        };
        let old =
            of(&["/a", "/b"], &[("PGWEIR_POOL_MODE", "session"), ("PGWEIR_INI", "[users]"), ("PATH", "/")]);
        let mut new = of(&[], &[("PGWEIR_POOL_MODE", "statement")]);
        assert!(new.inherit(old.handed_over()));
        assert_eq!(
            new.handed_over(),
            [
                (String::new(), "/a".to_owned()),
                (String::new(), "/b".to_owned()),
                ("PGWEIR_INI".to_owned(), "[users]".to_owned()),
                ("PGWEIR_POOL_MODE".to_owned(), "statement".to_owned())
            ]
        );
        assert!(!new.inherit(old.handed_over()), "it has them now");
        let mut other = of(&["/c"], &[]);
        other.inherit(old.handed_over());
        assert_eq!(other.handed_over()[0].1, "/c");
        assert_eq!(other.handed_over().len(), 3, "its own directories go before those of another process");
    }

    #[test]
    fn variables_that_are_no_text() {
        use std::os::unix::ffi::OsStringExt as _;
        let broken = OsString::from_vec(vec![0xff]);
        let of = |name: &str| {
            Overlay::of_process(&[], std::iter::once((OsString::from(name), broken.clone()))).map(|_| ())
        };
        assert_eq!(
            of("PGWEIR_POOL_MODE"),
            Err(vec!["variable PGWEIR_POOL_MODE is not UTF-8 text".to_owned()])
        );
        assert_eq!(of("OTHER"), Ok(()));
    }
}

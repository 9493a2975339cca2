//! The copy by pg_basebackup: its directories, its progress, and the removal of a copy that is not whole.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};

use super::Work;
use super::members::Member;
use super::programs::{Call, Programs, run};

/// The time between two lines of progress where no terminal shows them.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The number of signs of the bar.
const BAR: usize = 20;

/// The directories that the copy fills, each with whether it was absent before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Folders(Vec<(PathBuf, bool)>);

impl Folders {
    /// Looks at the directories.
    ///
    /// # Errors
    /// One is not empty, belongs to another user, or cannot be made.
    pub(super) fn look(folders: &[&Path]) -> Result<Folders, String> {
        let mut seen = Vec::new();
        for folder in folders {
            let shown = folder.display();
            match fs::read_dir(folder) {
                Ok(mut entries) => {
                    if entries.next().is_some() {
                        return Err(format!(
                            "{shown} is not empty; a copy needs an empty or absent directory"
                        ));
                    }
                    let owner = fs::metadata(folder).map(|about| std::os::unix::fs::MetadataExt::uid(&about));
                    if owner.is_ok_and(|owner| owner != nix::unistd::Uid::effective().as_raw()) {
                        return Err(format!(
                            "{shown} belongs to another user; run this as PostgreSQL's user"
                        ));
                    }
                    seen.push(((*folder).to_owned(), false));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let parent = folder.parent().unwrap_or(Path::new("/"));
                    nix::unistd::access(parent, nix::unistd::AccessFlags::W_OK)
                        .map_err(|error| format!("{shown} cannot be made: {}: {error}", parent.display()))?;
                    seen.push(((*folder).to_owned(), true));
                }
                Err(error) => return Err(format!("{shown}: {error}")),
            }
        }
        Ok(Folders(seen))
    }

    /// Removes what a copy has written to them. Those that were there before stay, and are empty.
    pub(super) fn clear(&self) -> Result<(), String> {
        for (folder, was_absent) in &self.0 {
            let cleared = match was_absent {
                true => match fs::remove_dir_all(folder) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    other => other,
                },
                false => remove_contents(folder),
            };
            cleared.map_err(|error| format!("{} could not be cleared: {error}", folder.display()))?;
        }
        Ok(())
    }

    fn text(&self) -> String {
        let line = |(folder, was_absent): &(PathBuf, bool)| {
            format!("{} {}\n", if *was_absent { "absent" } else { "empty" }, folder.display())
        };
        self.0.iter().map(line).collect()
    }

    fn parse(text: &str) -> Option<Folders> {
        let line = |line: &str| {
            let (word, folder) = line.split_once(' ')?;
            Some((PathBuf::from(folder), word == "absent"))
        };
        text.lines().map(line).collect::<Option<Vec<_>>>().map(Folders)
    }
}

fn remove_contents(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // A link, to a directory of WAL or of a tablespace, is removed; what it leads to is in the list itself.
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    Ok(())
}

/// The file beside a data directory that says: a copy is being made, or its process was killed. While it is made the file is locked.
pub(super) struct Mark {
    path: PathBuf,
    /// `None`: the directory above cannot be written to. A copy whose process is killed must then be removed by hand.
    _lock: Option<Flock<File>>,
}

impl Mark {
    fn path(data: &Path) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(data.file_name().unwrap_or_default());
        name.push(".pgweir-copy");
        data.with_file_name(name)
    }

    /// Marks the directories.
    pub(super) fn set(data: &Path, folders: &Folders) -> Mark {
        let path = Mark::path(data);
        let lock = File::create(&path).ok().and_then(|mut file| {
            file.write_all(folders.text().as_bytes()).ok()?;
            // pg_basebackup inherits the lock: it goes on for a while if this process is killed.
            fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).ok()?;
            Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
        });
        Mark { path, _lock: lock }
    }

    /// The copy is whole, or was removed.
    pub(super) fn remove(self) {
        // One that stays leads to a look at directories that are not a half copy, and no further.
        let _ = fs::remove_file(&self.path);
    }

    /// Returns the unfinished copy of a process that was killed.
    ///
    /// # Errors
    /// An error if that process is still running.
    pub(super) fn left_over(data: &Path) -> Result<Option<(Mark, Folders)>, String> {
        let path = Mark::path(data);
        let Ok(file) = File::options().read(true).write(true).open(&path) else { return Ok(None) };
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            return Err(format!("another pgweir node copies to {} now", data.display()));
        };
        let text = fs::read_to_string(&path).unwrap_or_default();
        // A server that has been started has renamed its backup_label: that is no half copy.
        let is_half = !data.join("postmaster.pid").exists()
            && (data.join("backup_label").exists() || !data.join("global/pg_control").exists());
        let folders = Folders::parse(&text)
            .filter(|folders| is_half && folders.0.iter().any(|(folder, _)| folder == data));
        let mark = Mark { path, _lock: Some(lock) };
        match folders {
            Some(folders) => Ok(Some((mark, folders))),
            None => {
                mark.remove();
                Ok(None)
            }
        }
    }
}

/// The command that copies.
pub(super) fn call(work: &Work<'_>, programs: &Programs, source: &Member, slot: Option<&str>) -> Call {
    let wanted = work.wanted;
    let name = application_name(&wanted.node);
    let conninfo = work.access.conninfo(&source.host, source.port, &[("application_name", &name)]);
    let data = wanted.data.display().to_string();
    let mode = if wanted.is_fast { "fast" } else { "spread" };
    let mut call = programs.call("pg_basebackup", &["-D", &data, "-d", &conninfo, "-X", "stream"]);
    call.0.extend(["-c", mode, "--no-password", "--progress"].map(str::to_owned));
    call.0.extend(slot.iter().flat_map(|slot| ["-S".to_owned(), (*slot).to_owned()]));
    call.0.extend(wanted.waldir.iter().map(|folder| format!("--waldir={}", folder.display())));
    for (old, new) in &wanted.tablespaces {
        let escaped = |path: &str| path.replace('=', "\\=");
        call.0.push(format!("--tablespace-mapping={}={}", escaped(old), escaped(&new.display().to_string())));
    }
    call
}

/// The name by which the source knows the copy's connections.
pub(super) fn application_name(node: &str) -> String {
    format!("pgweir copy of {node}")
}

/// Copies, and shows the progress. Gives what was copied.
pub(super) fn copy(work: &Work<'_>, call: &Call) -> Result<String, String> {
    let mut meter = Meter::new();
    let done = run(call, &work.interrupt, |line| meter.take(line));
    meter.end_line();
    done?;
    Ok(meter.summary())
}

/// The progress of a copy.
struct Meter {
    began: Instant,
    told: Instant,
    done_bytes: u64,
    all_bytes: u64,
    is_terminal: bool,
    has_line: bool,
}

impl Meter {
    fn new() -> Meter {
        let (now, is_terminal) = (Instant::now(), std::io::stdout().is_terminal());
        Meter { began: now, told: now, done_bytes: 0, all_bytes: 0, is_terminal, has_line: false }
    }

    /// A line of pg_basebackup; `false` if it is not about progress.
    fn take(&mut self, line: &str) -> bool {
        let Some((done, all)) = progress(line) else { return line.trim().is_empty() };
        (self.done_bytes, self.all_bytes) = (done, all.max(done));
        if self.is_terminal {
            print!("\r{:<10}{}\u{1b}[K", "copy", self.line());
            let _ = std::io::stdout().flush();
            self.has_line = true;
        } else if self.told.elapsed() >= TELL_EVERY {
            let _ = writeln!(std::io::stdout(), "{:<10}{}", "copy", self.line());
            self.told = Instant::now();
        }
        true
    }

    fn line(&self) -> String {
        let share = u128::from(self.done_bytes) * 100 / u128::from(self.all_bytes.max(1));
        let filled = usize::try_from(share).unwrap_or(100) * BAR / 100;
        format!(
            "[{}{}] {share:>3} %  {} of {}, {}/s",
            "#".repeat(filled),
            ".".repeat(BAR - filled),
            size(self.done_bytes),
            size(self.all_bytes),
            size(self.rate())
        )
    }

    /// Bytes in a second, since the copy began.
    fn rate(&self) -> u64 {
        let ms = self.began.elapsed().as_millis().max(1);
        u64::try_from(u128::from(self.done_bytes) * 1000 / ms).unwrap_or(u64::MAX)
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.has_line) {
            print!("\r\u{1b}[K");
        }
    }

    fn summary(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        format!("{} in {seconds:.1} s, {}/s", size(self.done_bytes), size(self.rate()))
    }
}

/// The bytes of a line like ` 4096/33333 kB (12%), 0/1 tablespace`.
fn progress(line: &str) -> Option<(u64, u64)> {
    let (done, rest) = line.trim_start().split_once('/')?;
    let (all, _) = rest.split_once(" kB")?;
    Some((done.parse::<u64>().ok()? * 1024, all.parse::<u64>().ok()? * 1024))
}

/// `1.2 GB`, with the prefixes of powers of 1000.
pub(super) fn size(bytes: u64) -> String {
    let units = ["kB", "MB", "GB", "TB"];
    let mut value = (bytes, 0);
    let mut unit = "bytes";
    for next in units {
        if value.0 < 1000 {
            break;
        }
        (value, unit) = ((value.0 / 1000, value.0 % 1000 / 100), next);
    }
    if unit == "bytes" { format!("{} {unit}", value.0) } else { format!("{}.{} {unit}", value.0, value.1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read() {
        assert_eq!(progress("  4096/32768 kB (12%), 0/1 tablespace"), Some((4 << 20, 32 << 20)));
        assert_eq!(progress("pg_basebackup: error: could not read"), None);
        let mut meter = Meter::new();
        meter.is_terminal = false;
        assert!(meter.take("16384/32768 kB (50%), 0/1 tablespace") && !meter.take("WARNING: x"));
        assert!(
            meter.line().starts_with("[##########..........]  50 %  16.7 MB of 33.5 MB, "),
            "{}",
            meter.line()
        );
        assert_eq!((size(999), size(1_250_000_000)), ("999 bytes".to_owned(), "1.2 GB".to_owned()));
    }

    #[test]
    fn a_half_copy_is_removed_and_a_server_is_not() {
        let parent = std::env::temp_dir().join(format!("pgweir-half-copy-{}", std::process::id()));
        let data = parent.join("data");
        fs::create_dir_all(&parent).expect("a folder");
        let folders = Folders::look(&[&data]).expect("it can be made");
        let mark = Mark::set(&data, &folders);
        assert!(Mark::left_over(&data).is_err_and(|why| why.contains("copies to")), "it is locked");
        drop(mark);
        fs::create_dir_all(data.join("base")).expect("a folder");
        assert!(Folders::look(&[&data]).is_err_and(|why| why.contains("not empty")));
        let (mark, left) = Mark::left_over(&data).expect("not locked").expect("half a copy");
        left.clear().expect("cleared");
        mark.remove();
        assert!(!data.exists());
        // The process was killed after the server had been started.
        drop(Mark::set(&data, &folders));
        fs::create_dir_all(data.join("global")).expect("a folder");
        fs::write(data.join("global/pg_control"), "").expect("written");
        assert!(Mark::left_over(&data).expect("not locked").is_none() && data.exists());
        fs::remove_dir_all(&parent).expect("removed");
    }
}

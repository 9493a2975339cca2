//! PostgreSQL's programs on this machine: where they are, their version, and how they are run.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::operate::interrupt::Interrupt;

/// The time between two looks at a process and at the signals.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Lines of a program's output that an error shows.
const LINES_SHOWN: usize = 20;

/// A program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call(pub(super) Vec<String>);

impl Call {
    /// The line that a shell understands.
    pub(super) fn line(&self) -> String {
        self.0.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        // PGPASSWORD is the console's: the standby will have the password file alone, and so must the copy.
        command.args(&self.0[1..]).env_remove("PGPASSWORD").env("LC_ALL", "C").stdin(Stdio::null());
        command
    }
}

/// A word as a shell understands it.
pub(super) fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The programs of one PostgreSQL version.
pub(super) struct Programs {
    folder: PathBuf,
    pub(super) major: u32,
}

impl Programs {
    /// Looks for `pg_basebackup` and `postgres` of this major version: in the directory that is named, in those of Debian's and of
    /// PostgreSQL's own packages, and in PATH.
    ///
    /// # Errors
    /// An error that names the programs that were found instead.
    pub(super) fn find(named: Option<&Path>, major: u32) -> Result<Programs, String> {
        let folders = match named {
            Some(folder) => vec![folder.to_owned()],
            None => {
                let packages =
                    [format!("/usr/lib/postgresql/{major}/bin"), format!("/usr/pgsql-{major}/bin")];
                let path = std::env::var_os("PATH").unwrap_or_default();
                packages.into_iter().map(PathBuf::from).chain(std::env::split_paths(&path)).collect()
            }
        };
        let mut other = Vec::new();
        for folder in folders {
            let found = ["pg_basebackup", "postgres"].map(|name| version(&folder.join(name)));
            match found {
                [Some(copy), Some(server)] if copy == major && server == major => {
                    return Ok(Programs { folder, major });
                }
                [Some(version), _] | [None, Some(version)] => {
                    other.push(format!("version {version} in {}", folder.display()));
                }
                [None, None] => {}
            }
        }
        let found = if other.is_empty() {
            "none was found".to_owned()
        } else {
            format!("found: {}", other.join(", "))
        };
        Err(format!(
            "pg_basebackup and postgres must be of the source's major version, {major}; {found}. Install PostgreSQL {major}, or name the directory of its programs with --bindir"
        ))
    }

    /// The path of a program.
    pub(super) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    pub(super) fn call(&self, name: &str, words: &[&str]) -> Call {
        let mut call = vec![self.path(name)];
        call.extend(words.iter().map(|word| (*word).to_owned()));
        Call(call)
    }
}

/// The major version that a program of PostgreSQL tells.
fn version(program: &Path) -> Option<u32> {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let number = said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Runs a program that is quickly done; gives its standard output.
///
/// # Errors
/// An error if the program cannot be run. If it failed, the error is the text of its standard error.
pub(super) fn output(call: &Call) -> Result<String, String> {
    let done = call.command().output().map_err(|error| format!("{}: {error}", call.0[0]))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(format!("{} failed: {said}", call.line()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs a program to its end, and shows each line of its output to `on_line`, which tells whether the line is an expected one (progress).
///
/// # Errors
/// An error if the program cannot be run, or if a signal has ended it. If it failed, the error has its other lines.
pub(super) fn run(
    call: &Call,
    interrupt: &Interrupt,
    mut on_line: impl FnMut(&str) -> bool,
) -> Result<(), String> {
    let mut command = call.command();
    let (stdout, stderr) = (Stdio::piped(), Stdio::piped());
    // pg_basebackup has a second process. Only a signal to both ends the copy.
    let started = command.stdout(stdout).stderr(stderr).process_group(0).spawn();
    let mut child = started.map_err(|error| format!("{}: {error}", call.0[0]))?;
    let lines = lines_of(&mut child);
    let mut kept: Vec<String> = Vec::new();
    let mut is_ended = None;
    loop {
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) if on_line(&line) => {}
            Ok(line) => kept.push(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let (None, Err(why)) = (&is_ended, interrupt.check()) {
            end(&child);
            is_ended = Some(why);
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if let Some(why) = is_ended {
        return Err(why);
    }
    verdict(call, status, &kept)
}

fn verdict(call: &Call, status: ExitStatus, lines: &[String]) -> Result<(), String> {
    if status.success() {
        return Ok(());
    }
    let shown = lines.get(lines.len().saturating_sub(LINES_SHOWN)..).unwrap_or_default();
    let name = Path::new(&call.0[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(format!("{name} failed ({status}):\n{}", shown.join("\n")))
}

/// The lines of both outputs of a child. A carriage return ends a line, too.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    let outputs: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    ];
    for output in outputs.into_iter().flatten() {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut line = Vec::new();
            for byte in BufReader::new(output).bytes().map_while(Result::ok) {
                if byte != b'\n' && byte != b'\r' {
                    line.push(byte);
                    continue;
                }
                let whole = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
                // The other side reads until the outputs are closed.
                let _ = sender.send(whole);
            }
            if !line.is_empty() {
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
    }
    lines
}

/// Ends a child and the processes that it has started.
fn end(child: &Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // A group that has ended already is what is wanted.
        let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
    }
}

/// Runs a program whose output goes to a file, because it leaves a server behind that would keep a pipe open. Gives up waiting for its
/// end as soon as `is_done` says so.
///
/// # Errors
/// An error if the program cannot be run, or if the time is over. If it failed, the error is the end of the file.
pub(super) fn run_apart(
    call: &Call,
    log: &Path,
    limit: Duration,
    interrupt: &Interrupt,
    mut is_done: impl FnMut() -> bool,
) -> Result<(), String> {
    let open = || OpenOptions::new().create(true).append(true).open(log);
    let files = open().and_then(|file| Ok((file.try_clone()?, file)));
    let (stdout, stderr): (File, File) = files.map_err(|error| format!("{}: {error}", log.display()))?;
    let mut command = call.command();
    let mut child =
        command.stdout(stdout).stderr(stderr).spawn().map_err(|error| format!("{}: {error}", call.0[0]))?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            let text = std::fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            return verdict(call, status, &text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
        if is_done() {
            return Ok(());
        }
        if began.elapsed() >= limit {
            return Err(format!(
                "{} has not ended after {} s; see {}",
                call.line(),
                limit.as_secs(),
                log.display()
            ));
        }
        interrupt.check()?;
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(text: &str) -> Call {
        Call(["/bin/sh", "-c", text].map(str::to_owned).to_vec())
    }

    #[test]
    fn a_line_can_be_given_to_a_shell() {
        let call = Call(["/a/b", "-d", "host=h user='x y'", "", "it's"].map(str::to_owned).to_vec());
        assert_eq!(call.line(), "/a/b -d 'host=h user='\\''x y'\\''' '' 'it'\\''s'");
    }

    #[test]
    fn lines_are_shown_as_they_come_and_errors_have_the_rest() {
        let interrupt = Interrupt::default();
        let mut seen = Vec::new();
        let mut on_line = |line: &str| {
            seen.push(line.to_owned());
            line.ends_with('%')
        };
        let call = sh("printf '1%%\\r2%%\\nbad' >&2; exit 3");
        let error = run(&call, &interrupt, &mut on_line).expect_err("it fails");
        assert_eq!(seen, ["1%", "2%", "bad"]);
        assert!(error.ends_with(":\nbad") && error.contains('3'), "{error}");
        interrupt.come();
        assert_eq!(run(&sh("exec sleep 600"), &interrupt, |_| true), Err("interrupted".to_owned()));
    }

    #[test]
    fn a_version_is_read_or_missing() {
        let found = Programs::find(Some(Path::new("/nowhere")), 15);
        assert!(found.is_err_and(|why| why.contains("--bindir") && why.contains("none was found")));
    }
}

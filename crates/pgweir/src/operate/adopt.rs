//! `pgweir adopt`: looks for PgBouncer in this container or on this host, and prints the one line that puts pgweir in its place. It reads
//! files and /proc, and changes nothing.

mod kind;
mod scene;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lexopt::prelude::*;
use pgweir_doctor::printable;

use kind::Kind;
use scene::Scene;

/// Exit code: there is no PgBouncer here.
const NOTHING_FOUND: u8 = 1;
/// Exit code: the arguments cannot be used.
pub(crate) const UNUSABLE: u8 = 2;

/// The text of `adopt -h`.
pub(crate) const ADOPT_HELP: &str = "\
pgweir adopt: find the PgBouncer of this container or host, and print the one
line that puts pgweir in its place.

Usage:
  pgweir adopt [OPTION]...

It looks for the process pgbouncer, for the configuration files of packages,
images and operators, for a service of systemd, and for variables of images.
It changes nothing, and shows no value of a variable.

Options:
      --image=NAME       the name of the image in that line
      --root=DIR         look at the file system in DIR; from the host,
                         /proc/PID/root is that of a container's process PID
  -h, --help             show this help, then exit

Exit code: 0 PgBouncer was found; 1 it was not; 2 the arguments are wrong.
";

/// The command that the arguments give.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AdoptCommand {
    /// Look, and print what is there.
    Look(Wanted),
    /// `-h`
    Help,
}

/// Where to look, and what to write into the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The directory that stands for `/`.
    root: PathBuf,
    /// The name of pgweir's image.
    image: String,
}

/// Understands the arguments after `adopt`.
///
/// # Errors
/// An argument that is not known, or lacks its value.
pub(crate) fn parse(args: Vec<OsString>) -> Result<AdoptCommand, String> {
    let text = |error: lexopt::Error| error.to_string();
    let mut parser = lexopt::Parser::from_args(args);
    let image = format!("registry.example/pgweir:{}", env!("CARGO_PKG_VERSION"));
    let mut wanted = Wanted { root: "/".into(), image };
    while let Some(arg) = parser.next().map_err(text)? {
        match arg {
            Short('h') | Long("help") => return Ok(AdoptCommand::Help),
            Long("root") => wanted.root = parser.value().map_err(text)?.into(),
            Long("image") => wanted.image = parser.value().map_err(text)?.string().map_err(text)?,
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(AdoptCommand::Look(wanted))
}

/// Prints what was found and the line to change.
pub(crate) fn adopt(command: &AdoptCommand) -> ExitCode {
    let (page, code) = match command {
        AdoptCommand::Help => (ADOPT_HELP.to_owned(), ExitCode::SUCCESS),
        AdoptCommand::Look(wanted) => {
            // Seen from outside, this process's variables say nothing about what is there.
            let own = std::env::vars_os().filter(|_| wanted.root == Path::new("/"));
            let own =
                own.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
            let scene = Scene::look(&wanted.root, own);
            match Kind::of(&scene) {
                Some(kind) => (page(&scene, &kind, &wanted.image), ExitCode::SUCCESS),
                None => {
                    eprintln!(
                        "pgweir adopt: no PgBouncer was found: no process, no configuration file, no service, no variables of an image"
                    );
                    return ExitCode::from(NOTHING_FOUND);
                }
            }
        }
    };
    let _ = std::io::stdout().write_all(page.as_bytes());
    code
}

fn page(scene: &Scene, kind: &Kind, image: &str) -> String {
    let mut page = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(page, "{name:<10}{}", printable(&value));
    };
    row(
        "process",
        match &scene.process {
            Some(process) => format!("{}: {}", process.pid, process.words.join(" ")),
            None => "none that this user can see".to_owned(),
        },
    );
    row("start", kind.name().to_owned());
    row(
        "config",
        match &scene.config {
            Some(path) => path.clone(),
            None => "none: the image writes one from its variables".to_owned(),
        },
    );
    row("user", scene.user(kind).unwrap_or_else(|| "not known".to_owned()));
    row("port", scene.port(kind).map_or_else(|| "not known".to_owned(), |port| port.to_string()));
    row("operator", kind.operator(scene).to_owned());
    let change = kind.change(scene, image);
    let _ = write!(page, "\nChange {}:\n\n    {}\n", change.place, printable(&change.line));
    for note in &change.notes {
        let _ = writeln!(page, "\n{}", printable(note));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<AdoptCommand, String> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn arguments_are_understood() {
        let wanted = Wanted { root: "/mnt".into(), image: "a/b:1".to_owned() };
        assert_eq!(parsed("--root=/mnt --image a/b:1"), Ok(AdoptCommand::Look(wanted)));
        assert_eq!(parsed("--root=/mnt -h"), Ok(AdoptCommand::Help));
        for wrong in ["--root", "/etc/pgbouncer.ini", "--images=x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}

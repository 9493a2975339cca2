//! Cleans up when this process cannot: a shell that waits at a pipe which only we hold. Whatever ends us closes the pipe,
//! SIGKILL too, and then the shell stops the processes and removes the folders that it was told of.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;

/// `+` at the start of a line adds what it says, `-` takes it away. At the end of input: signals are sent as the lines say, then it
/// waits for these processes, then the folders go. Signals from a terminal are not for it.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
while IFS= read -r line; do
    case $line in
    +*) set -- "$@" "${line#+}" ;;
    -*)
        left=$#
        while [ "$left" -gt 0 ]; do
            [ "$1" = "${line#-}" ] || set -- "$@" "$1"
            shift
            left=$((left - 1))
        done
        ;;
    esac
done
for each; do
    case $each in /*) ;; *) kill -s "${each% *}" "${each#* }" ;; esac
done
tries_left=150
for each; do
    case $each in /*) continue ;; esac
    while kill -s 0 "${each#* }" && [ "$tries_left" -gt 0 ]; do
        sleep 0.1
        tries_left=$((tries_left - 1))
    done
    kill -s KILL "${each#* }"
done
for each; do
    case $each in /*/pgweir-??????) rm -rf -- "$each" ;; esac
done
"#;

static KEEPER: Mutex<Option<Keeper>> = Mutex::new(None);

struct Keeper {
    shell: Child,
    things: usize,
}

/// Something that must not outlive us. Dropping this says that it is gone.
#[derive(Debug)]
pub(crate) struct Kept(String);

/// Has a temporary folder removed. Processes are kept only while there is one.
pub(crate) fn keep_folder(path: &Path) -> Option<Kept> {
    // A line for each: what has two is left alone.
    let line = path.to_str().filter(|path| path.starts_with('/') && !path.contains('\n'))?;
    let mut keeper = keeper();
    if keeper.is_none() {
        // Without a shell, no keeper cleans up.
        *keeper = start().ok();
    }
    keep(keeper.as_mut()?, line.to_owned())
}

/// Has a process stopped by a signal.
pub(crate) fn keep_process(id: u32, signal: Signal) -> Option<Kept> {
    let name = signal.as_str().trim_start_matches("SIG");
    keep(keeper().as_mut()?, format!("{name} {id}"))
}

fn keep(keeper: &mut Keeper, line: String) -> Option<Kept> {
    keeper.say('+', &line).ok()?;
    keeper.things += 1;
    Some(Kept(line))
}

fn start() -> io::Result<Keeper> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(SCRIPT).arg("pgweir-keeper").process_group(0);
    // It may outlast the reader of our output.
    let null = || Stdio::null();
    let shell = command.stdin(Stdio::piped()).stdout(null()).stderr(null()).current_dir("/").spawn()?;
    Ok(Keeper { shell, things: 0 })
}

fn keeper() -> MutexGuard<'static, Option<Keeper>> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    fn say(&mut self, sign: char, line: &str) -> io::Result<()> {
        let mut input = self.shell.stdin.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(format!("{sign}{line}\n").as_bytes())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut slot = keeper();
        let Some(keeper) = slot.as_mut() else { return };
        // A shell that is gone keeps nothing.
        let _ = keeper.say('-', &self.0);
        keeper.things -= 1;
        if keeper.things == 0 {
            drop(keeper.shell.stdin.take());
            let _ = keeper.shell.wait();
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sys::signal::kill;
    use nix::unistd::Pid;

    use super::*;

    /// What becomes of a process and a folder when a keeper's pipe is closed.
    fn end_of(lines: impl FnOnce(&mut Keeper, u32, &Path)) -> (bool, bool) {
        let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("pgweir-XXXXXX")).expect("a folder");
        std::fs::write(folder.join("file"), "").expect("written");
        let mut sleep = Command::new("sleep").arg("600").spawn().expect("coreutils");
        let id = sleep.id();
        // The keeper waits until it is gone, which it is when it has been waited for.
        let reaper = thread::spawn(move || sleep.wait());
        let mut keeper = start().expect("a shell");
        lines(&mut keeper, id, &folder);
        drop(keeper.shell.stdin.take());
        keeper.shell.wait().expect("ours");
        let pid = Pid::from_raw(id.cast_signed());
        let ended = kill(pid, None).is_err();
        if !ended {
            kill(pid, Signal::SIGKILL).expect("ours");
        }
        reaper.join().expect("no panic").expect("ours");
        let removed = !folder.exists();
        let _ = std::fs::remove_dir_all(&folder);
        (ended, removed)
    }

    #[test]
    fn what_is_left_behind_is_stopped_and_removed() {
        let ends = end_of(|keeper, sleep, folder| {
            keeper.say('+', folder.to_str().expect("text")).expect("told");
            keeper.say('+', &format!("TERM {sleep}")).expect("told");
        });
        assert_eq!(ends, (true, true));
    }

    #[test]
    fn what_is_gone_is_left_alone() {
        let ends = end_of(|keeper, sleep, folder| {
            for sign in ['+', '-'] {
                keeper.say(sign, folder.to_str().expect("text")).expect("told");
                keeper.say(sign, &format!("TERM {sleep}")).expect("told");
            }
        });
        assert_eq!(ends, (false, false));
    }

    #[test]
    fn only_folders_of_ours_are_removed() {
        let folder = std::env::temp_dir().join(format!("not-ours-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("made");
        let mut keeper = start().expect("a shell");
        keeper.say('+', folder.to_str().expect("text")).expect("told");
        drop(keeper.shell.stdin.take());
        keeper.shell.wait().expect("ours");
        assert!(folder.exists());
        std::fs::remove_dir(&folder).expect("still there");
    }
}

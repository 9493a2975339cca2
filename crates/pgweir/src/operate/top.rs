//! `pgweir top`: a live view of a running pooler in the terminal.
//!
//! The view reads the console's tables, as psql can, and sends the console's commands. It has no other way into the pooler.

mod options;

#[cfg(feature = "top")]
mod console;
#[cfg(feature = "top")]
mod draw;
#[cfg(feature = "top")]
mod model;
#[cfg(feature = "top")]
mod once;
#[cfg(feature = "top")]
mod orders;
#[cfg(feature = "top")]
mod terminal;
#[cfg(feature = "top")]
mod view;

use std::process::ExitCode;

pub(crate) use options::{TOP_HELP, TopCommand, parse};

/// Exit code: the console could not be entered, there is no terminal, or the arguments are wrong.
pub(crate) const UNUSABLE: u8 = 2;

/// Shows the view, or prints it once.
pub(crate) fn top(command: TopCommand) -> ExitCode {
    match command {
        TopCommand::Help => crate::show(TOP_HELP),
        TopCommand::Look(options) => look(options),
    }
}

/// Says why the view cannot be shown.
fn unusable(why: &str) -> ExitCode {
    eprintln!("pgweir top: {}", pgweir_doctor::printable(why));
    ExitCode::from(UNUSABLE)
}

#[cfg(not(feature = "top"))]
fn look(_: options::Options) -> ExitCode {
    unusable("this pgweir was built without the feature top")
}

#[cfg(feature = "top")]
fn look(options: options::Options) -> ExitCode {
    use std::io::IsTerminal as _;

    if !options.is_once && !std::io::stdout().is_terminal() {
        return unusable("standard output is no terminal; --once prints one screen");
    }
    let mut console = match console::Console::enter(&options, std::time::Instant::now()) {
        Ok(console) => console,
        Err(why) => return unusable(&why),
    };
    if options.is_once {
        return match once::page(&mut console, options.interval) {
            Ok(page) => crate::show(&page),
            Err(error) => unusable(&format!("the console was lost: {error}")),
        };
    }
    match terminal::show(console, options) {
        Ok(terminal::End::Quit) => ExitCode::SUCCESS,
        // What a shell says of a process that a signal ended.
        Ok(terminal::End::Signal(number)) => ExitCode::from(128 + number),
        Err(error) => unusable(&format!("the terminal cannot be used: {error}")),
    }
}

//! The pooler binary: understand the command line, build what it asks for, run it.
//!
//! What is here is only what needs both the data plane and the control plane; each of them must never know the other.
//! This is the one place that ends the process.

// The binary starts threads and ends the process; the list of disallowed methods is for the data plane.
#![allow(clippy::disallowed_methods)]

mod check;
mod command_line;
#[cfg(test)]
mod completions;
mod doctor;
mod entrypoint;
mod fleet;
mod import;
mod operate;
mod probe;
mod run;
mod start;
mod succession;
mod version;

use std::io::Write as _;
use std::process::ExitCode;

use command_line::Command;

fn main() -> ExitCode {
    match command_line::parse(std::env::args_os().skip(1)) {
        Ok(Command::Run(options)) => run::run(options),
        Ok(Command::Check(options)) => check::check(&options),
        Ok(Command::Doctor(options)) => doctor::doctor(&options),
        Ok(Command::Import(options)) => import::import(&options),
        Ok(Command::Pair(command)) => operate::pair::pair(&command),
        Ok(Command::Ctl(command)) => operate::ctl::ctl(&command),
        Ok(Command::Cache(command)) => operate::cache::cache(&command),
        Ok(Command::Top(command)) => operate::top::top(command),
        Ok(Command::Node(command)) => operate::node::node(&command),
        Ok(Command::Adopt(command)) => operate::adopt::adopt(&command),
        Ok(Command::Entrypoint(options)) => entrypoint::entrypoint(options),
        Ok(Command::Demo(args)) => pgweir_bench::demo(args),
        Ok(Command::Bench(args)) => pgweir_bench::bench(args),
        Ok(Command::Version(options)) => show(&version::page(&options)),
        Ok(Command::Help) => show(command_line::HELP),
        Ok(Command::ImportHelp) => show(command_line::IMPORT_HELP),
        Ok(Command::CheckHelp) => show(command_line::CHECK_HELP),
        Ok(Command::DoctorHelp) => show(command_line::DOCTOR_HELP),
        Ok(Command::EntrypointHelp) => show(command_line::ENTRYPOINT_HELP),
        Err(error) => {
            eprintln!("pgweir: {error}\nSee pgweir -h for usage.");
            // For import, 1 says that the result can be used; for doctor, that it has looked.
            match std::env::args_os().nth(1) {
                Some(word) if word == "import" => ExitCode::from(import::UNREADABLE),
                Some(word) if word == "pair" => ExitCode::from(operate::pair::UNUSABLE),
                Some(word) if word == "node" => ExitCode::from(operate::node::UNUSABLE),
                Some(word) if word == "adopt" => ExitCode::from(operate::adopt::UNUSABLE),
                Some(word) if word == "ctl" => ExitCode::from(operate::ctl::NOT_ENTERED),
                Some(word) if word == "cache" => ExitCode::from(operate::cache::UNUSABLE),
                Some(word) if word == "top" => ExitCode::from(operate::top::UNUSABLE),
                Some(word) if word == "doctor" => ExitCode::from(doctor::NOTHING_SEEN),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Prints a page. A reader that closes early (`pgweir -h | head -1`) is no failure.
fn show(page: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(page.as_bytes());
    ExitCode::SUCCESS
}

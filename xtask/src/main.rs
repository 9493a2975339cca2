//! Developer commands that are more than one line, run as `cargo xtask COMMAND`. The Makefile is the menu.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod calls;
mod functions;
mod instructions;
mod mutants;
mod tidy;

const HELP: &str = "\
usage: cargo xtask COMMAND

commands:
  tidy            check the house rules that neither rustfmt nor clippy knows
  calls           list the files of core that call one another in circles (--calls: with the calls)
  functions       list the functions of core that one relayed statement passes, counted by valgrind
  instructions    count the instructions of the hot paths with valgrind, and compare with the baseline
                  (--update, --only=NAME,NAME, --fail-above=PERCENT)
  mutants         put small faults into a copy of the sources and say what finds them (--seeds=NUMBER, --only=WORDS);
                  --build=WORDS only builds the binary with one of them, in target/mutants
";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("tidy") => tidy::run(&workspace_root()),
        Some("calls") => calls::run(&workspace_root(), &words[1..]),
        Some("functions") => functions::run(&workspace_root()),
        Some("instructions") => instructions::run(&workspace_root(), &words[1..]),
        Some("mutants") => mutants::run(&workspace_root(), &words[1..]),
        Some("-h" | "--help" | "help") | None => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Some(unknown) => {
            eprint!("xtask: no command is called \"{unknown}\"\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

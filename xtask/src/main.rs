//! Developer commands that are more than one line, run as `cargo xtask COMMAND`. The Makefile is the menu.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod tidy;

const HELP: &str = "\
usage: cargo xtask COMMAND

commands:
  tidy    check the house rules that neither rustfmt nor clippy knows
";

fn main() -> ExitCode {
    let command = env::args().nth(1);
    match command.as_deref() {
        Some("tidy") => tidy::run(&workspace_root()),
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

//! The number of instructions that the hot paths take, counted by valgrind: the same on a busy machine as on a quiet one.
//!
//! The program `instructions` of the testkit goes each path many times; two runs of different length give what one time
//! costs. The baseline is in the repository, so that a change shows what it costs or saves.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const BASELINE: &str = "crates/testkit/instructions.txt";
const BASELINE_HEAD: &str = "\
# Instructions of the hot paths, one time each; written by `make bench-instructions ARGS=--update`.
# They depend on the compiler's version: after a new one, update this file in a separate commit.
";
/// Times of the two runs of a path.
const FEW: u32 = 500;
const MANY: u32 = 2500;
/// Hash seeds differ from run to run, and with them a few instructions.
const NOISE_PERCENT: f64 = 0.5;

/// What the user asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// Rewrite the baseline.
    update: bool,
    /// A path that became dearer than this many per cent is an error.
    fail_above_percent: Option<u32>,
    /// Only paths whose name begins so.
    only: Vec<String>,
}

/// Counts, compares, prints.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    match try_run(root, args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::from(2)
        }
    }
}

fn try_run(root: &Path, args: &[String]) -> Result<bool, String> {
    let options = parse(args)?;
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err("valgrind is not installed (Debian: apt install valgrind)".to_owned());
    }
    let program = build(root)?;
    let baseline_path = root.join(BASELINE);
    let mut baseline = read_baseline(&fs::read_to_string(&baseline_path).unwrap_or_default());
    let mut within = true;
    println!("{:<20} {:>12} {:>12} {:>9}   one time is", "path", "baseline", "now", "change");
    for (name, what) in paths(&program)? {
        if !options.only.is_empty() && !options.only.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let few = count(&program, &name, FEW)?;
        let many = count(&program, &name, MANY)?;
        let now = many.saturating_sub(few) / u64::from(MANY - FEW);
        let before = baseline.get(&name).copied();
        println!("{name:<20} {:>12} {now:>12} {:>9}   {what}", shown(before), change(before, now));
        within &= is_within(before, now, options.fail_above_percent);
        baseline.insert(name, now);
    }
    if options.update {
        let text = baseline_text(&baseline);
        fs::write(&baseline_path, text).map_err(|error| format!("{}: {error}", baseline_path.display()))?;
        println!("written to {BASELINE}");
    } else {
        println!("\nWhere they go: valgrind --tool=callgrind {} PATH {MANY}", program.display());
    }
    Ok(within)
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    for arg in args {
        match arg.split_once('=') {
            None if arg == "--update" => options.update = true,
            Some(("--fail-above", percent)) => {
                let percent = percent.parse().map_err(|_| "--fail-above takes a number of per cent")?;
                options.fail_above_percent = Some(percent);
            }
            Some(("--only", names)) => options.only.extend(names.split(',').map(str::to_owned)),
            _ => {
                return Err(format!("\"{arg}\": there are --update, --only=NAME,NAME, --fail-above=PERCENT"));
            }
        }
    }
    Ok(options)
}

/// Builds the program as the pooler is built; gives its path.
pub(crate) fn build(root: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "pgweir-testkit", "--bin", "instructions"])
        .args(["--message-format", "json"])
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("starting cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let executable =
        said.lines().rev().find_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'));
    match executable {
        Some((path, _)) if output.status.success() => Ok(path.into()),
        _ => Err("the program could not be built".to_owned()),
    }
}

/// Names of the paths, and what one time is.
fn paths(program: &Path) -> Result<Vec<(String, String)>, String> {
    let output = Command::new(program).arg("list").output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect())
}

fn count(program: &Path, name: &str, times: u32) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(program)
        .args([name, &times.to_string()])
        .output()
        .map_err(|error| format!("starting valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match references(&said) {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(format!("path {name} failed under valgrind:\n{said}")),
    }
}

/// The number in valgrind's line `==4711== I   refs:      6,592,811`.
fn references(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains(" I ") && line.contains("refs:"))?;
    line.rsplit(' ').next()?.replace(',', "").parse().ok()
}

fn read_baseline(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, count)| Some((name.to_owned(), count.trim().parse().ok()?)))
        .collect()
}

fn baseline_text(baseline: &BTreeMap<String, u64>) -> String {
    let mut text = BASELINE_HEAD.to_owned();
    for (name, count) in baseline {
        let _ = writeln!(text, "{name:<20} {count}");
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "instructions of one path are far below 2^52")]
fn change_percent(before: u64, now: u64) -> f64 {
    (now as f64 / before.max(1) as f64 - 1.0) * 100.0
}

fn shown(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn change(before: Option<u64>, now: u64) -> String {
    match before.map(|before| change_percent(before, now)) {
        None => "new".to_owned(),
        Some(percent) if percent.abs() < NOISE_PERCENT => "=".to_owned(),
        Some(percent) => format!("{percent:+.1} %"),
    }
}

fn is_within(before: Option<u64>, now: u64, limit_percent: Option<u32>) -> bool {
    let (Some(before), Some(limit)) = (before, limit_percent) else { return true };
    change_percent(before, now) <= f64::from(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valgrinds_count_is_read() {
        let said = "--1-- warning: L3 cache found\n==12168== \n==12168== I   refs:      6,592,811\n";
        assert_eq!(references(said), Some(6_592_811));
        assert_eq!(references("==1== nothing"), None);
    }

    #[test]
    fn a_baseline_is_read_as_it_was_written() {
        let baseline = BTreeMap::from([("simple".to_owned(), 4000), ("framing".to_owned(), 17)]);
        assert_eq!(read_baseline(&baseline_text(&baseline)), baseline);
    }

    #[test]
    fn small_changes_are_noise_and_large_ones_may_fail() {
        assert_eq!(change(Some(1000), 1004), "=");
        assert_eq!(change(Some(1000), 1100), "+10.0 %");
        assert_eq!(change(None, 1100), "new");
        assert!(is_within(Some(1000), 1040, Some(5)) && !is_within(Some(1000), 1060, Some(5)));
        assert!(is_within(None, 1, Some(5)) && is_within(Some(1), 100, None));
    }

    #[test]
    fn options_are_read() {
        let words: Vec<String> =
            ["--only=lex,simple", "--fail-above=5"].iter().map(ToString::to_string).collect();
        let options = parse(&words).expect("valid");
        assert_eq!((options.only.len(), options.fail_above_percent, options.update), (2, Some(5), false));
        assert!(parse(&["--what".to_owned()]).is_err());
    }
}

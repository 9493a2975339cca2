//! The functions of core that one relayed statement passes, there and back, counted by valgrind in the program as it is built for
//! users: what the compiler has put into its caller is not a function there.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::instructions::build;

/// The path of the testkit's program `instructions` that is gone, and how often.
const PATH: &str = "simple";
const TIMES: u32 = 2000;
const CORE: &str = "pgweir_core";
/// Its driver is named with core's trait.
const TESTKIT: &str = "pgweir_testkit";

/// Prints the functions, each with its calls for one statement.
pub(crate) fn run(root: &Path) -> ExitCode {
    match counted(root) {
        Ok(calls) => {
            print!("{}", report(&calls, TIMES));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("functions: {error}");
            ExitCode::from(2)
        }
    }
}

fn counted(root: &Path) -> Result<BTreeMap<String, u64>, String> {
    let program = build(root)?;
    let directory = tempdir()?;
    let profile = directory.join("functions.out");
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args([PATH, &TIMES.to_string()])
        .output()
        .map_err(|error| format!("starting valgrind: {error}"))?;
    if !output.status.success() {
        return Err(format!("valgrind failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = std::fs::read(&profile).map_err(|error| format!("{}: {error}", profile.display()))?;
    let _ = std::fs::remove_dir_all(directory);
    Ok(calls(&String::from_utf8_lossy(&text)))
}

fn tempdir() -> Result<std::path::PathBuf, String> {
    let directory = std::env::temp_dir().join(format!("pgweir-functions-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}

/// How often each function is called in a profile of callgrind, which names a function once and then by its number.
fn calls(profile: &str) -> BTreeMap<String, u64> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut calls = BTreeMap::new();
    let mut called = "";
    for line in profile.lines() {
        if let Some(named) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            let (number, name) =
                named.split_once(' ').map_or((named, None), |(number, name)| (number, Some(name)));
            if let Some(name) = name {
                names.insert(number, name);
            }
            if line.starts_with('c') {
                called = names.get(number).copied().unwrap_or_default();
            }
        } else if let Some(count) = line.strip_prefix("calls=") {
            let count: u64 = count.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
            *calls.entry(called.to_owned()).or_default() += count;
        }
    }
    calls
}

fn report(calls: &BTreeMap<String, u64>, times: u32) -> String {
    // The first statements are looked at more closely than those that come again.
    let often = u64::from(times) * 9 / 10;
    let is_of_core = |name: &str| name.contains(CORE) && !name.contains(TESTKIT);
    let passed: Vec<_> = calls.iter().filter(|(name, count)| is_of_core(name) && **count >= often).collect();
    let shown = |(name, count): &(&String, &u64)| format!("{:>3} {name}", count.div_ceil(u64::from(times)));
    let mut lines: Vec<String> = passed.iter().map(shown).collect();
    lines.push(format!("{} functions of core are passed by one statement\n", passed.len()));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name() {
        let profile = "fn=(1) main\ncfn=(2) pgweir_core::a\ncalls=1900 5\n7 9\nfn=(2)\ncfn=(3) memcpy\ncalls=2000 5\n\
                       fn=(4) pgweir_core::b\ncfn=(2)\ncalls=100 5\ncfn=(4)\ncalls=1 5\n";
        let calls = calls(profile);
        assert_eq!((calls["pgweir_core::a"], calls["memcpy"], calls["pgweir_core::b"]), (2000, 2000, 1));
        let report = report(&calls, 2000);
        assert_eq!(report, "  1 pgweir_core::a\n1 functions of core are passed by one statement\n");
    }
}

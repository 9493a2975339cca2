//! House rules that neither rustfmt nor clippy knows, as a command and as a test.
//!
//! A rule looks at one file and says what is wrong with it, with the line. Rules must never look outside of the checkout,
//! and never change a file.

mod features;
mod invariants;
mod layers;
mod phrases;
mod rare_paths;
mod rules;
pub(crate) mod source;
mod states;
pub(crate) mod walk;
mod walls;
mod words;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use source::Source;

/// What a rule found.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// Path from the root of the workspace.
    path: PathBuf,
    /// Line, from 1; 0 for the file as a whole.
    line: usize,
    text: String,
}

impl Problem {
    pub(crate) fn new(path: &Path, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

/// Everything that was found in the workspace, and figures about it.
#[derive(Debug, Default)]
struct Findings {
    problems: Vec<Problem>,
    /// Lines of every Rust file.
    rust_lines: Vec<usize>,
    /// Functions beyond the goal but within the limit.
    long_functions: Vec<String>,
}

/// Checks the workspace at `root` and prints what is wrong; fails if anything is.
pub(crate) fn run(root: &Path) -> ExitCode {
    let findings = match check(root) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", findings.report());
    if findings.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(root: &Path) -> std::io::Result<Findings> {
    let mut findings = Findings::default();
    let files = walk::files(root)?;
    findings.problems.extend(rules::folders(&files));
    let (mut sources, mut architecture, mut invariant_tests) = (Vec::new(), String::new(), String::new());
    for path in files {
        let bytes = std::fs::read(root.join(&path))?;
        // What is not text has no lines to be tidy.
        let Ok(text) = String::from_utf8(bytes) else { continue };
        findings.problems.extend(rules::text(&path, &text));
        findings.problems.extend(words::hosts_and_paths(&path, &text));
        findings.problems.extend(phrases::document(&path, &text));
        if path.extension().is_some_and(|extension| extension == "rs") {
            let source = Source::new(&text);
            check_rust(&path, &text, &source, &mut findings);
            sources.push((path.clone(), source));
        }
        match path.to_str() {
            Some(states::DOCUMENT) => architecture.clone_from(&text),
            Some(invariants::LIST) => invariant_tests.clone_from(&text),
            _ => {}
        }
        if path.file_name().is_some_and(|name| name == "Cargo.toml") {
            findings.problems.extend(layers::manifest(&path, &text));
        }
    }
    let functions = features::Functions::of(&sources);
    findings.problems.extend(sources.iter().flat_map(|(path, source)| functions.problems(path, source)));
    findings.problems.extend(functions.leftovers());
    findings.problems.extend(crate::calls::problems(&sources));
    findings.problems.extend(rare_paths::problems(&sources));
    findings.problems.extend(states::problems(&sources, &architecture));
    findings.problems.extend(invariants::problems(&sources, &architecture, &invariant_tests));
    findings.problems.sort();
    findings.rust_lines.sort_unstable();
    findings.long_functions.sort();
    Ok(findings)
}

fn check_rust(path: &Path, text: &str, source: &Source, findings: &mut Findings) {
    findings.rust_lines.push(text.lines().count());
    findings.problems.extend(rules::rust(path, text, source));
    findings.problems.extend(layers::rust(path, source));
    findings.problems.extend(walls::problems(path, source));
    findings.problems.extend(words::leftovers(path, text, source));
    findings.problems.extend(phrases::messages(path, text, source));
    for function in source.functions() {
        let lines = function.lines();
        if lines > rules::FUNCTION_LINES_MAX {
            let text =
                format!("fn {} has {lines} lines, more than {}", function.name, rules::FUNCTION_LINES_MAX);
            findings.problems.push(Problem::new(path, function.first_line, text));
        } else if lines > rules::FUNCTION_LINES_GOAL {
            findings.long_functions.push(format!(
                "{}:{}: fn {} ({lines} lines)",
                path.display(),
                function.first_line,
                function.name
            ));
        }
    }
}

impl Findings {
    fn report(&self) -> String {
        let mut report = String::new();
        for Problem { path, line, text } in &self.problems {
            let _ = writeln!(report, "{}:{line}: {text}", path.display());
        }
        if !self.long_functions.is_empty() {
            let _ = writeln!(
                report,
                "functions beyond the goal of {} lines (allowed):",
                rules::FUNCTION_LINES_GOAL
            );
            for function in &self.long_functions {
                let _ = writeln!(report, "  {function}");
            }
        }
        let files = self.rust_lines.len();
        let median = self.rust_lines.get(files / 2).copied().unwrap_or(0);
        let longest = self.rust_lines.last().copied().unwrap_or(0);
        let sum: usize = self.rust_lines.iter().sum();
        let _ = writeln!(report, "{files} Rust files, {sum} lines, median {median}, longest {longest}");
        let _ = match self.problems.len() {
            0 => writeln!(report, "tidy"),
            count => writeln!(report, "{count} problems"),
        };
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        let findings = check(&crate::workspace_root()).expect("the workspace can be read");
        assert!(findings.rust_lines.len() > 20, "the walk missed the workspace: {findings:?}");
        assert!(findings.problems.is_empty(), "\n{}", findings.report());
    }
}

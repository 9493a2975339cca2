//! Which files of core call one another in circles. A call is that of a method of `Pool`, `PoolState` or `Worker`, by its name, in another
//! file: these types own everything, so these are the calls by which one file can change what another relies on. A second look takes the
//! free functions that a file imports as well: they change nothing that they were not given, but a reader follows them, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::tidy::Problem;
use crate::tidy::source::Source;
use crate::tidy::walk;

const CORE: &str = "crates/core/src";
/// Files that may call one another in a circle; more cannot be understood one at a time.
const CIRCLE_MAX: usize = 6;
/// Files that may call one another in a circle if free functions count, too.
const CIRCLE_WITH_FUNCTIONS_MAX: usize = 30;
/// The types whose methods count, with the names of the values by which they are called elsewhere.
const OWNERS: [(&str, &[&str]); 3] =
    [("Pool", &["pool"]), ("PoolState", &["pool", "state"]), ("Worker", &["worker"])];
/// The field by which a pool calls the methods of its state.
const STATE: &str = "self.state";

/// Prints the circles, largest first; with `--calls` also the calls in them.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    let with_calls = match args {
        [] => false,
        [word] if word == "--calls" => true,
        _ => {
            eprintln!("calls: there is --calls");
            return ExitCode::from(2);
        }
    };
    match read(root) {
        Ok(files) => {
            print!("{}", report(&Calls::of(&files, Counts::Methods), with_calls));
            println!("\nWith free functions:\n");
            print!("{}", report(&Calls::of(&files, Counts::MethodsAndFunctions), with_calls));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("calls: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The calls that count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// Calls of methods of the types in [`OWNERS`].
    Methods,
    /// These, and calls of free functions that a file imports by name.
    MethodsAndFunctions,
}

/// Circles of core's files that are too large.
pub(crate) fn problems(files: &[(PathBuf, Source)]) -> Vec<Problem> {
    let limits = [(Counts::Methods, CIRCLE_MAX), (Counts::MethodsAndFunctions, CIRCLE_WITH_FUNCTIONS_MAX)];
    let mut said = Vec::new();
    for (counts, most) in limits {
        let calls = Calls::of(files.iter().filter(|(path, _)| path.starts_with(CORE)), counts);
        let circles = calls.circles().into_iter().filter(|circle| circle.len() > most);
        said.extend(circles.filter_map(|circle| {
            let first = *circle.first()?;
            let text =
                format!("{} files call one another in a circle: see `cargo xtask calls`", circle.len());
            Some(Problem::new(first, 0, text))
        }));
    }
    said
}

fn read(root: &Path) -> std::io::Result<Vec<(PathBuf, Source)>> {
    let mut files = Vec::new();
    for path in walk::files(root)? {
        let Ok(inside) = path.strip_prefix(CORE) else { continue };
        if inside.extension().is_some_and(|extension| extension == "rs") {
            files.push((inside.to_owned(), Source::new(&std::fs::read_to_string(root.join(&path))?)));
        }
    }
    Ok(files)
}

/// For each file, the files that it calls, with the names of what it calls there.
struct Calls(BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>);

impl Calls {
    fn of<'a>(files: impl IntoIterator<Item = &'a (PathBuf, Source)> + Clone, counts: Counts) -> Calls {
        let mut methods = BTreeMap::new();
        let mut functions: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
        for (path, source) in files.clone() {
            each_line(source, |owner, line, _| {
                if let Some(name) = owner.and_then(|_| defined_method(line)) {
                    methods.insert((owner.unwrap_or_default(), name), path.as_path());
                }
                if let Some(name) = defined_function(line) {
                    functions.entry(name).or_default().push(path);
                }
            });
        }
        let mut calls: BTreeMap<_, BTreeMap<PathBuf, BTreeSet<String>>> = BTreeMap::new();
        for (path, source) in files {
            let own = calls.entry(path.clone()).or_default();
            let imported = imports(source);
            each_line(source, |owner, line, before| {
                let mut found: Vec<(&Path, &str)> = method_calls(line, before)
                    .into_iter()
                    .filter_map(|(receiver, name)| {
                        let owners: Vec<&str> = match receiver {
                            "self" => owner.into_iter().collect(),
                            _ => called_by(receiver),
                        };
                        Some((*owners.iter().find_map(|of| methods.get(&(*of, name)))?, name))
                    })
                    .collect();
                if counts == Counts::MethodsAndFunctions {
                    let called = function_calls(line).into_iter().filter(|name| imported.contains(name));
                    found.extend(called.filter_map(|name| match functions.get(name)?.as_slice() {
                        [only] => Some((*only, name)),
                        _ => None,
                    }));
                }
                for (other, name) in found.into_iter().filter(|(other, _)| *other != path) {
                    own.entry(other.to_owned()).or_default().insert(name.to_owned());
                }
            });
        }
        Calls(calls)
    }

    /// Everything that a file reaches by calls.
    fn reached(&self, from: &Path) -> BTreeSet<&Path> {
        let mut reached = BTreeSet::new();
        let mut left = vec![from];
        while let Some(next) = left.pop() {
            for other in self.0.get(next).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(other.as_path()) {
                    left.push(other);
                }
            }
        }
        reached
    }

    /// The files that reach one another, the largest set first.
    fn circles(&self) -> Vec<BTreeSet<&Path>> {
        let reached: BTreeMap<&Path, BTreeSet<&Path>> =
            self.0.keys().map(|path| (path.as_path(), self.reached(path))).collect();
        let circle = |path: &Path| -> BTreeSet<&Path> {
            let of = &reached[path];
            of.iter().copied().filter(|other| reached[other].contains(path)).collect()
        };
        let circles: BTreeSet<BTreeSet<&Path>> =
            self.0.keys().map(|path| circle(path)).filter(|circle| circle.len() > 1).collect();
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

fn report(calls: &Calls, with_calls: bool) -> String {
    let mut lines = Vec::new();
    for circle in calls.circles() {
        lines.push(format!("{} files call one another in circles:", circle.len()));
        for path in &circle {
            lines.push(format!("  {}", path.display()));
            for (other, names) in calls.0[*path].iter().filter(|(other, _)| circle.contains(other.as_path()))
            {
                if with_calls {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    lines.push(format!("      {}: {}", other.display(), names.join(" ")));
                }
            }
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Calls `look` with each line that is not for tests, with the type whose methods it stands among, and the line before.
fn each_line<'a>(source: &'a Source, mut look: impl FnMut(Option<&'static str>, &'a str, &'a str)) {
    let (mut owner, mut before) = (None, "");
    for (_, line) in source.lines_without_tests() {
        if line.starts_with('}') {
            owner = None;
        }
        if let Some(of) = line.strip_prefix("impl ").and_then(|rest| rest.trim_end().strip_suffix(" {")) {
            owner = OWNERS.iter().map(|(name, _)| *name).find(|name| *name == of);
        }
        look(owner, line, before);
        before = line;
    }
}

/// The method that is defined on this line of an `impl`.
fn defined_method(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("    ").filter(|rest| !rest.starts_with(' '))?;
    let (before, rest) = rest.split_once("fn ")?;
    let is_function = before.is_empty() || before.starts_with("pub");
    is_function.then(|| name(rest)).filter(|name| !name.is_empty())
}

/// The free function that is defined on this line and may be called in other files.
fn defined_function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub")?;
    let rest = rest.strip_prefix(' ').or_else(|| Some(rest.strip_prefix('(')?.split_once(") ")?.1))?;
    Some(name(rest.strip_prefix("fn ")?))
}

/// The names that a file imports.
fn imports(source: &Source) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut is_use = false;
    for (_, line) in source.lines_without_tests() {
        is_use |= line.starts_with("use ");
        if is_use {
            names.extend(line.split(|sign: char| !sign.is_alphanumeric() && sign != '_'));
        }
        is_use &= !line.trim_end().ends_with(';');
    }
    names
}

/// The names of the functions that are called on this line, and are no methods.
fn function_calls(line: &str) -> Vec<&str> {
    let mut calls = Vec::new();
    for (at, _) in line.match_indices('(') {
        let called = name_before(&line[..at]);
        let before = &line[..at - called.len()];
        if !called.is_empty() && !before.ends_with(['.', ':']) && !before.ends_with("fn ") {
            calls.push(called);
        }
    }
    calls
}

/// The types whose methods are called by this receiver.
fn called_by(receiver: &str) -> Vec<&'static str> {
    OWNERS.iter().filter(|(_, names)| names.contains(&receiver)).map(|(of, _)| *of).collect()
}

/// Receiver and name of the calls of methods on this line; a long chain has its receiver on the line before.
fn method_calls<'a>(line: &'a str, before: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut calls = Vec::new();
    for (at, _) in line.match_indices('.') {
        let called = name(&line[at + 1..]);
        let rest = &line[at + 1 + called.len()..];
        let is_call = rest.starts_with('(') || rest.starts_with("::<");
        let own = last_name(&line[..at]);
        let receiver = match own {
            "" if line[..at].trim().is_empty() => last_name(before.trim_end()),
            "" if line[..at].ends_with(STATE) => "state",
            own => own,
        };
        if is_call && !called.is_empty() {
            calls.push((receiver, called));
        }
    }
    calls
}

/// The name that a text begins with.
fn name(text: &str) -> &str {
    let end = text.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(text.len());
    &text[..end]
}

/// The name that a text ends with.
fn name_before(text: &str) -> &str {
    let begin = text.rfind(|sign: char| !sign.is_alphanumeric() && sign != '_').map_or(0, |at| at + 1);
    &text[begin..]
}

/// The name that a text ends with, if that is a variable and no field.
fn last_name(text: &str) -> &str {
    let name = name_before(text);
    if text[..text.len() - name.len()].ends_with('.') { "" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (PathBuf::from(path), Source::new(text))).collect();
        let calls = Calls::of(&files, Counts::MethodsAndFunctions);
        let shown = |circle: BTreeSet<&Path>| circle.iter().map(|path| path.display().to_string()).collect();
        calls.circles().into_iter().map(shown).collect()
    }

    const A: &str = "impl Pool {\n    fn a(&self) {\n        self.b();\n    }\n}\n";
    const B: &str =
        "impl Pool {\n    pub(crate) fn b(&self) {\n        self\n            .c::<D>();\n    }\n}\n";
    const C: &str = "impl Pool {\n    fn c<D>(&self) {\n        self.a();\n    }\n}\n";

    #[test]
    fn files_that_call_one_another_are_found() {
        assert_eq!(circles(&[("a.rs", A), ("b.rs", B), ("c.rs", C)]), [["a.rs", "b.rs", "c.rs"]]);
        assert!(circles(&[("a.rs", A), ("b.rs", B)]).is_empty());
    }

    #[test]
    fn methods_of_a_pools_state_and_imported_functions_count() {
        let state = "impl PoolState {\n    pub(crate) fn b(&self) {\n        c();\n    }\n}\n";
        let caller = "impl Pool {\n    fn a(&self) {\n        self.state.b();\n    }\n}\n";
        let function = "pub(crate) fn c() {\n    pool.a();\n}\n";
        let files = |b: &str| circles(&[("a.rs", caller), ("b.rs", b), ("c.rs", function)]);
        assert_eq!(files(&format!("use crate::c::c;\n{state}")), [["a.rs", "b.rs", "c.rs"]]);
        assert!(files(state).is_empty(), "another function of that name");
    }

    #[test]
    fn a_circle_that_is_too_large_is_a_problem() {
        let in_a_ring = |files: usize| -> Vec<(PathBuf, Source)> {
            let method = |number: usize| {
                let next = (number + 1) % files;
                format!("impl Pool {{\n    fn m{number}(&self) {{\n        self.m{next}();\n    }}\n}}\n")
            };
            (0..files)
                .map(|number| (format!("{CORE}/{number}.rs").into(), Source::new(&method(number))))
                .collect()
        };
        assert!(problems(&in_a_ring(CIRCLE_MAX)).is_empty());
        assert_eq!(problems(&in_a_ring(CIRCLE_MAX + 1)).len(), 1);
    }

    #[test]
    fn methods_of_others_are_no_calls_of_the_pool() {
        let other = "impl Link {\n    fn c(&self) {\n        self.a();\n        link.a();\n    }\n}\n";
        assert!(circles(&[("a.rs", A), ("b.rs", B), ("c.rs", other)]).is_empty());
        let field = "impl Pool {\n    fn c(&self) {\n        self.link.a();\n    }\n}\n";
        assert!(circles(&[("a.rs", A), ("b.rs", B), ("c.rs", field)]).is_empty());
    }

    #[test]
    fn a_closure_of_the_worker_calls_the_pool() {
        let worker = "impl Worker {\n    fn w(&self) {\n        self.in_pool(|pool| pool.a());\n    }\n}\n";
        let pool = "impl Pool {\n    fn a(&self) {\n        worker.w();\n    }\n}\n";
        assert_eq!(circles(&[("w.rs", worker), ("p.rs", pool)]).len(), 1);
    }
}

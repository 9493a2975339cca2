//! Mutants: small faults are put into a copy of the sources, one at a time; the conversations of core, its unit tests or the simulator
//! must find each of them. A check that finds no fault checks nothing. The unit tests are asked about those that no conversation finds, the
//! simulator about those that no test finds.
//!
//! Every mutant needs the compiler, so this is no part of the tests; that each mutant still has its place in the sources is. All runs use the same
//! copy: run only one at a time.

// A tool at a terminal: it may look at the clock and use threads.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const LIST: &str = "crates/testkit/mutants.txt";
/// The copy, and what is built of it.
const PLACE: &str = "target/mutants";
/// Seeds a mutant may need, if nothing else is said. With none, the simulator is not asked.
const SEEDS: u64 = 2000;
/// Seeds are run in pieces, each this many times as long as the one before.
const FIRST_PIECE: u64 = 100;
const GROWTH: u64 = 4;
/// Conversations that take most of the time, and which are held when the others have found nothing.
const LONG: [&str; 3] = ["chaos::", "in_pieces_of_one_byte", "in_turn_forever"];
/// A mutant may keep a test from ending.
const TIMEOUT: Duration = Duration::from_secs(900);

/// One small fault.
#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    area: String,
    what: String,
    file: PathBuf,
    from: String,
    to: String,
}

struct Options {
    seeds: u64,
    only: Option<String>,
    /// The number of mutants at the head of the list that are left out, such as those of a run that was stopped.
    skip: usize,
    /// Words of one mutant's name: its binary is built, and nothing is run.
    build: Option<String>,
}

/// Puts each mutant to the test; says what found it.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    match try_run(root, args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}

fn try_run(root: &Path, args: &[String]) -> Result<bool, String> {
    let options = options(args)?;
    let mutants = read(&fs::read_to_string(root.join(LIST)).map_err(|error| format!("{LIST}: {error}"))?)?;
    let copy = copy(root)?;
    if let Some(words) = &options.build {
        return build(root, &copy, one_of(&mutants, words)?).map(|()| true);
    }
    let (mut found, mut escaped) = (0, Vec::new());
    for mutant in mutants.iter().skip(options.skip) {
        let name = mutant.name();
        if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let begin = Instant::now();
        let outcome = with_fault(&copy, mutant, || examine(root, &copy, &mutant.area, options.seeds))?;
        println!("{name}");
        match &outcome {
            Ok(found_by) => println!("    {}", found_by.as_deref().unwrap_or("not found")),
            Err(error) => println!("    {error}"),
        }
        println!("    ({} s)", begin.elapsed().as_secs());
        match outcome {
            Ok(Some(_)) => found += 1,
            Ok(None) | Err(_) => escaped.push(name),
        }
    }
    println!("{found} found, {} not found", escaped.len());
    escaped.iter().for_each(|name| println!("not found: {name}"));
    Ok(escaped.is_empty())
}

/// Calls the function while the copy holds the mutant; returns its result.
fn with_fault<T>(copy: &Path, mutant: &Mutant, act: impl FnOnce() -> T) -> Result<T, String> {
    let path = copy.join(&mutant.file);
    let sound = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    fs::write(&path, mutant.apply(&sound)?).map_err(|error| error.to_string())?;
    let result = act();
    fs::write(&path, sound).map_err(|error| error.to_string())?;
    Ok(result)
}

/// Returns the only mutant whose name has these words.
fn one_of<'a>(mutants: &'a [Mutant], words: &str) -> Result<&'a Mutant, String> {
    let named: Vec<&Mutant> = mutants.iter().filter(|mutant| mutant.name().contains(words)).collect();
    match named[..] {
        [mutant] => Ok(mutant),
        [] => Err(format!("no mutant's name has \"{words}\"")),
        [first, second, ..] => {
            Err(format!("\"{words}\" is in several names: \"{}\", \"{}\"", first.name(), second.name()))
        }
    }
}

/// Builds the binary of a mutant, for tests that need a real server, and prints the path of the binary.
fn build(root: &Path, copy: &Path, mutant: &Mutant) -> Result<(), String> {
    let build = || cargo(root, copy, &["build", "--quiet", "-p", "pgweir"]).status();
    let status = with_fault(copy, mutant, build)?.map_err(|error| format!("starting cargo: {error}"))?;
    if !status.success() {
        return Err("the mutant cannot be built".to_owned());
    }
    println!("{}: {}", mutant.name(), root.join(PLACE).join("built/debug/pgweir").display());
    Ok(())
}

fn options(args: &[String]) -> Result<Options, String> {
    let mut options = Options { seeds: SEEDS, only: None, skip: 0, build: None };
    for arg in args {
        match arg.split_once('=') {
            Some(("--seeds", number)) => {
                options.seeds = number.parse().map_err(|_| "--seeds takes a number")?;
            }
            Some(("--skip", number)) => {
                options.skip = number.parse().map_err(|_| "--skip takes a number")?;
            }
            Some(("--only", words)) => options.only = Some(words.to_owned()),
            Some(("--build", words)) => options.build = Some(words.to_owned()),
            _ => {
                let known = "--seeds=NUMBER, --only=WORDS, --skip=NUMBER and --build=WORDS";
                return Err(format!("\"{arg}\": there are {known}"));
            }
        }
    }
    Ok(options)
}

fn read(text: &str) -> Result<Vec<Mutant>, String> {
    let blocks =
        text.split("\n\n").map(str::trim).filter(|block| !block.is_empty() && !block.starts_with('#'));
    blocks
        .map(|block| {
            let lines: Vec<&str> = block.lines().collect();
            let [name, file, from, to] = lines[..] else { return Err(format!("not four lines: {block}")) };
            let (area, what) = name.split_once(": ").ok_or_else(|| format!("no area: {name}"))?;
            let part = |line: &str, mark: &str| {
                let text = line.strip_prefix(mark).and_then(|rest| rest.strip_prefix(' '));
                text.map(str::to_owned).ok_or_else(|| format!("\"{mark} \" was due: {line}"))
            };
            Ok(Mutant {
                area: area.to_owned(),
                what: what.to_owned(),
                file: file.into(),
                from: part(from, "<")?,
                to: part(to, ">")?,
            })
        })
        .collect()
}

impl Mutant {
    fn name(&self) -> String {
        format!("{}: {}", self.area, self.what)
    }

    /// The source with the fault.
    fn apply(&self, source: &str) -> Result<String, String> {
        match source.matches(&self.from).count() {
            1 => Ok(source.replacen(&self.from, &self.to, 1)),
            times => Err(format!("{} has {times} times: {}", self.file.display(), self.from)),
        }
    }
}

/// Copies what is known to git; the copy's path.
fn copy(root: &Path) -> Result<PathBuf, String> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let output = output.map_err(|error| format!("starting git: {error}"))?;
    let copy = root.join(PLACE).join("tree");
    let listed = String::from_utf8_lossy(&output.stdout);
    remove_others(&copy.join("crates"), &|path| {
        path.strip_prefix(&copy).is_ok_and(|name| listed.split('\0').any(|known| Path::new(known) == name))
    });
    for name in listed.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root.join(name), copy.join(name));
        let Ok(content) = fs::read(&from) else { continue };
        // What did not change keeps its time: nothing is built again for it.
        if fs::read(&to).is_ok_and(|old| old == content) {
            continue;
        }
        let folder = to.parent().unwrap_or(&copy);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&to, content))
            .map_err(|error| error.to_string())?;
    }
    Ok(copy)
}

/// Removes the files of a folder that are not known: a source that was moved would be there twice.
fn remove_others(folder: &Path, is_known: &dyn Fn(&Path) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => remove_others(&path, is_known),
            false if !is_known(&path) => drop(fs::remove_file(&path)),
            false => {}
        }
    }
}

/// Returns what found the mutant that the copy holds, and how; `None` if nothing did.
fn examine(root: &Path, copy: &Path, area: &str, seeds: u64) -> Result<Option<String>, String> {
    let command = |words: &[&str]| cargo(root, copy, words);
    let tests = |which: &[&str], more: &[&str]| {
        let words = [&["test", "--quiet", "-p", "pgweir-core"], which, more].concat();
        let mut tests = command(&words);
        // Building takes longer than running: what builds fastest is best.
        tests.envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")]);
        said(tests)
    };
    let conversations = ["--test", "conversations"];
    let built = tests(&conversations, &["--no-run"])?;
    if !built.0 {
        return Err(cannot_be_built(&built.1));
    }
    let short = [&["--"], &LONG.map(|name| ["--skip", name]).concat()[..]].concat();
    let runs: [(&str, &[&str], &[&str]); 3] = [
        ("conversations", &conversations, &short),
        ("conversations", &conversations, &[]),
        ("unit tests", &["--lib"], &[]),
    ];
    for (by, which, more) in runs {
        let (fine, text) = tests(which, more)?;
        if !fine {
            return Ok(Some(format!("{by}: {}", failures(&text))));
        }
    }
    if seeds == 0 {
        return Ok(None);
    }
    let built = said(command(&["build", "--quiet", "-p", "pgweir-testkit", "--bin", "sim"]))?;
    if !built.0 {
        return Err(cannot_be_built(&built.1));
    }
    simulate(&root.join(PLACE).join("built/debug/sim"), area, seeds)
}

/// A call of cargo in the copy.
fn cargo(root: &Path, copy: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(words).current_dir(copy).env("CARGO_TARGET_DIR", root.join(PLACE).join("built"));
    command
}

fn cannot_be_built(text: &str) -> String {
    format!("the mutant cannot be built:\n{text}")
}

/// Returns how many tests failed, by what they printed, and the name of one.
fn failures(text: &str) -> String {
    let failed = text.lines().filter(|line| line.starts_with("    ") && line.contains("::"));
    let mut failed: Vec<&str> = failed.map(str::trim).collect();
    failed.sort_unstable();
    failed.dedup();
    match failed.first() {
        Some(first) => format!("{} fail, {first} among them", failed.len()),
        None => "they do not end".to_owned(),
    }
}

/// Returns what the simulator found in this many worlds of the kind that the area is about.
fn simulate(sim: &Path, area: &str, seeds: u64) -> Result<Option<String>, String> {
    let kind = match area {
        // Things happen to the nodes of a cluster in worlds of their own.
        "causal" | "clusters" | "outcome" => "--clusters",
        "cache" | "followed" | "same reads" => "--caches",
        _ => "--seeds",
    };
    let (mut start, mut piece) = (1, FIRST_PIECE);
    while start <= seeds {
        let count = piece.min(seeds + 1 - start);
        let mut command = Command::new(sim);
        command.args(["--start", &start.to_string(), kind, &count.to_string()]);
        let (fine, text) = said(command)?;
        if !fine {
            let check =
                text.lines().find_map(|line| line.strip_prefix("violated: ")).unwrap_or("it does not end");
            let times = text.lines().find(|line| line.ends_with("seeds failed")).unwrap_or_default();
            return Ok(Some(format!("simulator: {times} from {start} on: {check}")));
        }
        start += count;
        piece *= GROWTH;
    }
    Ok(None)
}

/// Runs to the end, or until the time is over: whether it succeeded, and what it said.
fn said(mut command: Command) -> Result<(bool, String), String> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let pipes = [
        child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn std::io::Read + Send>),
        child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn std::io::Read + Send>),
    ];
    let readers = pipes.map(|pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status.success(),
            None if begin.elapsed() > TIMEOUT => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok((false, String::new()));
            }
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    let text: Vec<String> = readers.map(|reader| reader.join().unwrap_or_default()).into();
    Ok((status, text.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<Mutant> {
        let text = fs::read_to_string(crate::workspace_root().join(LIST)).expect("the list is there");
        read(&text).expect("the list can be read")
    }

    #[test]
    fn every_mutant_has_its_place_in_the_sources() {
        for mutant in listed() {
            let source = fs::read_to_string(crate::workspace_root().join(&mutant.file)).expect("a file");
            let broken = mutant.apply(&source);
            assert!(broken.as_ref().is_ok_and(|broken| *broken != source), "{mutant:?}: {broken:?}");
        }
    }

    #[test]
    fn each_area_has_its_mutants() {
        for area in ["continuity", "multiplexing", "clusters"] {
            assert!(listed().iter().filter(|mutant| mutant.area == area).count() >= 10, "{area}");
        }
    }

    #[test]
    fn one_mutant_is_named_by_words_of_its_name() {
        let mutants = read("a: b c\nfile\n< x\n> y\n\na: b d\nfile\n< x\n> y").expect("a list");
        assert_eq!(one_of(&mutants, "b d").map(Mutant::name), Ok("a: b d".to_owned()));
        assert!(one_of(&mutants, "a: b").is_err() && one_of(&mutants, "e").is_err());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        assert!(read("a: b\nfile\n< x").is_err());
        assert!(read("a: b\nfile\nx\n> y").is_err());
        assert_eq!(read("# only a comment\n"), Ok(Vec::new()));
        let one = read("a: b\nfile\n< x\n> y").expect("a list").remove(0);
        assert_eq!(one.apply("1 x 2"), Ok("1 y 2".to_owned()));
        assert!(one.apply("x x").is_err() && one.apply("").is_err());
    }
}

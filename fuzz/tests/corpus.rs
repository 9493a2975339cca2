//! Runs every fuzz target on a stable compiler: first on each file of its corpus, then on a fixed number of mutations
//! of them. The mutations follow from a constant, so that a failure here is the same failure everywhere.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use pgweir_fuzz::{TARGETS, Target};

/// Mutated inputs for each target. The environment variable `FUZZ_ITERATIONS` sets another number, and `FUZZ_TARGET` runs
/// only the target that it names.
const ITERATIONS: u32 = 20_000;
/// Changes to an input, at most.
const CHANGES_MAX: usize = 6;
/// Inputs do not grow beyond this, in bytes.
const INPUT_LEN_MAX: usize = 4096;

#[test]
fn corpus_and_mutations() {
    let iterations = std::env::var("FUZZ_ITERATIONS");
    let iterations = iterations.map_or(ITERATIONS, |text| text.parse().expect("FUZZ_ITERATIONS is a number"));
    let only = std::env::var("FUZZ_TARGET").ok();
    for target in TARGETS {
        if only.as_ref().is_some_and(|only| only != target.0) {
            continue;
        }
        let corpus = corpus(target.0);
        for input in &corpus {
            run(*target, input);
        }
        let mut random = Random::for_target(target.0);
        for _ in 0..iterations {
            run(*target, &mutate(&mut random, &corpus));
        }
    }
}

#[test]
fn every_target_is_complete() {
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names.len(), TARGETS.len(), "a name twice in TARGETS");
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest can be read");
    let stem = |path: PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let files: BTreeSet<String> = entries(&root().join("fuzz_targets")).into_iter().map(stem).collect();
    assert_eq!(files, names, "fuzz_targets/ and TARGETS");
    for name in &names {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} has no [[bin]] in Cargo.toml");
        assert!(!corpus(name).is_empty(), "{name} has no corpus");
    }
    let corpora: BTreeSet<String> = entries(&root().join("corpus")).into_iter().map(stem).collect();
    assert_eq!(corpora, names, "corpus/ and TARGETS");
}

/// Runs a target and, if it fails, shows the input.
fn run((name, body): Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(input))) {
        eprintln!("{name} failed for b\"{}\"", input.escape_ascii());
        resume_unwind(panic);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    // The order in a folder is not the same everywhere; the mutations shall be.
    paths.sort();
    paths
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries(&root().join("corpus").join(name)).into_iter().map(read).collect()
}

/// A random input: one of the corpus, changed a few times.
fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = random.pick(corpus).clone();
    for _ in 0..=random.below(CHANGES_MAX) {
        change(random, &mut input, corpus);
    }
    input.truncate(INPUT_LEN_MAX);
    input
}

fn change(random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    const BYTES: [u8; 12] = [0, 1, 4, 0x7f, 0x80, 0xff, b'\'', b'"', b'$', b'\\', b'\n', b';'];
    const WORDS: [u32; 8] = [0, 4, 5, 8, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
    let at = random.below(input.len() + 1);
    let len = random.below(input.len() - at + 1).min(1 + random.below(16));
    match random.below(7) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..at + len)),
        2 => {
            let piece = input[at..at + len].to_vec();
            input.splice(at..at, piece);
        }
        3 => input.insert(at, *random.pick(&BYTES)),
        4 => {
            let other = random.pick(corpus);
            let from = random.below(other.len() + 1);
            input.splice(at..at, other[from..].iter().copied().take(64));
        }
        5 => {
            let word = random.pick(&WORDS).to_be_bytes();
            let end = (at + word.len()).min(input.len());
            input.splice(at..end, word);
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

/// Xorshift: numbers that only look random.
struct Random(u64);

impl Random {
    /// The same numbers for a target at each run, whatever other targets there are.
    fn for_target(name: &str) -> Random {
        let seed = name
            .bytes()
            .fold(0x9e37_79b9_7f4a_7c15, |seed: u64, byte| (seed ^ u64::from(byte)).rotate_left(9));
        // Zero is the one number that xorshift does not leave.
        Random(seed.max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to `end` - 1.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 32).expect("32 bits fit") % end
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

//! Lists the files that belong to the project: what git knows, plus what it would add.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories that are never the project's own, for a checkout without git (an unpacked archive).
const FOREIGN: [&str; 6] = ["target", ".git", "node_modules", ".venv", ".cache", "__pycache__"];
/// Inputs for fuzzing are bytes, not text.
const BYTES: &str = "fuzz/corpus";

/// The project's files, relative to `root`.
pub(crate) fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = match git_files(root) {
        Some(files) => files,
        None => walk(root)?,
    };
    files.retain(|path| !path.starts_with(BYTES) && root.join(path).is_file());
    files.sort();
    Ok(files)
}

fn git_files(root: &Path) -> Option<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let names = String::from_utf8(output.stdout).ok()?;
    let files: Vec<PathBuf> = names.split_terminator('\0').map(PathBuf::from).collect();
    (!files.is_empty()).then_some(files)
}

fn walk(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let path = entry.path();
            if kind.is_dir() && !FOREIGN.iter().any(|name| entry.file_name() == *name) {
                folders.push(path);
            } else if kind.is_file() {
                files.extend(path.strip_prefix(root).map(Path::to_owned));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_listing_find_this_file_and_no_build_output() {
        let root = crate::workspace_root();
        for files in [files(&root).expect("listed"), walk(&root).expect("walked")] {
            assert!(files.contains(&PathBuf::from("xtask/src/tidy/walk.rs")));
            assert!(!files.iter().any(|path| path.starts_with("target") || path.starts_with(".git/objects")));
        }
    }
}

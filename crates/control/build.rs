//! Makes the dashboard's built files (`web/dist`, committed) part of the program: a table of paths and contents for
//! `src/web/page.rs`. The files' names carry a hash of what is in them, so no code may name them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist").canonicalize()?;
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    collect(&dist, &mut files)?;
    files.sort();
    let mut table = String::from("const FILES: &[(&str, &[u8])] = &[\n");
    for file in &files {
        let name = file.strip_prefix(&dist).map_err(io::Error::other)?.display().to_string();
        println!("cargo::rerun-if-changed={}", file.display());
        let _ = writeln!(
            table,
            "    ({:?}, include_bytes!({:?})),",
            format!("/{name}"),
            file.display().to_string()
        );
    }
    table.push_str("];\n");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    fs::write(Path::new(&out).join("page_files.rs"), table)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

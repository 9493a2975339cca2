//! Configurations from texts instead of files.

use pgweir_settings::{Config, LoadError};

/// Loads the first of these files; the others are there to be included.
pub(crate) fn load_files(files: &[(&str, &str)]) -> Result<Config, Vec<LoadError>> {
    let mut read = |path: &str| match files.iter().find(|(name, _)| *name == path) {
        Some((_, text)) => Ok((*text).to_owned()),
        None => Err("No such file or directory".to_owned()),
    };
    Config::load(files[0].0, &mut read)
}

/// Loads one file, with the name t.ini.
pub(crate) fn load(text: &str) -> Result<Config, Vec<LoadError>> {
    load_files(&[("t.ini", text)])
}

/// The messages of a file's faults.
#[allow(dead_code, reason = "not every test file looks at faults")]
pub(crate) fn faults(text: &str) -> Vec<String> {
    load(text).expect_err("a file with faults").into_iter().map(|fault| fault.text).collect()
}

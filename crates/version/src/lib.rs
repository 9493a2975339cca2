//! The version that every part of pgweir reports: on the command line, in the log, in metrics and in reports.
//!
//! It must never do anything else: its reverse dependencies are compiled again for each version.

/// The version, such as `0.2.0`, or `0.2.0+5.g1a2b3c4` five commits after it.
///
/// A build of packages takes it from the Git tag and sets `PGWEIR_VERSION` (`deploy/packages/build.py`). Any other build reports
/// the version in Cargo.toml.
pub const VERSION: &str = match option_env!("PGWEIR_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

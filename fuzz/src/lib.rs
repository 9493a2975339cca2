//! The bodies of the fuzz targets.
//!
//! What this room is for: one function for everything that parses foreign bytes. Each takes any bytes, must not
//! panic, and asserts what must hold for them. `fuzz_targets/` runs them under libFuzzer, `tests/corpus.rs` runs
//! them on a stable compiler with the committed corpus and a fixed number of mutations of it.
//!
//! To add a target: a function here (in a new file), a line in [`TARGETS`], a file in `fuzz_targets/` with its
//! `[[bin]]` in `Cargo.toml`, and a few inputs in `corpus/<name>/`. A test finds out what was forgotten.

mod auth;
mod files;
mod import;
mod machine;
mod settings;
mod sql;
mod wire;

pub use auth::{auth_guard, auth_prover, auth_user_list};
pub use import::import_configs;
pub use machine::{machine_client, machine_server};
pub use settings::settings_ini;
pub use sql::sql_lexer;
pub use wire::{wire_backend, wire_frontend, wire_replication, wire_startup};

/// A fuzz target: its name and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every fuzz target.
pub const TARGETS: &[Target] = &[
    ("auth_guard", auth_guard),
    ("auth_prover", auth_prover),
    ("auth_user_list", auth_user_list),
    ("import_configs", import_configs),
    ("machine_client", machine_client),
    ("machine_server", machine_server),
    ("settings_ini", settings_ini),
    ("sql_lexer", sql_lexer),
    ("wire_backend", wire_backend),
    ("wire_frontend", wire_frontend),
    ("wire_replication", wire_replication),
    ("wire_startup", wire_startup),
];

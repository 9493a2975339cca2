//! SQL as far as a pooler must understand it: a lexer, and what can be told from tokens alone.
//!
//! Other parts build on answers about the text of a statement: whether statements of several clients may
//! share a server connection, and whether a statement may touch the session it runs in. [`lexer`] cuts the
//! text into lexemes as PostgreSQL does, [`traits`] looks at them, and [`without_literals`] shows a text
//! without its literals.
//!
//! **One-sided.** "Certain" is only said if it holds under every reading that the server could have of the
//! text: with `standard_conforming_strings` on or off, in any client encoding, in every supported major
//! version. Everything else is "don't know", and costs speed, never correctness. New marks may make fewer
//! texts certain at any time.
//!
//! The crate must never allocate (except for the names of settings, in texts that set some), panic on any
//! bytes, interpret a statement beyond its tokens, or know about pools.

pub mod lexer;

mod assignments;
mod bare;
mod blocks;
mod exchange;
mod fingerprint;
mod hints;
mod marks;
mod prepared;
mod questions;
mod reach;
mod scan;
mod setting_names;
mod traits;

pub use assignments::{Assignment, Unreadable, assignments};
pub use bare::without_literals;
pub use blocks::{Block, Isolation, TransactionModes, begin_modes, block, may_be_block};
pub use exchange::{Literal, exchangeable, literal_len};
pub use hints::{CacheHint, Hint, cache_hint, hint};
pub use lexer::{Doubt, Kind, Lexeme, Lexer, quote_identifier};
pub use marks::{Marks, keeps_parse_context};
pub use prepared::{NameUse, executed_name, prepared_names};
pub use questions::{Question, questions};
pub use reach::{
    AtStandby, ComparedValue, Equality, NameRole, at_standby, certainly_reads, doubtful_part, find_name,
    name_hash, names_only_tables, outside_name, sets_locally, single_table_equalities, varying_name,
};
pub use setting_names::SettingNames;
pub use traits::{Statements, Traits, Verb, traits};

//! Prepared statements: known by content, prepared where they are needed, under pgweir's names or the client's own.

pub(crate) mod explain;
pub(crate) mod exposed_names;
pub(crate) mod forms;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod parse_context;
pub(crate) mod parse_contexts;
pub(crate) mod schema_version;
pub(crate) mod shape;
pub(crate) mod shapes;
pub(crate) mod statements;
pub(crate) mod texts;
pub(crate) mod unnamed;

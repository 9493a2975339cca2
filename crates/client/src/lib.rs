//! The smallest PostgreSQL client that can log in and run statements, for the tools around the pooler: load and comparisons,
//! `pgweir check --connect`, `pgweir doctor`. It blocks.
//!
//! It must never be used by the data plane, which has no second client of PostgreSQL.
#![allow(
    clippy::disallowed_methods,
    reason = "it is for tools with their own process: it waits for sockets and looks at the clock"
)]

mod client;
mod login;
mod stream;
mod url;

pub use client::{Answer, Client, ServerError};
pub use login::{Address, Login, random};
pub use stream::Tls;
pub use url::{UrlError, parse as parse_url};

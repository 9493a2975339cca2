//! Findings for an administrator: [`advice`] about a configuration that can be read but cannot work, and
//! [`findings`] about a pooler, its machine and its PostgreSQL servers, from a [`Snapshot`] of their numbers.
//! [`keepalived`] is for the address of a pair of poolers.
//!
//! Everything here is a function of a value. This crate must never read a file, open a socket or know the
//! time: `pgweir check` and `pgweir doctor` collect its input.

mod advice;
mod finding;
mod findings;
mod following;
pub mod keepalived;
mod snapshot;

pub use advice::advice;
pub use finding::{Finding, Severity, printable};
pub use findings::findings;
pub use following::{Cloud, Columns, Followed, Following, Identity, Publication, Table};
pub use snapshot::{
    Changed, Database, FilesLimit, Lagging, Limits, Pinned, Pool, Probe, Settings, SharedLimit, Snapshot,
    Source, Statement, Vip,
};

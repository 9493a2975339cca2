//! Every setting declared once; PgBouncer's ini dialect; reload as a diff.
//!
//! The tables in [`table`](crate::MAIN_ROWS) say what settings there are. From them come the typed structs
//! ([`Main`], [`Database`], [`UserOptions`], [`Peer`]), the parser ([`Config::load`]), `SHOW CONFIG`
//! ([`Config::show`]), `SET` ([`Config::set`]), the reload diff ([`Config::diff`]) and the reference page
//! ([`reference_markdown`]).
//!
//! This crate must never open a file, read the environment or know what a setting does to a connection: file
//! contents come through a function that the caller passes in.

mod auto;
mod choice;
mod clusters;
mod config;
mod effective;
mod error;
mod load;
mod overlay;
mod pages;
mod password;
mod reload;
mod route;
mod rules;
mod syntax;
mod table;

pub use auto::AutoCount;
pub use choice::{
    Anonymous, AuthType, Balance, BeginUndeclared, CausalReads, CommitOutcome, CompatibleWith, DeferBegin,
    Discovery, LoadBalanceHosts, LogFormat, PoolMode, QueryCache, SequenceAffinity, ServerProtocol,
    SessionState, SharedLimits, SourceLost, SslMode, VersionText, WorkerScheduling,
};
pub use config::{Config, ConfigRow, DATABASE_NAME_MAX, Place, SetOutcome};
pub use error::{LoadError, SetError, Warning};
pub use overlay::{Changed, HandedOver, Layer, LayerEffect, Remark, Variables, is_of_kubernetes};
pub use pages::man::ini_man_page;
pub use pages::packaged::packaged_ini;
pub use pages::reference::reference_markdown;
pub use password::Password;
pub use reload::Diff;
pub use route::Route;
pub use rules::cache::{CacheFollow, CacheSubject};
pub use rules::routes::RouteSubject;
pub use syntax::hosts::{SourceUrl, is_allowed_host};
pub use syntax::ini::{INCLUDE_DEPTH_MAX, INCLUDES_MAX};
pub use syntax::number::SECONDS_MAX;
pub use syntax::slips::did_you_mean;
pub use syntax::vip::{HttpPlace, VipAddress};
pub use table::{
    CACHE_ROWS, CLUSTER_ROWS, CacheRule, Change, ClusterOptions, DATABASE_ROWS, Database, Kind, MAIN_ROWS,
    Main, NODE_ROWS, NodeOptions, Origin, PEER_ROWS, Peer, ROUTE_ROWS, RouteLine, Row, Status, USER_ROWS,
    UserOptions, row,
};

/// The name of the console's database, which no entry of `[databases]` may take.
pub const ADMIN_DATABASE: &str = "pgbouncer";

/// The name of the entry of `[databases]` that is the template for all databases without an entry.
pub const FALLBACK_DATABASE: &str = "*";

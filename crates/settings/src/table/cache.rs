//! The keys of `[cache]`: `name = key=value ...`.

use std::time::Duration;

use super::{Kind, settings};
use crate::CacheFollow;

settings! {
    /// Statements whose answers are kept, and for how long.
    struct CacheRule, CACHE_ROWS;
    extra {
        /// The rule's name.
        name: String;
    }
    group "Query cache" {
        /// The database that the client asks for. `*` stands for any text, here and in the next two. Not set: any.
        database: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The user that the client logs in as. Not set: any.
        user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The client's `application_name`, as it is when the statement comes. Not set: any.
        application_name: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The tables that a statement may read, with commas between them: a statement that names another one in FROM or JOIN, or
        /// of which that is not certain, does not match. `*` at the end stands for any rest. A name without a schema stands for the tables
        /// of that name in all schemas. A view is one table here, whatever it reads. Not set: any.
        tables: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// The event after which an answer is not given any more. `time`: `ttl_ms` is over. `wal`: PostgreSQL tells through logical
        /// replication that a table was changed which the answer depends on. Not set: `query_cache_follow`.
        follow: Option<CacheFollow> = NULL, Kind::Choice(CacheFollow::WORDS), Reload, Ours, InEffect;
        /// The age, in milliseconds, at which an answer is not given any more; it counts from the moment at which the statement was
        /// sent to the server. Not set: `query_cache_ttl_ms`; with `follow=wal`: none.
        ttl_ms: Option<Duration> = NULL, Kind::Milliseconds, Reload, Ours, InEffect;
    }
}

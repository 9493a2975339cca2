//! The keys of `[routes]`: `name = key=value ...`.

use super::{Kind, settings};
use crate::Route;

settings! {
    /// Clients that match, and where their transactions run.
    struct RouteLine, ROUTE_ROWS;
    extra {
        /// The line's name.
        name: String;
    }
    group "Routes" {
        /// The database that the client asks for. `*` stands for any text, here and in the next two. Not set: any.
        database: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The user that the client logs in as. Not set: any.
        user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The client's `application_name`, as it is at the login and after each change. Not set: any.
        application_name: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// Where the transactions of these clients run, as `route` in `[clusters]`. A line has either `route` or `node`.
        route: Option<Route> = NULL, Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
        /// The node that they run on, also if its `weight` is 0. While it is not usable, the line means `route=prefer-standby`.
        node: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The part of the clients that match for which the line counts. For the others pgweir looks at the next lines.
        percent: u32 = "100", Kind::Count(0, 100), Reload, Ours, InEffect;
    }
}

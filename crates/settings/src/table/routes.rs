//! The keys of `[routes]`: `name = key=value ...`.

use super::{Kind, settings};
use crate::Route;

settings! {
    /// The clients that a line matches, and the node that their transactions run on.
    struct RouteLine, ROUTE_ROWS;
    extra {
        /// The line's name.
        name: String;
    }
    group "Routes" {
        /// The database that the client asks for. `*` stands for any text, here and in the next two. If it is
        /// not set, any database.
        database: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The user that the client logs in as. If it is not set, any user.
        user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The client's `application_name`, as it is at the login and after each change. If it is not set,
        /// any name.
        application_name: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The node that the transactions of these clients run on, as `route` in `[clusters]`. A line has
        /// either `route` or `node`.
        route: Option<Route> = NULL, Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
        /// The node that the transactions run on, also if its `weight` is 0. While it is not usable, the line
        /// means `route=prefer-standby`.
        node: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The percentage of the matching clients for which the line counts. For the others pgweir looks at
        /// the next lines.
        percent: u32 = "100", Kind::Count(0, 100), Reload, Ours, InEffect;
    }
}

//! The events that runs must reach, by the names under which they are counted. A simulator that does not
//! reach them tests nothing.

use std::collections::BTreeMap;

/// Events of any hundred seeds.
pub const IN_A_HUNDRED: [&str; 31] = [
    "cancel requests at servers",
    "cancels asked",
    "cancels hit",
    "channels listened to",
    "clients disconnected",
    "clients finished",
    "clients vanished",
    "copies in",
    "copies out",
    "dials",
    "errors",
    "function calls",
    "hand-overs",
    "hidden statements",
    "login failures",
    "logins",
    "mails",
    "messages to clients",
    "notices",
    "notifications",
    "notifications sent",
    "portals suspended",
    "prepared statements shared",
    "reads paused",
    "multiplexed",
    "rows",
    "server failures",
    "sessions audited",
    "sessions replayed",
    "statements",
    "statements sent behind others",
];

/// Events of any fifty seeds in which servers end, lie and are cancelled just when one client is queued
/// behind another.
pub const IN_FIFTY_FAULTS: [&str; 8] = [
    "broken trust",
    "cancels held back",
    "multiplex violations",
    "pipelined servers lost after ReadyForQuery",
    "pipelined servers lost at work",
    "pipelined servers lost before ReadyForQuery",
    "pipelined servers lost in an answer",
    "multiplexed put back",
];

/// Events of any run of a thousand clients that change what their sessions hold.
pub const IN_A_THOUSAND_SESSIONS: [&str; 7] = [
    "channels listened to",
    "lock waits",
    "notifications",
    "notifications sent",
    "pins",
    "sessions audited",
    "sessions replayed",
];

/// Events of any hundred and fifty worlds in which the nodes of a cluster crash, restart or are promoted.
pub const IN_CLUSTERS: [&str; 30] = [
    "claims denied by the source",
    "clients told that there is no primary",
    "clients told that there is no standby",
    "connections cut in between",
    "nodes back",
    "nodes crashed",
    "nodes cut off",
    "nodes found down",
    "nodes promoted",
    "nodes started",
    "nodes stopped",
    "numbers given out again",
    "old primaries refused",
    "outcomes of COMMIT told unknown",
    "outcomes told committed",
    "outcomes told rolled back",
    "outcomes told unknown",
    "primaries found",
    "reads refused by standbys",
    "servers cut off",
    "servers of an older epoch closed",
    "servers of standbys cut off",
    "servers of standbys ended",
    "statements at standbys",
    "storms of terminated processes",
    "switchovers announced",
    "transactions asked for",
    "transactions lost by sessions that go on",
    "transactions told rolled back",
    "two primaries at a time",
];

/// Events of any sixty worlds with a query cache.
pub const WITH_A_CACHE: [&str; 9] = [
    "answers from the cache",
    "answers not kept for a change on its way",
    "answers that the cache kept",
    "answers that were followed",
    "answers whose tables had changed",
    "followed servers restarted",
    "followers ended",
    "statements that the cache could not answer",
    "streams begun",
];

/// Events of any two thousand seeds, in addition to the others.
pub const IN_TWO_THOUSAND: [&str; 1] = ["pins"];

/// Events of any twenty thousand seeds: each happens about twice in two thousand.
pub const IN_TWENTY_THOUSAND: [&str; 2] = ["cancels hit with clients queued behind", "deadlocks"];

/// Returns those of the wanted events that never happened.
#[must_use]
pub fn missing(counters: &BTreeMap<&'static str, u64>, wanted: &[&'static str]) -> Vec<&'static str> {
    wanted.iter().filter(|what| counters.get(*what).is_none_or(|&times| times == 0)).copied().collect()
}

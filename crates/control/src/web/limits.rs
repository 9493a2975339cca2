//! Every limit of the HTTP server, with its reason.

use std::time::Duration;

/// Connections at the same time. One more replaces the connection that was silent for the longest time.
/// Browsers open six each.
pub(super) const CONNECTIONS_MAX: usize = 128;

/// Streams of `/api/v1/live` at the same time.
pub(super) const STREAMS_MAX: u32 = 32;

/// The size of a request's body; the largest is a sign-in.
pub(super) const BODY_BYTES_MAX: usize = 16 * 1024;

/// The size of hyper's buffer, which bounds a request's head.
pub(super) const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The time that a TLS handshake, the head of a request and its body may take.
pub(super) const RECEIVE_S_MAX: Duration = Duration::from_secs(10);

/// The time for which a peer may read nothing of its answer, which stays in memory until then. A page of
/// metrics may be large.
pub(super) const SEND_S_MAX: Duration = Duration::from_secs(30);

/// The time that a worker may take to answer a snapshot request. One that takes longer has a problem.
pub(super) const LOOK_S_MAX: Duration = Duration::from_secs(5);

/// The time that a request waits for a console command before it is told that the command goes on.
pub(super) const OPERATE_S_MAX: Duration = Duration::from_secs(2);

/// The length of a step of the series.
pub(super) const STEP: Duration = Duration::from_secs(1);

/// The samples within a step. Numbers of clients and servers change within milliseconds: one sample would be
/// arbitrary, so a step has the average.
pub(super) const LOOKS_PER_STEP: u32 = 5;

/// The weight of the last step in the averages of `lately`: they cover about as many steps as its inverse.
pub(super) const LATELY_WEIGHT: f64 = 0.1;

/// The number of pools above which a step has only one sample.
pub(super) const POOLS_LOOKED_AT_OFTEN_MAX: usize = 100;

/// The window for percentiles ends now, and began between this and twice this number of seconds ago.
pub(super) const WINDOW_HALF_S: usize = 5;

/// The number of steps of one second that are kept.
pub(super) const FINE_STEPS: usize = 300;

/// The number of steps of ten seconds that are kept.
pub(super) const COARSE_STEPS: usize = 360;

/// The number of pools, and of databases, for which series are kept, at 50 kB each.
pub(super) const TRACKS_MAX: usize = 100;

/// The maximum number of signed-in sessions; with more, the oldest ends.
pub(super) const SESSIONS_MAX: usize = 256;

/// The time without use after which a session ends.
pub(super) const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);

/// The age at which every session ends.
pub(super) const SESSION_AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// The number of failed sign-ins of one address within [`FAILURES_WINDOW`] after which it has to wait: a
/// password costs milliseconds to check, and guessing must not pay.
pub(super) const FAILURES_MAX: u32 = 20;

/// The time over which failures are counted; see [`FAILURES_MAX`].
pub(super) const FAILURES_WINDOW: Duration = Duration::from_secs(60);

/// The number of addresses whose failures are known; with more, the one that failed longest ago is forgotten.
pub(super) const FAILING_ADDRESSES_MAX: usize = 1024;

/// The number of changes of clusters that are kept: some days of a healthy cluster, an hour of one whose
/// nodes come and go.
pub(super) const CLUSTER_CHANGES_MAX: usize = 300;

/// The number of databases in an overview.
pub(super) const OVERVIEW_DATABASES_MAX: usize = 50;

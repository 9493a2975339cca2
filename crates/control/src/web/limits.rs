//! Every limit of the HTTP server, with its reason.

use std::time::Duration;

/// Connections at the same time; one more takes the place of the connection that was silent for longest. Browsers open six each.
pub(super) const CONNECTIONS_MAX: usize = 128;

/// Streams of `/api/v1/live` at the same time.
pub(super) const STREAMS_MAX: u32 = 32;

/// A request's body; the largest is a sign-in.
pub(super) const BODY_BYTES_MAX: usize = 16 * 1024;

/// hyper's buffer, which bounds a request's head.
pub(super) const HEAD_BYTES_MAX: usize = 16 * 1024;

/// How long a TLS handshake, the head of a request and its body may take.
pub(super) const RECEIVE_S_MAX: Duration = Duration::from_secs(10);

/// How long a peer may take none of what it is sent: it holds a page of metrics in memory, which may be large.
pub(super) const SEND_S_MAX: Duration = Duration::from_secs(30);

/// How long a worker may take to answer a look. One that takes longer is not well.
pub(super) const LOOK_S_MAX: Duration = Duration::from_secs(5);

/// How long a request waits for a console command before it is told that the command goes on.
pub(super) const OPERATE_S_MAX: Duration = Duration::from_secs(2);

/// A step of the series.
pub(super) const STEP: Duration = Duration::from_secs(1);

/// Looks at the workers within a step. Numbers of clients and servers change within milliseconds: one look would be a lottery, their
/// average is what a step keeps.
pub(super) const LOOKS_PER_STEP: u32 = 5;

/// What the last step counts in the averages of `lately`: they are of about as many steps as its inverse.
pub(super) const LATELY_WEIGHT: f64 = 0.1;

/// With more pools than this a step has one look.
pub(super) const POOLS_LOOKED_AT_OFTEN_MAX: usize = 100;

/// The window for percentiles ends now and began between this and twice this many seconds ago.
pub(super) const WINDOW_HALF_S: usize = 5;

/// Steps of one second that are kept ...
pub(super) const FINE_STEPS: usize = 300;

/// ... and of ten.
pub(super) const COARSE_STEPS: usize = 360;

/// Pools, and databases, that series are kept for: 50 kB each.
pub(super) const TRACKS_MAX: usize = 100;

/// Signed-in sessions; the oldest goes when there are more.
pub(super) const SESSIONS_MAX: usize = 256;

/// A session that was not used for this long is over.
pub(super) const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);

/// ... and every session is over after this.
pub(super) const SESSION_AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Failed sign-ins of one address within [`FAILURES_WINDOW`] after which it has to wait: a password costs milliseconds to check, and
/// guessing must not pay.
pub(super) const FAILURES_MAX: u32 = 20;

/// See [`FAILURES_MAX`].
pub(super) const FAILURES_WINDOW: Duration = Duration::from_secs(60);

/// Addresses whose failures are known; with more, the one that failed longest ago is forgotten.
pub(super) const FAILING_ADDRESSES_MAX: usize = 1024;

/// Changes of clusters that are kept: some days of a cluster that is well, an hour of one whose nodes come and go.
pub(super) const CLUSTER_CHANGES_MAX: usize = 300;

/// Databases in an overview.
pub(super) const OVERVIEW_DATABASES_MAX: usize = 50;

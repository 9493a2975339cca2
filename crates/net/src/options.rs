//! The settings of sockets, of name resolution and of the loop.

use std::path::PathBuf;
use std::time::Duration;

use pgweir_settings::{Main, WorkerScheduling};

/// Settings of sockets, of name resolution and of the loop. Those of sockets apply to connections made after
/// a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// `tcp_keepalive`: SO_KEEPALIVE.
    pub keepalive: bool,
    /// `tcp_keepidle` in seconds; 0 leaves it to the operating system.
    pub keepidle_s: u32,
    /// `tcp_keepintvl` in seconds; 0 leaves it to the operating system.
    pub keepintvl_s: u32,
    /// `tcp_keepcnt`, a number of probes; 0 leaves it to the operating system.
    pub keepcnt: u32,
    /// `tcp_user_timeout` in milliseconds; 0 leaves it to the operating system.
    pub user_timeout_ms: u32,
    /// `tcp_socket_buffer`, bytes for SO_SNDBUF and SO_RCVBUF each; 0 leaves them to the operating system.
    pub socket_buffer_bytes: u32,
    /// `tcp_defer_accept`: the kernel reports a client when its first bytes have arrived, or after this
    /// number of seconds; 0 means off.
    pub defer_accept_s: u32,
    /// `dns_max_ttl`: the microseconds for which an address is remembered.
    pub dns_max_ttl_us: u64,
    /// `dns_nxdomain_ttl`: the microseconds for which a failed look-up is remembered.
    pub dns_nxdomain_ttl_us: u64,
    /// `dns_zone_check_period` in microseconds; 0 means never.
    pub dns_zone_check_us: u64,
    /// `worker_scheduling`: whether a busy worker with many clients may let other threads run first.
    pub scheduling: WorkerScheduling,
    /// `worker_busy_poll_us`: the time that a worker with few clients may poll before it sleeps; 0 means that
    /// it never polls.
    pub busy_poll_us: u64,
    /// `worker_io_uring`: a turn's messages are sent by one system call, if the kernel can.
    pub io_uring: bool,
    /// `resolv_conf`; `None` means that the operating system resolves names. It is read when the workers
    /// start.
    pub resolv_conf: Option<PathBuf>,
}

impl Default for SocketOptions {
    /// Returns PgBouncer's defaults, and ours for settings that it does not have.
    fn default() -> Self {
        Self {
            keepalive: true,
            keepidle_s: 0,
            keepintvl_s: 0,
            keepcnt: 0,
            user_timeout_ms: 0,
            socket_buffer_bytes: 0,
            defer_accept_s: 1,
            dns_max_ttl_us: 15_000_000,
            dns_nxdomain_ttl_us: 15_000_000,
            dns_zone_check_us: 0,
            scheduling: WorkerScheduling::Auto,
            busy_poll_us: 150,
            io_uring: true,
            resolv_conf: None,
        }
    }
}

impl From<&Main> for SocketOptions {
    fn from(main: &Main) -> Self {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            keepalive: main.tcp_keepalive,
            keepidle_s: seconds(main.tcp_keepidle),
            keepintvl_s: seconds(main.tcp_keepintvl),
            keepcnt: main.tcp_keepcnt,
            user_timeout_ms: u32::try_from(main.tcp_user_timeout.as_millis()).unwrap_or(u32::MAX),
            socket_buffer_bytes: main.tcp_socket_buffer,
            // With deferred accept, a client that has connected and sent nothing is in no queue yet. A
            // process that is replaced could not accept it before it stops listening, and the kernel would
            // reset the connection.
            defer_accept_s: u32::from(main.tcp_defer_accept && !main.so_reuseport),
            dns_max_ttl_us: micros(main.dns_max_ttl),
            dns_nxdomain_ttl_us: micros(main.dns_nxdomain_ttl),
            dns_zone_check_us: micros(main.dns_zone_check_period),
            scheduling: main.worker_scheduling,
            busy_poll_us: u64::from(main.worker_busy_poll_us),
            io_uring: main.worker_io_uring,
            resolv_conf: (!main.resolv_conf.is_empty()).then(|| main.resolv_conf.clone().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_is_not_deferred_for_processes_that_share_a_port() {
        let alone = Main::default();
        let shared = Main { so_reuseport: true, ..Main::default() };
        assert_eq!(SocketOptions::from(&alone).defer_accept_s, 1);
        assert_eq!(SocketOptions::from(&shared).defer_accept_s, 0);
    }
}

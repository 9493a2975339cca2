//! System calls of the data plane that need more than a method call, and their errors as text.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt};
use socket2::{Socket, TcpKeepalive};

use crate::options::SocketOptions;
use crate::scheduling::Policy;

/// Reads once. A call that a signal interrupts is repeated.
pub(crate) fn recv(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match (&*socket).read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Writes once. A call that a signal interrupts is repeated. A broken pipe is an error, never SIGPIPE.
pub(crate) fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match socket.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends bytes with a descriptor beside them (SCM_RIGHTS, unix(7)): all of them or none.
pub(crate) fn send_with_descriptor(socket: &Socket, bytes: &[u8], descriptor: RawFd) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(&[descriptor])];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)?;
    if sent < bytes.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
}

/// Accepts one connection, non-blocking and closed on exec.
pub(crate) fn accept(listener: &Socket) -> io::Result<(Socket, socket2::SockAddr)> {
    listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
}

/// Returns whether the process or the system has no descriptor or memory left for another socket.
pub(crate) fn out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Returns whether a non-blocking TCP connect has begun.
pub(crate) fn in_progress(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINPROGRESS)
}

/// Returns the operating system's text of an error, without the number that `std` appends.
pub(crate) fn text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Registers a socket with the poll, edge-triggered.
pub(crate) fn register(
    registry: &Registry,
    socket: &Socket,
    token: Token,
    interest: Interest,
) -> io::Result<()> {
    registry.register(&mut SourceFd(&socket.as_raw_fd()), token, interest)
}

/// Changes the events that a socket is watched for. Events that are already the case are reported again.
pub(crate) fn reregister(
    registry: &Registry,
    socket: &Socket,
    token: Token,
    interest: Interest,
) -> io::Result<()> {
    registry.reregister(&mut SourceFd(&socket.as_raw_fd()), token, interest)
}

/// Removes a socket from the poll.
pub(crate) fn deregister(registry: &Registry, socket: &Socket) -> io::Result<()> {
    registry.deregister(&mut SourceFd(&socket.as_raw_fd()))
}

/// Sets the configured options on a TCP socket. Connections inherit the options of the listener that accepts
/// them (Linux), so an accepted socket costs no call.
pub(crate) fn tune_tcp(socket: &Socket, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if options.socket_buffer_bytes > 0 {
        let bytes = usize::try_from(options.socket_buffer_bytes).unwrap_or(usize::MAX);
        socket.set_send_buffer_size(bytes)?;
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.set_keepalive(options.keepalive)?;
    if options.keepalive {
        let mut details = TcpKeepalive::new();
        if options.keepidle_s > 0 {
            details = details.with_time(Duration::from_secs(u64::from(options.keepidle_s)));
        }
        if options.keepintvl_s > 0 {
            details = details.with_interval(Duration::from_secs(u64::from(options.keepintvl_s)));
        }
        if options.keepcnt > 0 {
            details = details.with_retries(options.keepcnt);
        }
        socket.set_tcp_keepalive(&details)?;
    }
    if options.user_timeout_ms > 0 {
        socket.set_tcp_user_timeout(Some(Duration::from_millis(u64::from(options.user_timeout_ms))))?;
    }
    Ok(())
}

/// Sets TCP_DEFER_ACCEPT on a listener: a connection is reported when its first bytes have arrived, or after
/// `seconds`.
pub(crate) fn set_defer_accept(listener: &Socket, seconds: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
    set_int(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, value)
}

/// Sets an option that is an int and that neither socket2 nor nix wraps.
#[allow(unsafe_code, reason = "a system call that no crate of ours offers in safe form")]
fn set_int(socket: &Socket, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of_val(&value)).expect("the size of an int fits");
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; the kernel reads `size` bytes from a live
    // integer of exactly that size and keeps no pointer.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether this thread has the default scheduling policy. A policy that an administrator has chosen
/// (chrt(1), CPUSchedulingPolicy of systemd.exec(5)) must not be changed.
#[allow(unsafe_code, reason = "a system call that no crate of ours offers in safe form")]
pub(crate) fn is_scheduled_by_default() -> bool {
    // SAFETY: takes a number and returns a number; 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
}

/// Sets this thread's scheduling policy; sched(7). It needs no privilege.
#[allow(unsafe_code, reason = "a system call that no crate of ours offers in safe form")]
pub(crate) fn set_policy(policy: Policy) -> io::Result<()> {
    let policy = match policy {
        Policy::Other => libc::SCHED_OTHER,
        Policy::Batch => libc::SCHED_BATCH,
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads `parameters`, which lives until the call returns; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets SO_RCVLOWAT: the poll reports a TCP socket when this number of bytes has arrived, or its end. If
/// there are more already, it is reported at once (Linux: `tcp_set_rcvlowat`).
pub(crate) fn set_receive_mark(socket: &Socket, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, value)
}

/// Returns the process id (0 if unknown) and the user id at the other end of a unix socket.
pub(crate) fn peer_credentials(socket: &Socket) -> io::Result<(u32, u32)> {
    let found = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok((u32::try_from(found.pid()).unwrap_or(0), found.uid()))
}

//! Opens the sockets that clients connect to, before the process becomes a daemon and gives up its
//! privileges.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, result};

use nix::unistd::{Gid, Group, chown};
use pgweir_core::driver::Level;
use pgweir_settings::{Main, VipAddress};
use socket2::{Domain, Socket, Type};
use thiserror::Error;

use crate::connection::dial::unix_address;
use crate::listening::accept::{Kind, Listener};
use crate::options::SocketOptions;
use crate::sys;

/// The settings for listening.
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// `listen_addr`: addresses and names; `*` means all, an empty list means no TCP.
    pub addresses: Vec<String>,
    /// `listen_port`, for TCP and for the unix socket's name; with 0 the kernel chooses a port (TCP only).
    pub port: u16,
    /// `standby_listen_port`, the port for clients that want a standby; 0 means none.
    pub standby_port: u16,
    /// `listen_backlog`.
    pub backlog: u32,
    /// `so_reuseport`.
    pub reuse_port: bool,
    /// `unix_socket_dir`: a directory, `@prefix` for an abstract socket, or "" for no unix socket.
    pub unix_dir: String,
    /// `unix_socket_mode`.
    pub unix_mode: u32,
    /// `unix_socket_group`: a name or a number; "" means the group of the process.
    pub unix_group: String,
    /// The virtual address, which is listened on also while another machine has it; `None` if there is none.
    pub vip: Option<IpAddr>,
    /// Options of the listening sockets. Accepted connections inherit them.
    pub options: SocketOptions,
}

impl ListenSettings {
    fn ports(&self) -> impl Iterator<Item = u16> {
        [self.port].into_iter().chain((self.standby_port > 0).then_some(self.standby_port))
    }

    fn unix_path(&self, port: u16) -> String {
        format!("{}/.s.PGSQL.{port}", self.unix_dir)
    }
}

impl From<&Main> for ListenSettings {
    fn from(main: &Main) -> Self {
        Self {
            addresses: main.listen_addr.clone(),
            port: main.listen_port,
            standby_port: main.standby_listen_port,
            backlog: main.listen_backlog,
            reuse_port: main.so_reuseport,
            unix_dir: main.unix_socket_dir.clone(),
            unix_mode: main.unix_socket_mode,
            unix_group: main.unix_socket_group.clone(),
            vip: VipAddress::parse(&main.vip).ok().map(|vip| vip.ip),
            options: SocketOptions::from(main),
        }
    }
}

/// The reason why listening is impossible.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Every address of `listen_addr` failed; the reasons were logged.
    #[error("could not listen on any address of listen_addr \"{0}\"")]
    NoAddress(String),
    /// Another process answers on our unix socket.
    #[error("unix socket is in use, cannot continue")]
    UnixInUse,
    /// A PostgreSQL server's lock file lies beside our unix socket.
    #[error("unix port {0} is in use")]
    UnixPortInUse(u16),
    /// `unix_socket_group` names no group.
    #[error("unix_socket_group: no group \"{0}\"")]
    NoGroup(String),
    /// The operating system refused the unix socket.
    #[error("could not listen on unix:{path}: {error}")]
    Unix {
        /// The socket's path.
        path: String,
        /// The operating system's reason.
        error: String,
    },
    /// A socket of socket activation cannot be used.
    #[error("could not listen on a socket that was passed by socket activation: {0}")]
    Passed(String),
    /// Neither TCP nor a unix socket is configured.
    #[error("nowhere to listen on: set listen_addr or unix_socket_dir")]
    Nothing,
}

/// Open listening sockets, to be given to [`Workers::start`](crate::Workers::start).
pub struct Listeners {
    pub(crate) sockets: Vec<Listener>,
    pub(crate) socket_files: Vec<SocketFile>,
}

impl Listeners {
    /// Returns the TCP addresses, with the ports that the kernel chose for port 0.
    #[must_use]
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let address = |listener: &Listener| match listener.kind {
            Kind::Tcp(address) => Some(address),
            Kind::Unix { .. } => None,
        };
        self.sockets.iter().filter_map(address).collect()
    }
}

/// The file of a unix socket with its inode, so that the file is removed only while it is ours.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: inode(path)? })
    }

    pub(crate) fn remove(self) {
        if inode(&self.path).is_ok_and(|found| found == self.inode) {
            // If this fails, the next start finds a stale socket and removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Opens all sockets. A wanted socket that is in `inherited` is taken from there. If a TCP address, or a
/// directory for the unix socket, fails while another one works, the failure is only logged as a warning.
///
/// # Errors
///
/// [`ListenError`]: no address works, the unix socket is in use, or the operating system refuses.
pub fn open_listeners(
    settings: &ListenSettings,
    inherited: &mut Vec<Socket>,
    log: &dyn Fn(Level, &str),
) -> result::Result<Listeners, ListenError> {
    let unix_ports: Vec<u16> = settings.ports().filter(|_| !settings.unix_dir.is_empty()).collect();
    let mut wanted = Vec::new();
    for port in unix_ports {
        let handed = inherited_unix(inherited, &settings.unix_path(port));
        if handed.is_none() {
            // This comes before TCP is opened, which may be shared (`so_reuseport`): clients that connect to
            // it in the meantime would be lost when this process ends.
            look_for_others(&settings.unix_path(port), port)?;
        }
        wanted.push((port, handed));
    }
    let mut sockets = open_tcp(settings, inherited, log)?;
    let mut socket_files = Vec::new();
    for (port, handed) in wanted {
        let path = settings.unix_path(port);
        let opened = match handed {
            Some(socket) => take_unix(settings, port, socket),
            None => open_unix(settings, port),
        };
        match opened {
            Ok((listener, file)) => {
                log(Level::Log, &format!("listening on unix:{path}"));
                sockets.push(listener);
                socket_files.extend(file);
            }
            // PgBouncer only warns, too. If another process has the socket, that stays an error: this process
            // would take its place.
            Err(error @ ListenError::Unix { .. }) if !sockets.is_empty() => {
                log(Level::Warning, &error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    if sockets.is_empty() {
        return Err(ListenError::Nothing);
    }
    Ok(Listeners { sockets, socket_files })
}

fn open_tcp(
    settings: &ListenSettings,
    inherited: &mut Vec<Socket>,
    log: &dyn Fn(Level, &str),
) -> result::Result<Vec<Listener>, ListenError> {
    let mut sockets = Vec::new();
    for name in &settings.addresses {
        let found: io::Result<Vec<_>> = settings.ports().map(|port| addresses_of(name, port)).collect();
        let addresses = match found {
            Ok(addresses) => addresses.concat(),
            Err(e) => {
                log(Level::Warning, &format!("could not resolve listen_addr \"{name}\": {e}"));
                continue;
            }
        };
        for address in addresses {
            let listens = match inherited_tcp(inherited, address) {
                Some(socket) => take_tcp(socket, address, settings),
                None => listen_on(address, settings),
            };
            match listens {
                Ok(listener) => {
                    if let Kind::Tcp(address) = listener.kind {
                        log(Level::Log, &format!("listening on {address}"));
                    }
                    sockets.push(listener);
                }
                Err(e) => {
                    log(Level::Warning, &format!("could not listen on {address}: {}", sys::text(&e)));
                }
            }
        }
    }
    if sockets.is_empty() && !settings.addresses.is_empty() {
        return Err(ListenError::NoAddress(settings.addresses.join(", ")));
    }
    Ok(sockets)
}

fn addresses_of(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if name == "*" {
        return Ok(vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]);
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in (name, port).to_socket_addrs()? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

fn listen_on(address: SocketAddr, settings: &ListenSettings) -> io::Result<Listener> {
    let backlog = i32::try_from(settings.backlog).unwrap_or(i32::MAX);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        // Otherwise `::` would take IPv4, too, and the listener on `0.0.0.0` would fail.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    if settings.reuse_port {
        socket.set_reuse_port(true)?;
    }
    if settings.vip == Some(address.ip()) {
        match address {
            SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
            SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
    }
    sys::tune_tcp(&socket, &settings.options)?;
    socket.bind(&address.into())?;
    if settings.options.defer_accept_s > 0 {
        sys::set_defer_accept(&socket, settings.options.defer_accept_s)?;
    }
    socket.listen(backlog)?;
    let bound = socket.local_addr()?.as_socket().ok_or(ErrorKind::InvalidData)?;
    Ok(Listener { socket, kind: Kind::Tcp(bound) })
}

/// Removes the listener on this address from the list and returns it, if it is there.
fn inherited_tcp(inherited: &mut Vec<Socket>, address: SocketAddr) -> Option<Socket> {
    let listens_there = |socket: &Socket| {
        socket.local_addr().is_ok_and(|bound| bound.as_socket().is_some_and(|bound| bound == address))
    };
    inherited.iter().position(listens_there).map(|place| inherited.swap_remove(place))
}

/// Removes the listener on this unix socket from the list and returns it, if it is there.
fn inherited_unix(inherited: &mut Vec<Socket>, path: &str) -> Option<Socket> {
    let wanted = unix_address(path).ok()?;
    let listens_there = |socket: &Socket| {
        socket.local_addr().is_ok_and(|bound| match path.strip_prefix('@') {
            Some(name) => bound.as_abstract_namespace() == Some(name.as_bytes()),
            None => bound.as_pathname() == wanted.as_pathname() && wanted.as_pathname().is_some(),
        })
    };
    inherited.iter().position(listens_there).map(|place| inherited.swap_remove(place))
}

/// Takes over another process's listener, with the clients in its queue, which do not notice.
fn take_tcp(socket: Socket, address: SocketAddr, settings: &ListenSettings) -> io::Result<Listener> {
    socket.set_nonblocking(true)?;
    sys::tune_tcp(&socket, &settings.options)?;
    sys::set_defer_accept(&socket, settings.options.defer_accept_s)?;
    socket.listen(i32::try_from(settings.backlog).unwrap_or(i32::MAX))?;
    Ok(Listener { socket, kind: Kind::Tcp(address) })
}

fn take_unix(
    settings: &ListenSettings,
    port: u16,
    socket: Socket,
) -> result::Result<UnixListener, ListenError> {
    let path = settings.unix_path(port);
    let failed = |error: io::Error| ListenError::Unix { path: path.clone(), error: sys::text(&error) };
    socket.set_nonblocking(true).map_err(failed)?;
    let file = match path.strip_prefix('@') {
        Some(_) => None,
        None => Some(SocketFile::new(Path::new(&path)).map_err(failed)?),
    };
    Ok((Listener { socket, kind: Kind::Unix { port } }, file))
}

type UnixListener = (Listener, Option<SocketFile>);

fn open_unix(settings: &ListenSettings, port: u16) -> result::Result<UnixListener, ListenError> {
    let path = &*settings.unix_path(port);
    let failed = |error: String| ListenError::Unix { path: path.to_owned(), error };
    let os_failed = |error: io::Error| failed(sys::text(&error));
    let backlog = i32::try_from(settings.backlog).unwrap_or(i32::MAX);
    let address = unix_address(path).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => failed("the path is too long for a unix socket".to_owned()),
        _ => os_failed(e),
    })?;
    let is_file = !path.starts_with('@');
    if is_file {
        remove_stale(Path::new(path), port)?;
    }
    let group = match settings.unix_group.as_str() {
        "" => None,
        name => Some(group_of(name).ok_or_else(|| ListenError::NoGroup(name.to_owned()))?),
    };
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None).map_err(os_failed)?;
    socket.bind(&address).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => ListenError::UnixInUse,
        _ => os_failed(e),
    })?;
    let mut file = None;
    if is_file {
        let path = Path::new(path);
        file = Some(SocketFile::new(path).map_err(os_failed)?);
        // No client can connect before `listen`, so the mode is in force from the first client on.
        fs::set_permissions(path, fs::Permissions::from_mode(settings.unix_mode)).map_err(os_failed)?;
        chown(path, None, group).map_err(|e| os_failed(e.into()))?;
    }
    socket.listen(backlog).map_err(os_failed)?;
    Ok((Listener { socket, kind: Kind::Unix { port } }, file))
}

/// Fails if another process answers on our unix socket. Other problems are reported when the socket is
/// opened.
fn look_for_others(path: &str, port: u16) -> result::Result<(), ListenError> {
    match remove_stale(Path::new(path), port) {
        Err(ListenError::Unix { .. }) => Ok(()),
        looked => looked,
    }
}

/// Removes a socket file without a listener, which is left over from a process that died. Fails if anything
/// else is at that path.
fn remove_stale(path: &Path, port: u16) -> result::Result<(), ListenError> {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    if Path::new(&lock).exists() {
        return Err(ListenError::UnixPortInUse(port));
    }
    let failed = |e: &io::Error| ListenError::Unix { path: path.display().to_string(), error: sys::text(e) };
    match UnixStream::connect(path) {
        Ok(_) => Err(ListenError::UnixInUse),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(|e| failed(&e)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        // The listener's queue is full, so there is a listener.
        Err(e) if e.kind() == ErrorKind::WouldBlock => Err(ListenError::UnixInUse),
        Err(e) => Err(failed(&e)),
    }
}

fn group_of(name: &str) -> Option<Gid> {
    if let Ok(number) = name.parse::<u32>() {
        return Some(Gid::from_raw(number));
    }
    Group::from_name(name).ok().flatten().map(|group| group.gid)
}

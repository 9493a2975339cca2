//! Sockets that the parent process has opened already (systemd's socket activation, sd_listen_fds(3)). They
//! replace the settings for listening.

use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};

use pgweir_core::driver::Level;
use socket2::Socket;

use crate::listening::accept::{Kind, Listener};
use crate::listening::listen::{ListenError, ListenSettings, Listeners};
use crate::sys;

/// The name (`FileDescriptorName=`) of sockets for HTTP; all others are for clients.
const HTTP: &str = "http";

/// The sockets that were passed to this process.
#[derive(Default)]
pub struct Passed {
    /// Sockets for clients.
    clients: Vec<Socket>,
    /// Sockets for metrics and dashboard.
    pub http: Vec<TcpListener>,
}

impl Passed {
    /// Takes the sockets that were passed. It must be called once, before anything else is opened.
    ///
    /// # Errors
    ///
    /// The environment names sockets that cannot be used.
    pub fn take() -> io::Result<Passed> {
        let mut passed = Passed::default();
        for (number, name) in sd_notify::listen_fds_with_names()? {
            #[allow(unsafe_code, reason = "descriptors are passed as numbers")]
            // SAFETY: the environment, which names this very process, says that the descriptor is open and ours; this is called once.
            let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(number) });
            socket.set_cloexec(true)?;
            socket.set_nonblocking(true)?;
            if !socket.is_listener()? {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("descriptor {number} ({name}) is no listening stream socket"),
                ));
            }
            if name == HTTP {
                passed.http.push(socket.into());
            } else {
                passed.clients.push(socket);
            }
        }
        Ok(passed)
    }

    /// Returns whether clients are to be accepted on sockets that were passed.
    #[must_use]
    pub fn is_for_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Turns the sockets for clients into listeners.
    ///
    /// # Errors
    ///
    /// [`ListenError::Passed`]: a socket belongs to a family that PostgreSQL's clients do not use.
    pub fn into_listeners(
        self,
        settings: &ListenSettings,
        log: &dyn Fn(Level, &str),
    ) -> Result<Listeners, ListenError> {
        if !settings.addresses.is_empty() {
            log(Level::Warning, "listen_addr has no effect: sockets were passed by socket activation");
        }
        let mut sockets = Vec::new();
        for socket in self.clients {
            let address = socket.local_addr().map_err(|e| ListenError::Passed(sys::text(&e)))?;
            let kind = match (address.as_socket(), address.is_unix()) {
                (Some(address), _) => {
                    sys::tune_tcp(&socket, &settings.options)
                        .map_err(|e| ListenError::Passed(sys::text(&e)))?;
                    log(Level::Log, &format!("listening on {address} (passed by socket activation)"));
                    Kind::Tcp(address)
                }
                (None, true) => {
                    let path = address.as_pathname().map(|path| path.display().to_string());
                    let path = path.unwrap_or_else(|| "@".to_owned());
                    let has_port = settings.standby_port > 0;
                    let is_for_standbys =
                        has_port && path.ends_with(&format!("/.s.PGSQL.{}", settings.standby_port));
                    let port = if is_for_standbys { settings.standby_port } else { settings.port };
                    log(Level::Log, &format!("listening on unix:{path} (passed by socket activation)"));
                    Kind::Unix { port }
                }
                (None, false) => {
                    return Err(ListenError::Passed("neither TCP nor a unix socket".to_owned()));
                }
            };
            sockets.push(Listener { socket, kind });
        }
        Ok(Listeners { sockets, socket_files: Vec::new() })
    }
}

//! A connection to a server: TCP, TLS over TCP, or a unix socket. How it is made, and how long it may take.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pgweir_wire::frontend::encode_ssl_request;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// How TLS is spoken with a server.
#[derive(Clone)]
pub struct Tls {
    /// Versions, ciphers, our certificate, and how the server's is verified.
    pub config: Arc<ClientConfig>,
    /// The server's name, for its certificate.
    pub name: ServerName<'static>,
    /// A server that does not speak TLS is refused.
    pub is_required: bool,
    /// The hash of the server's certificate that a SCRAM login is bound to.
    pub end_point: fn(&[u8]) -> Option<Box<[u8]>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to the first address of the host that answers. No wait lasts longer than `limit`.
    pub(crate) fn tcp(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(limit))?;
                    stream.set_write_timeout(Some(limit))?;
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Lets a read last as long as it takes.
    pub(crate) fn wait_without_limit(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(None),
            Stream::Tls(stream) => stream.sock.set_read_timeout(None),
            Stream::Unix(stream) => stream.set_read_timeout(None),
        }
    }

    pub(crate) fn unix(directory: &Path, port: u16, limit: Duration) -> io::Result<Stream> {
        let stream = connect_unix(directory, port)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Stream::Unix(stream))
    }

    /// Asks the server for TLS, and shakes hands if it speaks it.
    pub(crate) fn secure(mut stream: TcpStream, tls: &Tls) -> io::Result<Stream> {
        let mut request = Vec::new();
        encode_ssl_request(&mut request);
        stream.write_all(&request)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        match answer {
            [b'S'] => {}
            [b'N'] if !tls.is_required => return Ok(Stream::Tcp(stream)),
            [b'N'] => return Err(io::Error::other("the server does not support SSL, but SSL is required")),
            _ => return Err(io::Error::other("unexpected answer to SSLRequest")),
        }
        let mut session = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone())
            .map_err(|error| io::Error::other(format!("TLS: {error}")))?;
        while session.is_handshaking() {
            session.complete_io(&mut stream).map_err(|error| {
                // The reason is told as the reason of an I/O error.
                let why = error.get_ref().map_or_else(|| error.to_string(), ToString::to_string);
                io::Error::other(format!("TLS: {why}"))
            })?;
        }
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    /// The hash of the certificate that the server has shown.
    pub(crate) fn end_point(&self, tls: Option<&Tls>) -> Option<Box<[u8]>> {
        let Stream::Tls(stream) = self else { return None };
        let certificate = stream.conn.peer_certificates()?.first()?;
        (tls?.end_point)(certificate)
    }
}

/// A directory that begins with `@` is the abstract name space.
fn connect_unix(directory: &Path, port: u16) -> io::Result<UnixStream> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;

    let path = directory.join(format!(".s.PGSQL.{port}"));
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?),
        None => UnixStream::connect(path),
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Tls(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
            Stream::Unix(stream) => stream.flush(),
        }
    }
}

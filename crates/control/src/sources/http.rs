//! The HTTP client for the sources of clusters, with TLS. Each answer is bounded in time and size. A redirect
//! is not followed: it counts as an answer.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use pgweir_settings::{Main, SourceUrl};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_blocking, spawn_local};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{Login, LookUp};
use crate::trust::VerifyBy;

/// The maximum size of an answer, and of one message of a stream.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A client for all sources.
#[derive(Clone)]
pub(crate) struct Client {
    tls: Result<Option<Arc<ClientConfig>>, String>,
    look_up: LookUp,
    resolv_conf: String,
}

/// A request.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
}

impl<'a> Call<'a> {
    pub(crate) fn get(path: &'a str) -> Call<'a> {
        Call { method: Method::GET, path, authorization: None, body: String::new() }
    }

    pub(crate) fn post(path: &'a str, body: String) -> Call<'a> {
        Call { method: Method::POST, path, authorization: None, body }
    }

    pub(crate) fn with(self, authorization: Option<String>) -> Call<'a> {
        Call { authorization, ..self }
    }
}

/// Returns the header of basic authentication (RFC 7617).
pub(crate) fn basic(login: &Login) -> String {
    format!("Basic {}", STANDARD.encode(format!("{}:{}", login.user, login.password.reveal())))
}

/// A whole answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

/// An answer that comes in pieces.
pub(crate) struct Stream {
    body: Incoming,
    buffer: Vec<u8>,
    _connection: Connection,
}

/// The task that moves a connection's bytes. It ends when this is dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

trait Socket: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Socket for T {}

impl Client {
    pub(crate) fn new(main: &Main, look_up: LookUp, verify: VerifyBy) -> Client {
        Client { tls: tls(main, verify), look_up, resolv_conf: main.resolv_conf.clone() }
    }

    /// Returns the reason why no request can use TLS.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.tls.as_ref().err().map(String::as_str)
    }

    /// Sends a request and waits for the whole answer, for `limit` at most.
    pub(crate) async fn call(
        &self,
        url: &SourceUrl,
        call: Call<'_>,
        limit: Duration,
    ) -> Result<Reply, String> {
        let exchange = async {
            let (answer, _connection) = self.send(url, call).await?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| format!("{url}: {error}"))?.to_bytes();
            Ok(Reply { status, body })
        };
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(late(url, limit)))
    }

    /// Sends a request and waits for the beginning of an answer that comes in pieces, for `limit` at most.
    pub(crate) async fn open(
        &self,
        url: &SourceUrl,
        call: Call<'_>,
        limit: Duration,
    ) -> Result<Stream, String> {
        let sent = timeout(limit, self.send(url, call)).await;
        let (answer, connection) = sent.unwrap_or_else(|_| Err(late(url, limit)))?;
        if !answer.status().is_success() {
            return Err(format!("{url}: status {}", answer.status().as_u16()));
        }
        Ok(Stream { body: answer.into_body(), buffer: Vec::new(), _connection: connection })
    }

    async fn send(
        &self,
        url: &SourceUrl,
        call: Call<'_>,
    ) -> Result<(Response<Incoming>, Connection), String> {
        let failed = |error: &dyn std::fmt::Display| format!("{url}: {error}");
        let socket = self.connect(url).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(|error| failed(&error))?;
        let connection = Connection(spawn_local(async {
            // The answer reports the same error.
            let _ = connection.await;
        }));
        let mut host = String::new();
        let _ = match url.host.contains(':') {
            true => write!(host, "[{}]:{}", url.host, url.port),
            false => write!(host, "{}:{}", url.host, url.port),
        };
        let mut request = Request::builder().method(call.method).uri(call.path).header(HOST, host);
        if let Some(authorization) = call.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(call.body))).map_err(|error| failed(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
        Ok((answer, connection))
    }

    async fn connect(&self, url: &SourceUrl) -> Result<Box<dyn Socket>, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{url}: {error}");
        let found = addresses(self.look_up, self.resolv_conf.clone(), url.host.clone()).await;
        let targets = found.map_err(|error| failed(&error))?;
        let targets: Vec<SocketAddr> =
            targets.into_iter().map(|address| SocketAddr::new(address, url.port)).collect();
        let stream = TcpStream::connect(targets.as_slice()).await.map_err(|error| failed(&error))?;
        // If this fails, the answer may only come later.
        let _ = stream.set_nodelay(true);
        if !url.tls {
            return Ok(Box::new(stream));
        }
        let config = match &self.tls {
            Ok(Some(config)) => Arc::clone(config),
            Ok(None) => return Err(failed(&"source_tls_ca_file is not set")),
            Err(fault) => return Err(failed(fault)),
        };
        let name = ServerName::try_from(url.host.clone()).map_err(|error| failed(&error))?;
        let stream =
            TlsConnector::from(config).connect(name, stream).await.map_err(|error| failed(&error))?;
        Ok(Box::new(stream))
    }
}

fn late(url: &SourceUrl, limit: Duration) -> String {
    format!("{url}: no answer within {} ms", limit.as_millis())
}

/// Finds the addresses of a host without blocking the thread.
pub(crate) async fn addresses(
    look_up: LookUp,
    resolv_conf: String,
    host: String,
) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let found = spawn_blocking(move || look_up(&resolv_conf, &host)).await;
    found.unwrap_or_else(|_| Err("the name could not be looked up".to_owned()))
}

impl Stream {
    /// Returns the next line; `None` at the end.
    pub(crate) async fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        // A source may send byte by byte: no byte is searched twice.
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                return Err(format!("a message is longer than {ANSWER_BYTES_MAX} bytes"));
            }
            searched = self.buffer.len();
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// Returns the TLS configuration; `None` if no authority is set, so that TLS cannot be used.
fn tls(main: &Main, verify: VerifyBy) -> Result<Option<Arc<ClientConfig>>, String> {
    if main.source_tls_ca_file.is_empty() {
        return Ok(None);
    }
    let failed = |setting: &str, path: &str, error: &dyn std::fmt::Display| {
        format!("invalid source_tls_{setting}: {path}: {error}")
    };
    let path = &main.source_tls_ca_file;
    let authorities = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| failed("ca_file", path, &error))?;
    let verifier = verify(authorities).map_err(|error| failed("ca_file", path, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    if main.source_tls_cert_file.is_empty() {
        return Ok(Some(Arc::new(builder.with_no_client_auth())));
    }
    let path = &main.source_tls_cert_file;
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| failed("cert_file", path, &error))?;
    let path = &main.source_tls_key_file;
    let key = PrivateKeyDer::from_pem_file(path).map_err(|error| failed("key_file", path, &error))?;
    let config =
        builder.with_client_auth_cert(chain, key).map_err(|error| failed("key_file", path, &error))?;
    Ok(Some(Arc::new(config)))
}

//! Builds TLS configurations from certificates and settings, completely or not at all, so that a reload can
//! keep the old ones.

use std::fmt;
use std::sync::Arc;

use pgweir_settings::{AuthType, Main, SslMode};
use rustls::client::{Resumption, UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

use crate::tls::verify::{AcceptAnything, Pinned, VerifyClient, VerifyServer};
use crate::tls::{ALPN_POSTGRESQL, names, suites, version1};

/// The TLS configurations for both sides; `None` if TLS is switched off there.
#[derive(Clone, Default)]
pub struct TlsConfigs {
    pub(crate) clients: Option<Arc<TowardsClients>>,
    pub(crate) servers: Option<Arc<TowardsServers>>,
}

/// The configuration of TLS with clients.
pub(crate) struct TowardsClients {
    pub(crate) config: Arc<ServerConfig>,
    /// The hash of our certificate, for channel binding.
    pub(crate) end_point: Option<Arc<[u8]>>,
}

/// The configuration of TLS with servers.
pub(crate) struct TowardsServers {
    config: Arc<ClientConfig>,
    mode: SslMode,
}

/// The contents of the files that the settings name; `None` if the setting is empty.
#[derive(Clone, Copy, Default)]
pub struct Pems<'a> {
    /// `*_tls_cert_file`: our certificate, followed by its intermediates.
    pub cert: Option<&'a [u8]>,
    /// `*_tls_key_file`: the key of that certificate.
    pub key: Option<&'a [u8]>,
    /// `*_tls_ca_file`: the authorities that we trust.
    pub ca: Option<&'a [u8]>,
}

/// The configuration that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// `client_tls_*`.
    Client,
    /// `server_tls_*`.
    Server,
}

/// The reason why a TLS configuration is impossible. The text names the setting and never contains file
/// contents.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{side}_{}{setting}: {problem}", if setting.starts_with("tls13_") { "" } else { "tls_" })]
pub struct TlsSetupError {
    /// The side whose settings are wrong.
    pub side: Side,
    /// The setting's name without the side and `tls_`; `tls13_ciphers` as a whole.
    pub setting: &'static str,
    /// The problem, and what to do about it.
    pub problem: String,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Client => "client",
            Side::Server => "server",
        })
    }
}

impl TlsConfigs {
    /// Builds both sides from the settings and the files' contents.
    ///
    /// # Errors
    ///
    /// The first fault.
    pub fn build(main: &Main, client: Pems<'_>, server: Pems<'_>) -> Result<Self, TlsSetupError> {
        let clients = Maker { side: Side::Client, pems: client }.towards_clients(main)?;
        let servers = Maker { side: Side::Server, pems: server }.towards_servers(main)?;
        Ok(Self { clients, servers })
    }

    /// Returns all faults of the two sides, for a report.
    #[must_use]
    pub fn faults(main: &Main, client: Pems<'_>, server: Pems<'_>) -> Vec<TlsSetupError> {
        let clients = Maker { side: Side::Client, pems: client };
        let servers = Maker { side: Side::Server, pems: server };
        let mut faults = Vec::new();
        if main.client_tls_sslmode != SslMode::Disable {
            let tls13 = main.client_tls13_ciphers.as_deref().unwrap_or_default();
            let lists = (&*main.client_tls_ciphers, tls13, &*main.client_tls_ecdhcurve);
            faults.extend(clients.faults_of_parts(lists, &main.client_tls_protocols));
        }
        add_if_new(&mut faults, clients.towards_clients(main).err());
        if main.server_tls_sslmode != SslMode::Disable {
            let tls13 = main.server_tls13_ciphers.as_deref().unwrap_or_default();
            faults.extend(
                servers
                    .faults_of_parts((&main.server_tls_ciphers, tls13, "auto"), &main.server_tls_protocols),
            );
        }
        add_if_new(&mut faults, servers.towards_servers(main).err());
        faults
    }

    /// Returns the configuration with which a blocking client uses TLS with this host; `None` if TLS is
    /// switched off.
    ///
    /// # Errors
    ///
    /// The host has no name that a certificate could have, and names are verified.
    pub fn for_server(&self, host: &str) -> Result<Option<ServerTls>, String> {
        let Some(servers) = &self.servers else { return Ok(None) };
        let is_required = servers.mode > SslMode::Prefer;
        Ok(Some(ServerTls { config: Arc::clone(&servers.config), name: servers.name(host)?, is_required }))
    }

    /// Returns whether clients can be offered TLS.
    #[must_use]
    pub fn accepts_clients(&self) -> bool {
        self.clients.is_some()
    }
}

/// TLS with a server for a blocking client, configured like the workers' TLS.
pub struct ServerTls {
    /// Versions, ciphers, our certificate, and the verification of the server's.
    pub config: Arc<ClientConfig>,
    /// The server's name, for its certificate.
    pub name: ServerName<'static>,
    /// `true` if a server without TLS is refused.
    pub is_required: bool,
}

impl TowardsServers {
    /// Begins a session with `host`. The text of an error is for the log.
    pub(crate) fn connect(&self, host: &str) -> Result<UnbufferedClientConnection, String> {
        let name = self.name(host)?;
        UnbufferedClientConnection::new(Arc::clone(&self.config), name).map_err(|e| e.to_string())
    }

    fn name(&self, host: &str) -> Result<ServerName<'static>, String> {
        match ServerName::try_from(host.to_owned()) {
            Ok(name) => Ok(name),
            Err(_) if self.mode == SslMode::VerifyFull => {
                Err(format!("\"{host}\" is no host name that a certificate could have (verify-full)"))
            }
            // The name is not verified, and an address is not sent (SNI).
            Err(_) => Ok(ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())),
        }
    }

    /// Returns whether the server's certificate is checked.
    pub(crate) fn verifies(&self) -> bool {
        self.mode >= SslMode::VerifyCa
    }
}

/// Adds a fault unless it is known already.
fn add_if_new(faults: &mut Vec<TlsSetupError>, fault: Option<TlsSetupError>) {
    faults.extend(fault.filter(|fault| !faults.contains(fault)));
}

type Certificates = Vec<CertificateDer<'static>>;

struct Maker<'a> {
    side: Side,
    pems: Pems<'a>,
}

impl Maker<'_> {
    fn towards_clients(&self, main: &Main) -> Result<Option<Arc<TowardsClients>>, TlsSetupError> {
        let mode = main.client_tls_sslmode;
        // PgBouncer requires it, too: the certificate is the only proof of the user's name.
        if main.auth_type == AuthType::Cert && mode != SslMode::VerifyFull {
            let problem = "auth_type=cert requires client_tls_sslmode=verify-full".to_owned();
            return Err(self.error("sslmode", problem));
        }
        if mode == SslMode::Disable {
            return Ok(None);
        }
        let tls13 = main.client_tls13_ciphers.as_deref().unwrap_or_default();
        let provider = self.provider(&main.client_tls_ciphers, tls13, &main.client_tls_ecdhcurve)?;
        let versions = self.versions(&main.client_tls_protocols)?;
        let Some((chain, key)) = self.own_certificate()? else {
            let problem = format!("sslmode={mode} needs a certificate and its key (client_tls_key_file)");
            return Err(self.error("cert_file", problem));
        };
        let end_point = chain.first().and_then(|leaf| names::end_point(leaf)).map(Arc::from);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|e| self.error("protocols", e.to_string()))?;
        let builder = match self.authorities()? {
            None if mode >= SslMode::VerifyCa => return Err(self.no_authorities(mode)),
            None => builder.with_no_client_auth(),
            Some((roots, pinned)) => {
                let mut inner = WebPkiClientVerifier::builder_with_provider(
                    roots.into(),
                    version1::for_chains(&provider),
                );
                if mode < SslMode::VerifyCa {
                    inner = inner.allow_unauthenticated();
                }
                let inner = inner.build().map_err(|e| self.error("ca_file", e.to_string()))?;
                builder.with_client_cert_verifier(Arc::new(VerifyClient { inner, pinned }))
            }
        };
        let own = version1::own_certificate(&provider, chain, key);
        let mut config = builder.with_cert_resolver(own.map_err(|e| self.error("cert_file", e.to_string()))?);
        config.alpn_protocols = vec![ALPN_POSTGRESQL.to_vec()];
        // There is no resumption, by neither of the two means, as in PostgreSQL: so every session was
        // verified as configured.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Some(Arc::new(TowardsClients { config: Arc::new(config), end_point })))
    }

    fn towards_servers(&self, main: &Main) -> Result<Option<Arc<TowardsServers>>, TlsSetupError> {
        let mode = main.server_tls_sslmode;
        if mode == SslMode::Disable {
            return Ok(None);
        }
        let tls13 = main.server_tls13_ciphers.as_deref().unwrap_or_default();
        let provider = self.provider(&main.server_tls_ciphers, tls13, "auto")?;
        let versions = self.versions(&main.server_tls_protocols)?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|e| self.error("protocols", e.to_string()))?
            .dangerous();
        let builder = if mode >= SslMode::VerifyCa {
            let (roots, pinned) = self.authorities()?.ok_or_else(|| self.no_authorities(mode))?;
            let inner =
                WebPkiServerVerifier::builder_with_provider(roots.into(), version1::for_chains(&provider))
                    .build()
                    .map_err(|e| self.error("ca_file", e.to_string()))?;
            let check_name = mode == SslMode::VerifyFull;
            builder.with_custom_certificate_verifier(Arc::new(VerifyServer { inner, pinned, check_name }))
        } else {
            builder.with_custom_certificate_verifier(Arc::new(AcceptAnything(Arc::clone(&provider))))
        };
        let mut config = match self.own_certificate()? {
            Some((chain, key)) => {
                let own = version1::own_certificate(&provider, chain, key);
                builder.with_client_cert_resolver(own.map_err(|e| self.error("cert_file", e.to_string()))?)
            }
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(Some(Arc::new(TowardsServers { config: Arc::new(config), mode })))
    }

    /// Returns the faults of the parts, each of which is checked without the others.
    fn faults_of_parts(&self, lists: (&str, &str, &str), protocols: &str) -> Vec<TlsSetupError> {
        let (ciphers, tls13, curve) = lists;
        let parts = [
            self.provider(ciphers, tls13, curve).err(),
            self.versions(protocols).err(),
            self.own_certificate().err(),
            self.authorities().err(),
        ];
        parts.into_iter().flatten().collect()
    }

    fn provider(
        &self,
        ciphers: &str,
        tls13: &str,
        curve: &str,
    ) -> Result<Arc<CryptoProvider>, TlsSetupError> {
        suites::provider(ciphers, tls13, curve)
            .map(Arc::new)
            .map_err(|(setting, problem)| self.error(setting, problem))
    }

    fn versions(&self, list: &str) -> Result<Vec<&'static rustls::SupportedProtocolVersion>, TlsSetupError> {
        suites::versions(list).map_err(|problem| self.error("protocols", problem))
    }

    /// Returns our certificate and its key: both or neither.
    fn own_certificate(&self) -> Result<Option<(Certificates, PrivateKeyDer<'static>)>, TlsSetupError> {
        match (self.pems.cert, self.pems.key) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.error("key_file", "the certificate needs its key".to_owned())),
            (None, Some(_)) => Err(self.error("cert_file", "the key needs its certificate".to_owned())),
            (Some(cert), Some(key)) => {
                let chain = self.certificates(cert, "cert_file")?;
                Ok(Some((chain, self.key(key)?)))
            }
        }
    }

    fn key(&self, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsSetupError> {
        PrivateKeyDer::from_pem_slice(pem).map_err(|e| {
            let encrypted = pem.windows(b"ENCRYPTED".len()).any(|window| window == b"ENCRYPTED");
            let problem = if encrypted {
                "the key is protected by a passphrase; store it without one".to_owned()
            } else {
                format!("the file contains no usable private key (PEM): {e}")
            };
            self.error("key_file", problem)
        })
    }

    fn certificates(&self, pem: &[u8], setting: &'static str) -> Result<Certificates, TlsSetupError> {
        let found = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Certificates, _>>()
            .map_err(|e| self.error(setting, format!("the file is damaged: {e}")))?;
        if found.is_empty() {
            return Err(self.error(setting, "the file contains no certificate (PEM)".to_owned()));
        }
        Ok(found)
    }

    fn authorities(&self) -> Result<Option<(RootCertStore, Pinned)>, TlsSetupError> {
        let Some(pem) = self.pems.ca else { return Ok(None) };
        let certificates = self.certificates(pem, "ca_file")?;
        let mut roots = RootCertStore::empty();
        let mut last = None;
        for certificate in &certificates {
            // A bundle may hold a certificate that rustls cannot read; the others still count.
            last = roots.add(certificate.clone()).err().or(last);
        }
        if roots.is_empty() {
            let why = last.map_or_else(String::new, |e| e.to_string());
            return Err(self.error("ca_file", format!("no certificate of the file is usable: {why}")));
        }
        Ok(Some((roots, Pinned::new(certificates))))
    }

    fn no_authorities(&self, mode: SslMode) -> TlsSetupError {
        let side = self.side;
        let problem =
            format!("{side}_tls_sslmode={mode} needs the authorities' certificates to verify against");
        self.error("ca_file", problem)
    }

    fn error(&self, setting: &'static str, problem: String) -> TlsSetupError {
        TlsSetupError { side: self.side, setting, problem }
    }
}

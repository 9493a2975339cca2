//! Certificates for tests, and settings that use them.

use std::sync::Arc;

use pgweir_settings::{Main, SslMode};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::tls::{Pems, TlsConfigs, TlsSetupError};

/// A certificate and its key.
pub(crate) struct Identity {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) cert: String,
}

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let cert = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), cert }
    }

    pub(crate) fn root(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    pub(crate) fn sign(&self, common_name: &str, names: &[&str]) -> Identity {
        let key = KeyPair::generate().unwrap();
        let cert = params(common_name, names).signed_by(&key, &self.issuer).unwrap().pem();
        Identity { cert, key: key.serialize_pem() }
    }
}

/// Returns a certificate as `openssl req -x509` makes it: its own authority, and marked as one.
pub(crate) fn self_signed(common_name: &str, names: &[&str]) -> Identity {
    self_signed_until(common_name, names, 2090)
}

pub(crate) fn self_signed_until(common_name: &str, names: &[&str], year: i32) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut params = params(common_name, names);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let cert = params.self_signed(&key).unwrap().pem();
    Identity { cert, key: key.serialize_pem() }
}

impl Identity {
    pub(crate) fn pems(&self) -> Pems<'_> {
        Pems { cert: Some(self.cert.as_bytes()), key: Some(self.key.as_bytes()), ca: None }
    }

    pub(crate) fn der(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = vec![CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()];
        (chain, PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap())
    }

    /// A TLS server with this certificate, as a PostgreSQL server would be.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let (chain, key) = self.der();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
        Arc::new(config)
    }
}

/// Returns the TLS configuration towards clients, with this certificate.
pub(crate) fn towards_clients(
    mode: SslMode,
    own: &Identity,
    ca: Option<&str>,
) -> Result<TlsConfigs, TlsSetupError> {
    let main = Main { client_tls_sslmode: mode, server_tls_sslmode: SslMode::Disable, ..Main::default() };
    TlsConfigs::build(&main, Pems { ca: ca.map(str::as_bytes), ..own.pems() }, Pems::default())
}

/// Returns the TLS configuration towards servers.
pub(crate) fn towards_servers(
    mode: SslMode,
    ca: Option<&str>,
    own: Option<&Identity>,
) -> Result<TlsConfigs, TlsSetupError> {
    let main = Main { server_tls_sslmode: mode, ..Main::default() };
    let own = own.map(Identity::pems).unwrap_or_default();
    TlsConfigs::build(&main, Pems::default(), Pems { ca: ca.map(str::as_bytes), ..own })
}

/// The options of a client that trusts `ca`.
pub(crate) struct ClientSetup<'a> {
    pub(crate) ca: &'a str,
    pub(crate) alpn: Vec<Vec<u8>>,
    pub(crate) own: Option<&'a Identity>,
    pub(crate) fragment_bytes: Option<usize>,
    pub(crate) old_version: bool,
}

impl<'a> ClientSetup<'a> {
    pub(crate) fn new(ca: &'a str) -> Self {
        Self { ca, alpn: Vec::new(), own: None, fragment_bytes: None, old_version: false }
    }

    pub(crate) fn build(self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        let versions: &[_] = if self.old_version { &[&rustls::version::TLS12] } else { rustls::ALL_VERSIONS };
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_protocol_versions(versions)
                .unwrap()
                .with_root_certificates(roots);
        let mut config = match self.own {
            Some(own) => {
                let (chain, key) = own.der();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn;
        config.max_fragment_size = self.fragment_bytes;
        Arc::new(config)
    }
}

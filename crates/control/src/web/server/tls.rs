//! HTTPS: the certificate of `http_tls_cert_file`.

use std::fs;
use std::sync::Arc;

use pgweir_settings::Main;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SingleCertAndKey;
use tokio_rustls::TlsAcceptor;

/// A function that makes what is presented to peers from a certificate chain and its key, in the same way as
/// for PostgreSQL's clients.
pub type Present = fn(
    &CryptoProvider,
    Vec<CertificateDer<'static>>,
    PrivateKeyDer<'static>,
) -> Result<Arc<SingleCertAndKey>, rustls::Error>;

/// TLS for connections that begin from now on; `None` without a certificate.
#[derive(Clone)]
pub(in crate::web) struct Tls(Option<TlsAcceptor>);

impl Tls {
    /// Reads the files. The error names the setting and the problem, and never the contents of a file.
    pub(in crate::web) fn read(main: &Main, present: Present) -> Result<Tls, String> {
        Tls::build(main, present).map_err(|faults| faults.join("; "))
    }

    /// Reads the files like [`Tls::read`], but returns all faults, for a report.
    pub(in crate::web) fn build(main: &Main, present: Present) -> Result<Tls, Vec<String>> {
        let (cert, key) = (main.http_tls_cert_file.as_str(), main.http_tls_key_file.as_str());
        let half = |set: &str, other: &str| vec![format!("{set} is set, but {other} is not")];
        match (cert, key) {
            ("", "") => return Ok(Tls(None)),
            ("", _) => return Err(half("http_tls_key_file", "http_tls_cert_file")),
            (_, "") => return Err(half("http_tls_cert_file", "http_tls_key_file")),
            _ => {}
        }
        let chain = read("http_tls_cert_file", cert).and_then(|text| {
            let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
            chain.map_err(|_| format!("http_tls_cert_file {cert} is no PEM certificate"))
        });
        let key = read("http_tls_key_file", key).and_then(|text| {
            PrivateKeyDer::from_pem_slice(&text)
                .map_err(|_| format!("http_tls_key_file {key} has no PEM private key that is not encrypted"))
        });
        let (chain, key) = match (chain, key) {
            (Ok(chain), Ok(key)) => (chain, key),
            (chain, key) => return Err(chain.err().into_iter().chain(key.err()).collect()),
        };
        Tls::present(chain, key, present)
            .map_err(|error| vec![format!("http_tls_cert_file {cert} and its key cannot be used: {error}")])
    }

    fn present(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        present: Present,
    ) -> Result<Tls, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let own = present(&provider, chain, key)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(own);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Some(TlsAcceptor::from(Arc::new(config)))))
    }

    pub(in crate::web) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(in crate::web) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.0.clone()
    }
}

fn read(setting: &str, path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{setting} {path}: {error}"))
}

//! Where the planes meet: the workers as the control plane sees them.

use std::sync::atomic::Ordering;

use pgweir_control::web::{Load, Workforce};
use pgweir_control::{Fleet, TlsFiles, TlsSide};
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Mail;
use pgweir_net::{Pems, Post, Side, SocketOptions, TlsConfigs, TlsSetupError, WorkerLoad, Workers};
use pgweir_settings::Main;

/// The workers under the control plane's name for them.
pub(crate) struct WorkerFleet(pub(crate) Workers);

impl Fleet for WorkerFleet {
    type Tls = TlsConfigs;

    fn count(&self) -> u16 {
        self.0.count()
    }

    fn mail(&self, to: WorkerId, mail: Mail) {
        self.0.mail(to, mail);
    }

    fn build_tls(&self, main: &Main, files: &TlsFiles) -> Result<TlsConfigs, String> {
        build_tls(main, files)
    }

    fn use_tls(&self, tls: TlsConfigs) {
        self.0.set_tls(&tls);
    }

    fn use_socket_settings(&self, main: &Main) {
        self.0.set_options(&SocketOptions::from(main));
    }
}

/// The workers under the HTTP server's name for them.
pub(crate) struct Watched(pub(crate) Post);

impl Workforce for Watched {
    fn count(&self) -> u16 {
        self.0.count()
    }

    fn mail(&self, to: WorkerId, mail: Mail) {
        self.0.mail(to, mail);
    }

    fn loads(&self) -> Vec<Load> {
        let load = |load: &WorkerLoad| Load {
            busy_us: load.busy_us.load(Ordering::Relaxed),
            busy_poll_us: load.busy_poll_us.load(Ordering::Relaxed),
            batched_sends: load.batched_sends.load(Ordering::Relaxed),
            turns: load.turns.load(Ordering::Relaxed),
            connections: load.connections.load(Ordering::Relaxed),
        };
        self.0.loads().iter().map(|one| load(one)).collect()
    }
}

/// TLS from settings and file contents; the error names the setting.
pub(crate) fn build_tls(main: &Main, files: &TlsFiles) -> Result<TlsConfigs, String> {
    TlsConfigs::build(main, pems(&files.clients), pems(&files.servers)).map_err(|error| error.to_string())
}

/// Everything that is wrong with it, on both sides and with the HTTP server's certificate.
pub(crate) fn tls_faults(main: &Main, files: &TlsFiles) -> Vec<String> {
    let faults = TlsConfigs::faults(main, pems(&files.clients), pems(&files.servers));
    faults
        .iter()
        .filter(|fault| !is_unread(fault, main, files))
        .map(ToString::to_string)
        .chain(pgweir_control::web::tls_faults(main, pgweir_net::own_certificate))
        .collect()
}

/// A file of this side could not be read, which is a fault by itself: what lacks for that reason is none.
fn is_unread(fault: &TlsSetupError, main: &Main, files: &TlsFiles) -> bool {
    let (side, named) = match fault.side {
        Side::Client => (
            &files.clients,
            [&main.client_tls_cert_file, &main.client_tls_key_file, &main.client_tls_ca_file],
        ),
        Side::Server => (
            &files.servers,
            [&main.server_tls_cert_file, &main.server_tls_key_file, &main.server_tls_ca_file],
        ),
    };
    let unread = |named: &String, read: &Option<Vec<u8>>| !named.is_empty() && read.is_none();
    match fault.setting {
        "cert_file" | "key_file" => unread(named[0], &side.cert) || unread(named[1], &side.key),
        "ca_file" => unread(named[2], &side.ca),
        _ => false,
    }
}

fn pems(side: &TlsSide) -> Pems<'_> {
    Pems { cert: side.cert.as_deref(), key: side.key.as_deref(), ca: side.ca.as_deref() }
}

//! Where the planes meet: the machine as the event loop drives it, and the workers as the control plane sees them.

use pgweir_control::{Fleet, TlsFiles, TlsSide};
use pgweir_core::Machine;
use pgweir_core::driver::{Closed, ConnId, Driver, Now, Peer, TlsInfo, WorkerId};
use pgweir_core::luggage::Luggage;
use pgweir_core::mail::Mail;
use pgweir_net::{Engine, Pems, SocketOptions, TlsConfigs, Workers};
use pgweir_settings::Main;

/// The machine under the event loop's name for it; every verb is passed on as it is.
pub(crate) struct Worker(pub(crate) Machine);

impl Engine for Worker {
    fn begin_tick(&mut self, now: Now) {
        self.0.begin_tick(now);
    }

    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer) {
        self.0.accepted(d, conn, peer);
    }

    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, luggage: Box<Luggage>) {
        self.0.adopted(d, conn, luggage);
    }

    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]) {
        self.0.received(d, conn, bytes);
    }

    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String) {
        self.0.connected(d, conn, local);
    }

    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo) {
        self.0.tls_established(d, conn, info);
    }

    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId) {
        self.0.drained(d, conn);
    }

    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed) {
        self.0.closed(d, conn, why);
    }

    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail) {
        self.0.mail(d, mail);
    }

    fn timeout<D: Driver>(&mut self, d: &mut D) {
        self.0.timeout(d);
    }

    fn end_tick<D: Driver>(&mut self, d: &mut D) {
        self.0.end_tick(d);
    }

    fn deadline(&self) -> Option<u64> {
        self.0.deadline()
    }
}

/// The workers under the control plane's name for them.
pub(crate) struct Crew(pub(crate) Workers);

impl Fleet for Crew {
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

    fn close_tcp_listeners(&self) {
        self.0.close_tcp_listeners();
    }
}

/// TLS from settings and file contents; the error names the setting.
pub(crate) fn build_tls(main: &Main, files: &TlsFiles) -> Result<TlsConfigs, String> {
    TlsConfigs::build(main, pems(&files.clients), pems(&files.servers)).map_err(|error| error.to_string())
}

fn pems(side: &TlsSide) -> Pems<'_> {
    Pems { cert: side.cert.as_deref(), key: side.key.as_deref(), ca: side.ca.as_deref() }
}

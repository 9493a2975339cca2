//! What the event loop drives: the machine, as a trait, so that the loop can be tested with a toy.

use pgweir_core::driver::{Closed, ConnId, Driver, Now, Peer, TlsInfo};
use pgweir_core::luggage::Luggage;
use pgweir_core::mail::Mail;

/// The verbs of the machine, as `pgweir-core` documents them. The loop is generic over this trait (never `dyn`), so
/// that every call is a direct one.
///
/// All events of a tick come between [`Engine::begin_tick`] and [`Engine::end_tick`].
pub trait Engine {
    /// A loop turn begins; always the first call of a turn.
    fn begin_tick(&mut self, now: Now);
    /// A client connected.
    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer);
    /// A client came from another worker.
    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, luggage: Box<Luggage>);
    /// Bytes (plain text) arrived; all are consumed. At most 64 KiB at a time.
    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]);
    /// A dialed connection is up; `local` is our end's "ip:port", "" for a unix socket.
    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String);
    /// A TLS handshake is complete.
    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo);
    /// A connection's backlog is 0 again, after the socket was full or after the backlog had reached
    /// [`DEEP_BACKLOG_BYTES`](crate::DEEP_BACKLOG_BYTES).
    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId);
    /// The connection ended without the machine asking for it. Its name is dead already.
    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed);
    /// A message from another worker or from the control plane.
    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail);
    /// [`Engine::deadline`] has passed.
    fn timeout<D: Driver>(&mut self, d: &mut D);
    /// All events of the turn were reported; after this the queued bytes are written.
    fn end_tick<D: Driver>(&mut self, d: &mut D);
    /// When [`Engine::timeout`] is to be called, in microseconds of [`Now::mono_us`].
    fn deadline(&self) -> Option<u64>;
}

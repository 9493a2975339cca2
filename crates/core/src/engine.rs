//! The machine's events as a trait: an event loop calls it, so that the loop can be tested with a toy machine and the simulator with a
//! machine that is broken on purpose.

use std::net::SocketAddr;

use crate::client_handoff::ClientHandoff;
use crate::driver::{Closed, ConnId, Driver, Now, Peer, TlsInfo};
use crate::mail::Mail;
use crate::pool::takeover::carried::Carried;

/// The events of a machine. Loops are generic over this trait (never `dyn`), so that every call is a direct one.
///
/// All events of a tick come between [`Engine::begin_tick`] and [`Engine::end_tick`].
pub trait Engine {
    /// A loop turn begins; always the first call of a turn. All that happens until the next call happens at this time.
    fn begin_tick(&mut self, now: Now);
    /// A client connected.
    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer);
    /// A client arrived whose pool is here; another worker accepted and authenticated it.
    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, handoff: Box<ClientHandoff>);
    /// The process that this one replaces hands over a part of its state, with the sockets of a client and a server if there are any.
    fn carried<D: Driver>(
        &mut self,
        d: &mut D,
        client: Option<ConnId>,
        server: Option<ConnId>,
        carried: Box<Carried>,
    );
    /// Bytes (plain text) arrived; all are consumed.
    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]);
    /// A dialed connection is up; `local` is our end's "ip:port" for the log, "" for a unix socket.
    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String);
    /// A TLS handshake is complete.
    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo);
    /// A connection's backlog is 0 again, after the socket was full or after the backlog had become deep.
    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId);
    /// A connection ended without the machine asking for it, or could not be opened. Its [`ConnId`] is no longer valid.
    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed);
    /// A host name that servers were reached by no longer has one of its addresses; `addresses` are the present ones.
    fn host_moved<D: Driver>(&mut self, d: &mut D, host: &str, addresses: &[SocketAddr]);
    /// A message from another worker or from the control plane.
    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail);
    /// [`Engine::deadline`] has passed.
    fn timeout<D: Driver>(&mut self, d: &mut D);
    /// All events of the turn were reported; servers are handed out, connections opened. The driver writes afterwards.
    fn end_tick<D: Driver>(&mut self, d: &mut D);
    /// Returns the time at which [`Engine::timeout`] must be called, in microseconds of [`Now::mono_us`].
    fn deadline(&self) -> Option<u64>;
}

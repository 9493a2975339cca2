//! What the simulator drives: the verbs of the machine, so that a broken or trivial engine can stand in for it.

use pgweir_core::driver::{Closed, ConnId, Driver, Now, Peer, TlsInfo, WorkerId};
use pgweir_core::luggage::Luggage;
use pgweir_core::mail::{Mail, Question};

use super::plan::{Plan, Profile};

/// A pooler's engine: one value for each worker. The verbs mean what they mean in [`pgweir_core`].
pub trait Engine: Sized {
    /// What all workers share.
    type Shared;

    /// What it can do.
    fn profile() -> Profile;
    /// What its workers share, for a run.
    fn shared(plan: &Plan) -> Self::Shared;
    /// One worker's engine.
    fn start(plan: &Plan, shared: &Self::Shared, worker: WorkerId, now: Now) -> Self;

    /// What the control plane answers, and to whom.
    fn answer(plan: &Plan, shared: &Self::Shared, question: Question) -> Vec<(WorkerId, Mail)>;

    /// A turn begins.
    fn begin_tick(&mut self, now: Now);
    /// A client connected.
    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer);
    /// A client came from another worker.
    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, luggage: Box<Luggage>);
    /// Bytes arrived.
    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]);
    /// A dialed connection is up.
    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String);
    /// A TLS handshake is complete.
    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo);
    /// All that had to wait has left.
    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId);
    /// A connection ended.
    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed);
    /// Mail.
    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail);
    /// The deadline has passed.
    fn timeout<D: Driver>(&mut self, d: &mut D);
    /// A turn ends.
    fn end_tick<D: Driver>(&mut self, d: &mut D);
    /// When it wants [`Engine::timeout`].
    fn deadline(&self) -> Option<u64>;
}

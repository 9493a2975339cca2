//! What the simulator drives: the machine, or a broken one that stands in for it.

use pgweir_core::Engine;
use pgweir_core::driver::{Now, WorkerId};
use pgweir_core::mail::{Mail, Question};

use super::plan::{Plan, Profile};

/// A pooler under simulation: one engine for each worker, and what they share.
pub trait Subject: Engine + Sized {
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
}

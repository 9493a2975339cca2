//! The subject that the simulator drives: the machine, or a broken one instead of it.

use pgweir_core::Engine;
use pgweir_core::driver::{Now, WorkerId};
use pgweir_core::mail::{Mail, Question};

use super::plan::{Plan, Profile};

/// A pooler under simulation: one engine for each worker, and what they share.
pub trait Subject: Engine + Sized {
    /// The state that all workers share.
    type Shared;

    /// Returns the subject's abilities.
    fn profile() -> Profile;
    /// Returns the state that its workers share in a run.
    fn shared(plan: &Plan) -> Self::Shared;
    /// One worker's engine.
    fn start(plan: &Plan, shared: &Self::Shared, worker: WorkerId, now: Now) -> Self;

    /// Returns the control plane's answers, each with its receiver.
    fn answer(plan: &Plan, shared: &Self::Shared, question: Question) -> Vec<(WorkerId, Mail)>;
}

//! The machine of `pgweir-core` as the simulator's subject.

use std::sync::Arc;

use pgweir_auth::UserList;
use pgweir_core::console::command::Outcome;
use pgweir_core::driver::{Now, WorkerId};
use pgweir_core::mail::{Mail, Question, Rules};
use pgweir_core::{Machine, Setup, Shared};
use pgweir_settings::Config;

use super::plan::{Mode, Plan, Profile};
use super::subject::Subject;

/// Clients that the first worker seems to have: a few more, and the next pool is another one's.
const LOAD: u32 = 61;

/// The rules of a plan, as the binary would read them from files.
fn rules(plan: &Plan) -> Rules {
    let ini = plan.ini();
    let config = Config::load("sim.ini", &mut |_| Ok(ini.clone()));
    let config = config
        .unwrap_or_else(|errors| panic!("the simulator's own configuration is refused: {errors:?}\n{ini}"));
    let (users, warnings) = UserList::parse(&plan.auth_file());
    assert!(warnings.is_empty(), "the simulator's own auth_file is refused: {warnings:?}");
    Rules { config: Arc::new(config), users: Arc::new(users), access: Arc::default(), server_tls_epoch: 0 }
}

impl Subject for Machine {
    type Shared = (Arc<Shared>, Rules);

    fn profile() -> Profile {
        Profile {
            modes: &[Mode::Transaction, Mode::Transaction, Mode::Transaction, Mode::Session, Mode::Statement],
            workers_max: 3,
            has_limits: true,
            has_prepared: true,
            has_extended: true,
            bears_faults: true,
            bears_vanishing: true,
            has_timeouts: true,
            has_console: true,
        }
    }

    fn shared(plan: &Plan) -> Self::Shared {
        let shared = Shared::new(plan.workers, [7; 32]);
        if plan.cluster.is_some() {
            // So many that pools are on other workers, too, than the one that watches the cluster.
            (0..LOAD).for_each(|_| shared.note_client(WorkerId(0), true));
        }
        (Arc::new(shared), rules(plan))
    }

    fn start(plan: &Plan, shared: &Self::Shared, worker: WorkerId, now: Now) -> Self {
        let (shared, rules) = (Arc::clone(&shared.0), shared.1.clone());
        Machine::new(Setup { worker, rules, shared, now }).limit_by(plan.limits)
    }

    fn answer(plan: &Plan, shared: &Self::Shared, question: Question) -> Vec<(WorkerId, Mail)> {
        let mut rules = shared.1.clone();
        let (from, ticket) = match question {
            Question::Reload { from, ticket } => (from, ticket),
            Question::Set { from, ticket, key, value } => {
                let mut config = Config::clone(&rules.config);
                let outcome = config.set(&key, &value);
                assert!(outcome.is_ok(), "the simulator's own SET is refused: {key} = {value}");
                rules.config = Arc::new(config);
                (from, ticket)
            }
            Question::Shutdown(_)
            | Question::Switchover { .. }
            | Question::HurrySource { .. }
            | Question::MeasureLag(_)
            | Question::Promote(_)
            | Question::TakeVip { .. }
            | Question::Drained(_)
            | Question::PeriodOver(_)
            | Question::Limits(_)
            | Question::Backends(_)
            | Question::Login(_)
            | Question::Traced(_)
            | Question::Seen { .. }
            | Question::Operated { .. } => return Vec::new(),
        };
        let news = (0..plan.workers).map(|worker| (WorkerId(worker), Mail::Rules(rules.clone())));
        news.chain([(from, Mail::Outcome { ticket, outcome: Outcome::Done })]).collect()
    }
}

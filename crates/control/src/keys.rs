//! The SCRAM keys of plain passwords, derived before a login needs them.
//!
//! To derive the keys of a password takes about a millisecond, by intention. If the first login of a user
//! did this, its duration would tell that the user exists, and the worker would do nothing else meanwhile. So a separate thread derives the
//! keys of the whole list, as soon as that is in effect. It takes a small part of one processor, because a list may be long. A login that
//! comes before the thread has reached its user derives the keys itself.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use pgweir_auth::{Guard, GuardEnv, HbaMethod, UserList};
use pgweir_core::driver::Level;
use pgweir_core::mail::Rules;
use pgweir_settings::AuthType;

use crate::log::Log;

/// The pause after a derivation, as a multiple of its duration.
const REST: u32 = 4;

/// The handle to the thread. The thread starts when there is something to do, and ends when the handle is
/// dropped.
pub struct Keys {
    /// The seed of the process's salts, which is the same for the workers' guards.
    mock_seed: [u8; 32],
    log: Log,
    orders: Option<Sender<Order>>,
}

/// A user list to process. It replaces the one before.
struct Order {
    users: Arc<UserList>,
    scram_iterations: u32,
}

impl Keys {
    /// Creates a handle without a thread.
    #[must_use]
    pub fn new(mock_seed: [u8; 32], log: &Log) -> Keys {
        Keys { mock_seed, log: log.clone(), orders: None }
    }

    /// Derives the keys for these rules from now on.
    pub fn follow(&mut self, rules: &Rules) {
        let (users, scram_iterations) = match asks_for_scram(rules) {
            true => (Arc::clone(&rules.users), rules.config.main.scram_iterations),
            false => (Arc::default(), 0),
        };
        if self.orders.is_none() && !users.is_empty() {
            self.orders = self.start();
        }
        if let Some(orders) = &self.orders {
            // This fails only if the thread has ended, which it does only with this handle.
            let _ = orders.send(Order { users, scram_iterations });
        }
    }

    fn start(&self) -> Option<Sender<Order>> {
        let (orders, received) = channel();
        let mock_seed = self.mock_seed;
        match thread::Builder::new().name("keys".into()).spawn(move || run(&mock_seed, &received)) {
            Ok(_) => Some(orders),
            Err(error) => {
                self.log
                    .write(Level::Error, &format!("could not start the thread that derives keys: {error}"));
                None
            }
        }
    }
}

/// Returns whether any user may have to prove by SCRAM that they know a plain password.
fn asks_for_scram(rules: &Rules) -> bool {
    match rules.config.main.auth_type {
        AuthType::ScramSha256 => true,
        AuthType::Hba => rules.access.hba.rules().iter().any(|rule| rule.method == HbaMethod::ScramSha256),
        _ => false,
    }
}

fn run(mock_seed: &[u8; 32], orders: &Receiver<Order>) {
    let mut next = orders.recv().ok();
    while let Some(order) = next {
        next = work_through(&order, mock_seed, orders).or_else(|| orders.recv().ok());
    }
}

/// Derives the keys that the list lacks. Returns the next order if it comes before the end.
fn work_through(order: &Order, mock_seed: &[u8; 32], orders: &Receiver<Order>) -> Option<Order> {
    let env = GuardEnv { mock_seed, scram_iterations: order.scram_iterations, end_point: None };
    for (user, secret) in order.users.iter() {
        let began = Instant::now();
        if Guard::prepare(user, secret, &env)
            // The pause ends at once if another list comes.
            && let Ok(newer) = orders.recv_timeout(began.elapsed() * REST)
        {
            return Some(newer);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use pgweir_auth::{Access, Hba};
    use pgweir_settings::Config;

    use super::*;

    const SEED: [u8; 32] = [7; 32];

    fn rules(main: &str, hba: &str) -> Rules {
        let text = format!("[databases]\n[pgbouncer]\nscram_iterations = 2\n{main}\n");
        let config = Config::load("t.ini", &mut |_| Ok(text.clone())).expect("good");
        let (users, _) = UserList::parse(
            "\"alice\" \"a\"\n\"bob\" \"md50123456789abcdef0123456789abcdef\"\n\"carol\" \"c\"\n\"none\" \"\"\n",
        );
        let (hba, _) = Hba::parse(hba, &mut |_| Err(String::new()));
        let access = Arc::new(Access { hba, ..Access::default() });
        Rules { config: Arc::new(config), users: Arc::new(users), access, server_tls_epoch: 0 }
    }

    /// Returns the users for whom a login would still have to derive something; the check itself derives it.
    fn lacking(rules: &Rules) -> Vec<&str> {
        let env = GuardEnv { mock_seed: &SEED, scram_iterations: 2, end_point: None };
        let lacks = |(user, secret)| Guard::prepare(user, secret, &env).then_some(user);
        rules.users.iter().filter_map(lacks).collect()
    }

    #[test]
    fn every_plain_password_has_its_turn() {
        let rules = rules("auth_type = scram-sha-256", "");
        let order = Order { users: Arc::clone(&rules.users), scram_iterations: 2 };
        let (_sender, orders) = channel();
        assert!(work_through(&order, &SEED, &orders).is_none());
        assert_eq!(lacking(&rules), Vec::<&str>::new());
    }

    #[test]
    fn a_newer_list_goes_first() {
        let (sender, orders) = channel();
        let order = || Order { users: rules("", "").users, scram_iterations: 2 };
        sender.send(order()).expect("it is received below");
        let interrupted = rules("", "");
        let old = Order { users: Arc::clone(&interrupted.users), scram_iterations: 2 };
        assert!(work_through(&old, &SEED, &orders).is_some());
        assert_eq!(lacking(&interrupted), ["carol"]);
    }

    #[test]
    fn nothing_is_derived_if_no_user_is_asked_for_scram() {
        for (main, hba, asks) in [
            ("auth_type = md5", "", false),
            ("auth_type = plain", "", false),
            ("auth_type = scram-sha-256", "", true),
            ("auth_type = hba", "host all all all md5", false),
            ("auth_type = hba", "local all all trust\nhost all all all scram-sha-256", true),
        ] {
            let rules = rules(main, hba);
            assert_eq!(asks_for_scram(&rules), asks, "{main} {hba}");
            let mut keys = Keys::new(SEED, &Log::to_stderr());
            keys.follow(&rules);
            assert_eq!(keys.orders.is_some(), asks, "{main} {hba}");
        }
    }
}

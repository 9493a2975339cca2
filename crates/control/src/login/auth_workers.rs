//! Threads for the questions of logins that may take time: the operating system's users, PAM, directories.
//! They block only the client that waits for the answer, which comes through the control loop.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::unistd::{Uid, User};
use pgweir_core::driver::Level;
use pgweir_core::inquiry::{About, Answer, Checker, Inquiry, Obstacle};

use crate::log::Log;
use crate::login::ldap;
use crate::plane::Event;
use crate::trust::VerifyBy;

/// The maximum number of questions that are worked on at the same time. PAM modules and directories mostly
/// wait for the network.
const THREADS_MAX: usize = 8;

/// The name of each thread. A panic in one ends only its question: the libraries that they use may not expect
/// every answer of the other side.
pub const AUTH_THREAD: &str = "logins";

/// The maximum number of questions that wait for a thread. Beyond that, a client is told to try again.
const QUEUE_MAX: usize = 4096;

/// Asks PAM whether this is the user's password; the address is the client's. The error is the reason why
/// not.
pub type AskPam = fn(&str, &[u8], Option<IpAddr>) -> Result<(), String>;

/// The handle to the threads. A thread starts if there is a question and no thread is free: most poolers
/// never need one.
pub struct AuthWorkers {
    queue: SyncSender<Box<Inquiry>>,
    thread_pool: Arc<ThreadPool>,
}

struct ThreadPool {
    waiting: Mutex<Receiver<Box<Inquiry>>>,
    results: Sender<Event>,
    log: Log,
    pam: AskPam,
    verify: VerifyBy,
    /// The number of questions without an answer.
    open: AtomicUsize,
    threads: AtomicUsize,
}

impl AuthWorkers {
    /// Creates a handle without threads. Answers come as events.
    #[must_use]
    pub fn new(results: Sender<Event>, log: &Log, pam: AskPam, verify: VerifyBy) -> AuthWorkers {
        let (queue, waiting) = sync_channel(QUEUE_MAX);
        let (open, threads) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let waiting = Mutex::new(waiting);
        AuthWorkers {
            queue,
            thread_pool: Arc::new(ThreadPool {
                waiting,
                results,
                log: log.clone(),
                pam,
                verify,
                open,
                threads,
            }),
        }
    }

    /// Takes a question, or answers at once that it cannot be answered.
    pub(crate) fn ask(&self, inquiry: Box<Inquiry>) {
        let open = self.thread_pool.open.fetch_add(1, Ordering::SeqCst) + 1;
        let unasked = if self.thread_pool.has_thread_for(open) {
            self.queue.try_send(inquiry).err().map(|refused| match refused {
                TrySendError::Full(inquiry) | TrySendError::Disconnected(inquiry) => inquiry,
            })
        } else {
            Some(inquiry)
        };
        if let Some(inquiry) = unasked {
            self.thread_pool.open.fetch_sub(1, Ordering::SeqCst);
            let answer = Answer::Unavailable(Obstacle::Unreachable);
            // This fails if the process is ending and the receiver is gone.
            let _ = self.thread_pool.results.send(Event::Answered(inquiry.from, inquiry.client, answer));
        }
    }

    #[cfg(test)]
    fn threads(&self) -> usize {
        self.thread_pool.threads.load(Ordering::SeqCst)
    }
}

impl ThreadPool {
    /// Starts a thread if all are busy and the limit is not reached. Returns whether there is a thread. Only
    /// one thread calls it.
    fn has_thread_for(self: &Arc<Self>, open: usize) -> bool {
        let threads = self.threads.load(Ordering::SeqCst);
        if threads >= open.min(THREADS_MAX) {
            return true;
        }
        let thread_pool = Arc::clone(self);
        match thread::Builder::new().name(AUTH_THREAD.into()).spawn(move || thread_pool.work()) {
            Ok(_) => {
                self.threads.store(threads + 1, Ordering::SeqCst);
                true
            }
            Err(error) => {
                self.log.write(Level::Error, &format!("could not start a thread for logins: {error}"));
                threads > 0
            }
        }
    }

    fn work(&self) {
        loop {
            let next = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(inquiry) = next else { return };
            let found = catch_unwind(AssertUnwindSafe(|| self.find_out(&inquiry.about)));
            let answer = found.unwrap_or_else(|_| match inquiry.about {
                // A check that panicked has not accepted the password.
                About::Password { .. } => Answer::Password(false),
                About::OsUser { .. } => Answer::Unavailable(Obstacle::Unreachable),
            });
            self.open.fetch_sub(1, Ordering::SeqCst);
            if self.results.send(Event::Answered(inquiry.from, inquiry.client, answer)).is_err() {
                return;
            }
        }
    }

    fn find_out(&self, about: &About) -> Answer {
        let log = &self.log;
        match about {
            About::OsUser { uid } => match User::from_uid(Uid::from_raw(*uid)) {
                Ok(user) => Answer::OsUser(user.map(|user| user.name.into())),
                Err(error) => {
                    log.write(Level::Warning, &format!("could not find the user with id {uid}: {error}"));
                    Answer::Unavailable(Obstacle::Unreachable)
                }
            },
            About::Password { user, password, address, by } => {
                let (who, taken) = match by {
                    Checker::Pam => ("PAM", (self.pam)(user, password.as_bytes(), *address).map(|()| true)),
                    Checker::Ldap(options) => {
                        ("LDAP", ldap::check_password(options, user, password.as_bytes(), self.verify))
                    }
                };
                if let Err(why) = &taken {
                    // A name may contain escape sequences that a terminal obeys.
                    let user = user.escape_debug();
                    log.write(Level::Warning, &format!("{who} did not let in user \"{user}\": {why}"));
                }
                Answer::Password(taken == Ok(true))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use pgweir_core::driver::WorkerId;
    use pgweir_core::ids::UnpooledId;

    use super::*;

    #[test]
    fn threads_start_with_the_first_question() {
        let (results, answers) = channel();
        let auth_workers =
            AuthWorkers::new(results, &Log::to_stderr(), |_, _, _| Ok(()), |_| unreachable!("no directory"));
        assert_eq!(auth_workers.threads(), 0);
        let ask = || {
            let (from, client) = (WorkerId(0), UnpooledId::default());
            auth_workers.ask(Box::new(Inquiry { from, client, about: About::OsUser { uid: 0 } }));
        };
        // One after the other: one thread is enough.
        for _ in 0..3 {
            ask();
            assert!(matches!(answers.recv(), Ok(Event::Answered(_, _, Answer::OsUser(_)))));
        }
        assert_eq!(auth_workers.threads(), 1);
        // However many come together: no more than there may be.
        for _ in 0..3 * THREADS_MAX {
            ask();
        }
        for _ in 0..3 * THREADS_MAX {
            assert!(matches!(answers.recv(), Ok(Event::Answered(_, _, Answer::OsUser(_)))));
        }
        assert!(auth_workers.threads() <= THREADS_MAX);
    }
}

//! Threads that find out what a login has to know and what may take its time: the operating system's users, PAM, directories. They
//! block nobody: who waits for them is one client, and the answer goes back through the control loop.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use nix::unistd::{Uid, User};
use pgweir_core::driver::Level;
use pgweir_core::inquiry::{About, Answer, Checker, Inquiry, Obstacle};

use crate::ldap;
use crate::log::Log;
use crate::plane::Event;

/// How many questions are worked on at the same time. PAM modules and directories mostly wait, for the network.
const THREADS: usize = 8;

/// The name of each. A panic in one ends one question: what they ask with are libraries that may not expect what the other side says.
pub const ASKER_THREAD: &str = "logins";

/// Questions that may wait for a thread. Whoever comes then is told to try again.
const QUEUE_MAX: usize = 4096;

/// Asks PAM whether this is the user's password; with it, where the client comes from. An error says why not.
pub type AskPam = fn(&str, &[u8], Option<IpAddr>) -> Result<(), String>;

/// The threads.
pub struct Askers {
    queue: SyncSender<Box<Inquiry>>,
    results: Sender<Event>,
}

impl Askers {
    /// Starts the threads; their answers come as events.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(results: Sender<Event>, log: &Log, pam: AskPam) -> io::Result<Askers> {
        let (queue, waiting) = sync_channel(QUEUE_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..THREADS {
            let (waiting, results, log) = (Arc::clone(&waiting), results.clone(), log.clone());
            thread::Builder::new()
                .name(ASKER_THREAD.into())
                .spawn(move || work(&waiting, &results, &log, pam))?;
        }
        Ok(Askers { queue, results })
    }

    /// Takes a question, or says at once that it can not be answered.
    pub(crate) fn ask(&self, inquiry: Box<Inquiry>) {
        if let Err(refused) = self.queue.try_send(inquiry) {
            let (std::sync::mpsc::TrySendError::Full(inquiry)
            | std::sync::mpsc::TrySendError::Disconnected(inquiry)) = refused;
            // Nobody hears it when the process ends.
            let _ = self.results.send(Event::Answered(
                inquiry.from,
                inquiry.client,
                Answer::Nobody(Obstacle::Unreachable),
            ));
        }
    }
}

fn work(waiting: &Mutex<Receiver<Box<Inquiry>>>, results: &Sender<Event>, log: &Log, pam: AskPam) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(inquiry) = next else { return };
        let found = catch_unwind(AssertUnwindSafe(|| find_out(&inquiry.about, log, pam)));
        let answer = found.unwrap_or_else(|_| match inquiry.about {
            About::Password { .. } => Answer::Password(false),
            About::OsUser { .. } => Answer::Nobody(Obstacle::Unreachable),
        });
        if results.send(Event::Answered(inquiry.from, inquiry.client, answer)).is_err() {
            return;
        }
    }
}

fn find_out(about: &About, log: &Log, pam: AskPam) -> Answer {
    match about {
        About::OsUser { uid } => match User::from_uid(Uid::from_raw(*uid)) {
            Ok(user) => Answer::OsUser(user.map(|user| user.name.into())),
            Err(error) => {
                log.write(Level::Warning, &format!("could not find the user with id {uid}: {error}"));
                Answer::Nobody(Obstacle::Unreachable)
            }
        },
        About::Password { user, password, address, by } => {
            let (who, taken) = match by {
                Checker::Pam => ("PAM", pam(user, password.as_bytes(), *address).map(|()| true)),
                Checker::Ldap(options) => ("LDAP", ldap::check_password(options, user, password.as_bytes())),
            };
            if let Err(why) = &taken {
                // A name may hold what a terminal obeys.
                let user = user.escape_debug();
                log.write(Level::Warning, &format!("{who} did not let in user \"{user}\": {why}"));
            }
            Answer::Password(taken == Ok(true))
        }
    }
}

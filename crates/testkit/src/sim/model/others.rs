//! What a server process has to do with other processes: advisory locks that another one has, notifications, and things of
//! another client in its session, which must never be there.

use super::backend::{Backend, Stage};
use super::holdings::Told;
use crate::sim::hub::{Event, Hub};
use crate::sim::locks::Answer;
use crate::sim::proto::Body;

impl Backend {
    /// A client's statement begins: no other client's things may be there.
    pub(super) fn look_for_strangers(&self, hub: &mut Hub, client: u32) {
        if let Stage::Serving(session) = &self.stage
            && let Some((owner, what)) = session.stranger(client)
        {
            let text = format!("server {}: client {client} finds {what} of client {owner}", self.pid);
            hub.fail("what a session holds reaches no other client", text);
        }
    }

    // Locks.

    pub(super) fn ask_for_lock(&mut self, hub: &mut Hub, key: u64, waits: bool) {
        let Some((database, _)) = self.pool.clone() else { return };
        let answer = hub.locks.ask(self.pid, &database, key, waits);
        let Stage::Serving(session) = &mut self.stage else { return };
        self.waits_since_us = match answer {
            Answer::Held if waits => self.waits_since_us.or(Some(hub.now_us)),
            _ => None,
        };
        match answer {
            Answer::Got => session.told_of_lock(true),
            Answer::Held if !waits => session.told_of_lock(false),
            Answer::Held => {
                hub.count("lock waits");
                self.waits_for = Some(key);
            }
            Answer::Deadlock => {
                hub.count("deadlocks");
                session.deadlock();
            }
        }
    }

    /// The lock that it waits for is free, or seems to be.
    pub(super) fn try_lock_again(&mut self, hub: &mut Hub) {
        match self.waits_for.take() {
            Some(key) if self.is_serving() => {
                self.ask_for_lock(hub, key, true);
                self.go_on(hub);
            }
            _ => hub.locks.withdraw(self.pid),
        }
    }

    pub(super) fn gave_up_lock(&self, hub: &mut Hub, key: u64) {
        if let Some((database, _)) = &self.pool {
            hub.locks.give_up(self.pid, database, key);
            hub.after(1, Event::Unlocked);
        }
    }

    /// Its end, for the other processes.
    pub(super) fn forget_others(&mut self, hub: &mut Hub) {
        self.waits_for = None;
        self.waits_since_us = None;
        self.ears.clear();
        hub.locks.ended(self.pid);
        if hub.locks.next().is_some() {
            hub.after(1, Event::Unlocked);
        }
    }

    // Notifications.

    /// It listens to something.
    #[must_use]
    pub fn listens(&self) -> bool {
        !self.ears.is_empty()
    }

    /// A transaction was committed that did something for other sessions.
    pub(super) fn tell_others(&mut self, hub: &mut Hub, what: &Told, client: Option<u32>) {
        let Some((database, _)) = &self.pool else { return };
        let now_us = hub.now_us;
        match what {
            Told::Listens(channel) => {
                let all = hub.ears.board.len();
                if self.ears.is_empty() {
                    self.heard = all;
                }
                // Where it listened already, it is told of what it has not looked at yet (`asyncQueueProcessPageEntries`).
                self.ears.insert(channel.clone());
                if let Some(client) = client {
                    hub.count("channels listened to");
                    hub.ears.listens(now_us, client, database, channel, self.heard);
                }
            }
            Told::Leaves(channel) => {
                self.ears.remove(channel);
                if let Some(client) = client {
                    hub.ears.leaves(now_us, client, channel);
                }
            }
            Told::Notifies(channel, payload) => {
                hub.count("notifications sent");
                hub.ears.sent(now_us, (database, channel, payload), self.pid);
                let in_us = 1 + hub.rng.skewed(500);
                hub.after(in_us, Event::Notified);
                self.signalled = true;
            }
        }
    }

    /// It is told that there are notifications: between two transactions it looks at once, else at the end of this one.
    pub fn signalled(&mut self, hub: &mut Hub) {
        self.signalled = true;
        self.go_on(hub);
    }

    /// Between two transactions it tells at once what it heard.
    pub(super) fn tell_at_rest(&mut self, hub: &mut Hub) -> bool {
        let rests = matches!(&self.stage, Stage::Serving(session) if session.is_idle());
        let told = rests && self.tell_notifications(hub);
        if told {
            self.flush(hub);
        }
        told
    }

    /// Tells what it heard since it last looked, if there is a reason to look; `false` if that is nothing.
    pub(super) fn tell_notifications(&mut self, hub: &mut Hub) -> bool {
        if !std::mem::take(&mut self.signalled) {
            return false;
        }
        let upto = hub.ears.board.len();
        let heard = std::mem::replace(&mut self.heard, upto);
        if self.ears.is_empty() || heard == upto {
            return false;
        }
        let Some((database, _)) = &self.pool else { return false };
        let mut told = Vec::new();
        for bulletin in hub.ears.board.iter().skip(heard) {
            if bulletin.database == *database && self.ears.contains(&bulletin.channel) {
                let pid = i32::try_from(bulletin.pid).expect("few processes");
                told.push(
                    Body::new().int32(pid).text(&bulletin.channel).text(&bulletin.payload).message(b'A'),
                );
            }
        }
        told.iter().for_each(|message| self.keep(hub, message));
        !told.is_empty()
    }
}

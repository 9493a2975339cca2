//! The relations of a server process to other processes: advisory locks that they have, notifications, and
//! another client's state in its session, which must never be there.

use super::backend::{Backend, Stage};
use crate::sim::context::{Event, SimContext};
use crate::sim::locks::Answer;
use crate::sim::model::state::holdings::Told;
use crate::sim::network::proto::Body;

impl Backend {
    /// A client's statement begins: no other client's things may be there.
    pub(super) fn look_for_strangers(&self, cx: &mut SimContext, client: u32) {
        if let Stage::Serving(session) = &self.stage
            && let Some((owner, what)) = session.stranger(client)
        {
            let text = format!("server {}: client {client} finds {what} of client {owner}", self.pid);
            cx.fail("what a session holds reaches no other client", text);
        }
    }

    // Locks.

    pub(super) fn ask_for_lock(&mut self, cx: &mut SimContext, key: u64, waits: bool) {
        let Some((database, _)) = self.pool.clone() else { return };
        let answer = cx.locks.ask(self.pid, (self.node, &database), key, waits);
        let Stage::Serving(session) = &mut self.stage else { return };
        self.waits_since_us = match answer {
            Answer::Held if waits => self.waits_since_us.or(Some(cx.now_us)),
            _ => None,
        };
        match answer {
            Answer::Got => session.told_of_lock(true),
            Answer::Held if !waits => session.told_of_lock(false),
            Answer::Held => {
                cx.count("lock waits");
                self.waits_for = Some(key);
            }
            Answer::Deadlock => {
                cx.count("deadlocks");
                session.deadlock();
            }
        }
    }

    /// The lock that it waits for is free, or seems to be.
    pub(super) fn try_lock_again(&mut self, cx: &mut SimContext) {
        match self.waits_for.take() {
            Some(key) if self.is_serving() => {
                self.ask_for_lock(cx, key, true);
                self.go_on(cx);
            }
            _ => cx.locks.withdraw(self.pid),
        }
    }

    pub(super) fn gave_up_lock(&self, cx: &mut SimContext, key: u64) {
        if let Some((database, _)) = &self.pool {
            cx.locks.give_up(self.pid, (self.node, database), key);
            cx.after(1, Event::Unlocked);
        }
    }

    /// Ends the process for the other processes.
    pub(super) fn forget_others(&mut self, cx: &mut SimContext) {
        self.waits_for = None;
        self.waits_since_us = None;
        self.listening.clear();
        cx.locks.ended(self.pid);
        let process = self.pid;
        cx.in_wal(|wal, rng| wal.gone(rng, process));
        if let Some(nodes) = &mut cx.nodes {
            nodes.rolls_back(self.pid);
        }
        if cx.locks.next().is_some() {
            cx.after(1, Event::Unlocked);
        }
    }

    // Notifications.

    /// Returns whether the process listens to a channel.
    #[must_use]
    pub fn listens(&self) -> bool {
        !self.listening.is_empty()
    }

    /// A transaction was committed that did something for other sessions.
    pub(super) fn tell_others(&mut self, cx: &mut SimContext, what: &Told, client: Option<u32>) {
        let Some((database, _)) = &self.pool else { return };
        let now_us = cx.now_us;
        match what {
            Told::Listens(channel) => {
                let all = cx.notify_check.board.len();
                if self.listening.is_empty() {
                    self.heard = all;
                }
                // Where it listened already, it is told of what it has not looked at yet (`asyncQueueProcessPageEntries`).
                self.listening.insert(channel.clone());
                if let Some(client) = client {
                    cx.count("channels listened to");
                    cx.notify_check.listens(now_us, client, database, channel, self.heard);
                }
            }
            Told::Leaves(channel) => {
                self.listening.remove(channel);
                if let Some(client) = client {
                    cx.notify_check.leaves(now_us, client, channel);
                }
            }
            Told::Notifies(channel, payload) => {
                cx.count("notifications sent");
                cx.notify_check.sent(now_us, (database, channel, payload), self.pid);
                let in_us = 1 + cx.rng.skewed(500);
                cx.after(in_us, Event::Notified);
                self.signalled = true;
            }
        }
    }

    /// Signals that there are notifications: between two transactions the process reads them at once,
    /// otherwise at the end of the current one.
    pub fn signalled(&mut self, cx: &mut SimContext) {
        self.signalled = true;
        self.go_on(cx);
    }

    /// Between two transactions it tells at once what it heard.
    pub(super) fn tell_at_rest(&mut self, cx: &mut SimContext) -> bool {
        let rests = matches!(&self.stage, Stage::Serving(session) if session.is_idle());
        let told = rests && self.tell_notifications(cx);
        if told {
            self.flush(cx);
        }
        told
    }

    /// Tells what it heard since it last looked, if there is a reason to look; `false` if that is nothing.
    pub(super) fn tell_notifications(&mut self, cx: &mut SimContext) -> bool {
        if !std::mem::take(&mut self.signalled) {
            return false;
        }
        let upto = cx.notify_check.board.len();
        let heard = std::mem::replace(&mut self.heard, upto);
        if self.listening.is_empty() || heard == upto {
            return false;
        }
        let Some((database, _)) = &self.pool else { return false };
        let mut told = Vec::new();
        for notification in cx.notify_check.board.iter().skip(heard) {
            if notification.database == *database && self.listening.contains(&notification.channel) {
                let pid = i32::try_from(notification.pid).expect("few processes");
                told.push(
                    Body::new()
                        .int32(pid)
                        .text(&notification.channel)
                        .text(&notification.payload)
                        .message(b'A'),
                );
            }
        }
        told.iter().for_each(|message| self.keep(cx, message));
        !told.is_empty()
    }
}

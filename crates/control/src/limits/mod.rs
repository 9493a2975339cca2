//! Limits that hold for several poolers together (`shared_limits`). The poolers agree through etcd which part of a limit each of them has.
//!
//! `divide`, `member`, `unclaimed` and `documents` are pure: a division and reports in, a division and parts out. `register` has the keys in etcd,
//! `local` the settings and demands of this process, `looks` the looks at PostgreSQL's processes, and `duty` joins them. One thread does this,
//! from the first configuration that has the setting.

mod divide;
mod documents;
mod duty;
mod local;
mod looks;
mod member;
#[cfg(test)]
mod model;
mod register;
mod unclaimed;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use pgweir_core::Shared;
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Rules;
use pgweir_core::places::{BackendsSeen, LimitsSeen};
use pgweir_settings::{Config, SharedLimits};
use tokio::select;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::log::Log;
use crate::order_thread::OrderThread;
use crate::plane::Event;
use crate::sources::LookUp;
use crate::sources::http::Client;
use crate::trust::VerifyBy;
use duty::Duty;
use local::Spec;

/// The time that the end of the process waits for this pooler's part to be given back.
const END_MAX: Duration = Duration::from_secs(3);

/// The handle to the thread, which starts with the first configuration that shares limits.
pub struct Limits {
    outside: Outside,
    thread: OrderThread<Order>,
    /// Whether another process has taken over this pooler's name and parts.
    is_handed_over: bool,
}

/// The parts that the thread needs of the process.
#[derive(Clone)]
struct Outside {
    log: Log,
    look_up: LookUp,
    verify: VerifyBy,
    shared: Arc<Shared>,
    events: Sender<Event>,
    /// Whether this process has replaced another one.
    is_successor: bool,
}

enum Order {
    Follow(Arc<Config>),
    Seen(WorkerId, LimitsSeen),
    Backends(Box<BackendsSeen>),
    HandOver,
    End,
}

impl Limits {
    /// Creates a handle without a thread. `is_successor`: this process has replaced another one, and goes on with its parts.
    #[must_use]
    pub fn new(
        log: &Log,
        look_up: LookUp,
        verify: VerifyBy,
        (shared, events): (Arc<Shared>, Sender<Event>),
        is_successor: bool,
    ) -> Limits {
        let outside = Outside { log: log.clone(), look_up, verify, shared, events, is_successor };
        Limits { outside, thread: OrderThread::new("limits"), is_handed_over: false }
    }

    /// Shares the limits of this configuration from now on.
    pub(crate) fn follow(&mut self, rules: &Rules) {
        if !self.thread.takes_orders() && rules.config.main.shared_limits == SharedLimits::Etcd {
            let outside = self.outside.clone();
            let serve = move |orders| serve(orders, outside);
            self.thread.start(&self.outside.log, "for shared limits", serve);
        }
        self.send(Order::Follow(Arc::clone(&rules.config)));
    }

    /// Takes a worker's report.
    pub(crate) fn seen(&self, worker: WorkerId, seen: LimitsSeen) {
        self.send(Order::Seen(worker, seen));
    }

    /// Takes an answer about PostgreSQL's processes.
    pub(crate) fn backends(&self, seen: Box<BackendsSeen>) {
        self.send(Order::Backends(seen));
    }

    /// Hands this pooler's parts over to another process, which has taken over. From now on this one opens no connection under a shared limit.
    pub(crate) fn hand_over(&mut self) {
        if self.thread.takes_orders() && !std::mem::replace(&mut self.is_handed_over, true) {
            self.outside.shared.take_parts_away();
            self.send(Order::HandOver);
        }
    }

    /// Gives back this pooler's parts, and waits until that is done. Call it before the process ends. If it takes too long, the lease ends.
    pub(crate) fn finish(&mut self) {
        if self.thread.takes_orders() {
            self.outside.shared.take_parts_away();
            self.send(Order::End);
        }
        self.thread.finish(END_MAX);
    }

    fn send(&self, order: Order) {
        // This fails if there is no thread, which has logged the reason or was told to end.
        let _ = self.thread.send(order);
    }
}

async fn serve(mut orders: UnboundedReceiver<Order>, mut outside: Outside) {
    let mut duty: Option<Duty> = None;
    loop {
        let order = match &mut duty {
            Some(duty) => select! {
                order = orders.recv() => Some(order),
                () = duty.wait() => None,
            },
            None => Some(orders.recv().await),
        };
        let is_round_due = match (order, &mut duty) {
            (None, _) => true,
            (Some(Some(Order::Follow(config))), duty) => {
                follow(&config, duty, &mut outside).await;
                true
            }
            (Some(Some(Order::Seen(worker, seen))), Some(duty)) => duty.seen(worker, seen),
            (Some(Some(Order::Backends(seen))), Some(duty)) => {
                duty.backends(&seen);
                true
            }
            (Some(Some(Order::HandOver)), Some(duty)) => {
                duty.hand_over().await;
                true
            }
            (Some(Some(Order::End) | None), duty) => {
                if let Some(duty) = duty {
                    duty.end().await;
                }
                return;
            }
            (Some(Some(_)), None) => false,
        };
        if let Some(duty) = duty.as_mut().filter(|_| is_round_due) {
            duty.round().await;
        }
    }
}

/// Begins, changes or ends the duty, as the configuration says.
async fn follow(config: &Arc<Config>, duty: &mut Option<Duty>, outside: &mut Outside) {
    let main = &config.main;
    let client = Client::new(main, outside.look_up, outside.verify);
    let spec = Spec::of(main);
    if let Some(old) = duty {
        if spec.as_ref() == Some(old.spec()) {
            return old.follow(client, Arc::clone(config));
        }
        outside.shared.take_parts_away();
        old.end().await;
    }
    let is_successor = std::mem::replace(&mut outside.is_successor, false);
    *duty = spec.map(|spec| Duty::new(spec, client, outside.clone(), Arc::clone(config), is_successor));
}

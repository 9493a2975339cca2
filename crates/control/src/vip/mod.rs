//! The virtual address (`vip`): of several poolers, the one that holds a lease in etcd has it. `decide` has the rules; the other files ask etcd,
//! change the network interface and announce the address.
//!
//! One thread does this, from the first configuration that has the setting. It must not depend on what the workers do: an address that is not
//! renewed in time is lost.

mod ahead;
mod announce;
mod clients;
mod decide;
mod duty;
mod interface;
mod lease;
mod rights;
mod spec;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use pgweir_core::Shared;
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Rules;
use pgweir_settings::Config;
use tokio::select;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::log::Log;
use crate::order_thread::OrderThread;
use crate::plane::Event;
use crate::sources::LookUp;
use crate::sources::http::Client;
use crate::trust::VerifyBy;
use duty::Duty;
use spec::Spec;

/// The time that the end of the process waits for the address to be given away, besides the time of `vip_down_command`.
const END_MAX: Duration = Duration::from_secs(5);

/// The answer to a command about the address if there is none.
pub(crate) const NO_ADDRESS: &str = "vip is not set";

/// Has all workers end the clients that came by an address ([`Mail::AddressLeft`](pgweir_core::mail::Mail::AddressLeft)).
pub type EndClients = Arc<dyn Fn(IpAddr) + Send + Sync>;

/// The handle to the thread, which starts with the first configuration that has a virtual address.
pub struct Vip {
    setup: Setup,
    thread: OrderThread<Order>,
    /// The time that the thread may take to give the address away.
    limit: Duration,
    has_ended: bool,
}

/// The parts that the thread needs of the process.
#[derive(Clone)]
struct Setup {
    log: Log,
    look_up: LookUp,
    verify: VerifyBy,
    shared: Arc<Shared>,
    end_clients: EndClients,
    events: Sender<Event>,
    /// Whether this process has replaced another one, which may have set the address.
    is_successor: bool,
}

impl Setup {
    /// Tells the control loop the result of [`Vip::take_by_force`].
    fn took(&self, from: WorkerId, ticket: u64, result: Result<(), String>) {
        // This fails if the process is ending and the receiver is gone.
        let _ = self.events.send(Event::TookVip { from, ticket, result });
    }
}

enum Order {
    Follow(Arc<Config>),
    /// Take the address although etcd cannot be asked.
    TakeByForce {
        /// The worker that gets the result.
        from: WorkerId,
        /// The number that the worker gave to the command.
        ticket: u64,
    },
    /// Remove the address and give the lease back.
    GiveAway,
    /// Leave the address and the lease to the process that has replaced this one.
    Leave,
}

impl Vip {
    /// Creates a handle without a thread. `is_successor`: this process has replaced another one, and goes on with its address.
    #[must_use]
    pub fn new(
        log: &Log,
        look_up: LookUp,
        verify: VerifyBy,
        (shared, end_clients, events): (Arc<Shared>, EndClients, Sender<Event>),
        is_successor: bool,
    ) -> Vip {
        let setup = Setup { log: log.clone(), look_up, verify, shared, end_clients, events, is_successor };
        Vip { setup, thread: OrderThread::new("vip"), limit: Duration::ZERO, has_ended: false }
    }

    /// Uses the virtual address of this configuration from now on.
    pub(crate) fn follow(&mut self, rules: &Rules) {
        let main = &rules.config.main;
        if self.has_ended || (!self.thread.takes_orders() && main.vip.is_empty()) {
            return;
        }
        let command = if main.vip_down_command.is_empty() { Duration::ZERO } else { main.vip_ttl };
        self.limit = self.limit.max(END_MAX + command);
        if !self.thread.takes_orders() {
            let setup = self.setup.clone();
            let serve = move |orders| serve(orders, setup);
            self.thread.start(&self.setup.log, "for the virtual address", serve);
        }
        self.send(Order::Follow(Arc::clone(&rules.config)));
    }

    /// Takes the address although etcd cannot be asked. The result comes as [`Event::TookVip`], also if there is no address.
    pub(crate) fn take_by_force(&self, from: WorkerId, ticket: u64) {
        if self.has_ended || self.thread.send(Order::TakeByForce { from, ticket }).is_err() {
            self.setup.took(from, ticket, Err(NO_ADDRESS.to_owned()));
        }
    }

    /// Gives the address away: the process is about to end.
    pub(crate) fn give_away(&mut self) {
        self.has_ended = true;
        self.send(Order::GiveAway);
    }

    /// Leaves the address as it is: another process has taken over.
    pub(crate) fn leave(&mut self) {
        self.has_ended = true;
        self.send(Order::Leave);
    }

    /// Waits until the address is given away or left. Call it before the process ends. If it takes too long, the kernel removes the address.
    pub(crate) fn finish(&mut self) {
        self.thread.finish(self.limit);
    }

    fn send(&self, order: Order) {
        // This fails if there is no thread, which has logged the reason or was told to end.
        let _ = self.thread.send(order);
    }
}

async fn serve(mut orders: UnboundedReceiver<Order>, mut setup: Setup) {
    let mut duty: Option<Duty> = None;
    loop {
        let order = match &mut duty {
            Some(duty) => select! {
                order = orders.recv() => Some(order),
                () = duty.wait() => None,
            },
            None => Some(orders.recv().await),
        };
        match order {
            None => {}
            Some(Some(Order::Follow(config))) => follow(&config, &mut duty, &mut setup).await,
            Some(Some(Order::TakeByForce { from, ticket })) => {
                let result = match &mut duty {
                    Some(duty) => duty.take_by_force().await,
                    None => Err(NO_ADDRESS.to_owned()),
                };
                setup.took(from, ticket, result);
            }
            Some(Some(Order::GiveAway)) => {
                if let Some(duty) = &mut duty {
                    duty.give_away().await;
                }
                return;
            }
            Some(Some(Order::Leave)) => {
                if let Some(duty) = &mut duty {
                    select! {
                        () = duty.stay_behind() => {}
                        () = last(&mut orders) => {}
                    }
                }
                return;
            }
            // Without a sender the process is ending, and has said nothing of the address.
            Some(None) => return,
        }
        if let Some(duty) = &mut duty {
            duty.round().await;
        }
    }
}

/// Waits until there are no more orders. After [`Order::Leave`] none is carried out.
async fn last(orders: &mut UnboundedReceiver<Order>) {
    while orders.recv().await.is_some() {}
}

/// Begins, changes or ends the duty, as the configuration says.
async fn follow(config: &Config, duty: &mut Option<Duty>, setup: &mut Setup) {
    let main = &config.main;
    let client = Client::new(main, setup.look_up, setup.verify);
    let spec = Spec::of(main);
    if let Some(old) = duty {
        if spec.as_ref() == Some(old.spec()) {
            // Certificate files may have changed under their names.
            return old.use_client(client);
        }
        old.give_away().await;
    }
    *duty = spec.map(|spec| Duty::new(spec, client, setup));
    setup.is_successor = false;
    if duty.is_none() {
        setup.shared.tell_vip(None);
    }
}

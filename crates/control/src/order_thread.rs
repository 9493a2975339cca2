//! A thread of the control plane with a runtime of its own, which carries out the orders that it is sent.

use std::future::Future;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use pgweir_core::driver::Level;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::log::Log;

/// The handle to a thread that carries out orders. A thread that has not been started is sent none.
pub(crate) struct OrderThread<O> {
    /// The name of the thread.
    name: &'static str,
    started: Option<Started<O>>,
}

struct Started<O> {
    /// `None` after the last order.
    orders: Option<UnboundedSender<O>>,
    /// The channel over which nothing is sent. It ends when the thread does.
    end: Receiver<()>,
}

impl<O: Send + 'static> OrderThread<O> {
    /// Returns the handle to a thread that is not started yet.
    pub(crate) fn new(name: &'static str) -> OrderThread<O> {
        OrderThread { name, started: None }
    }

    /// Whether the thread was started and may still be sent orders.
    pub(crate) fn takes_orders(&self) -> bool {
        self.started.as_ref().is_some_and(|started| started.orders.is_some())
    }

    /// Starts the thread, which ends when `serve` does. A failure is logged; `purpose` says there what the thread is for.
    pub(crate) fn start<S, F>(&mut self, log: &Log, purpose: &'static str, serve: S)
    where
        S: FnOnce(UnboundedReceiver<O>) -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let (orders, inbox) = unbounded_channel();
        let (running, end) = channel();
        let thread_log = log.clone();
        let run = move || {
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => LocalSet::new().block_on(&runtime, serve(inbox)),
                Err(error) => say_failed(&thread_log, purpose, &error),
            }
            drop(running);
        };
        match thread::Builder::new().name(self.name.into()).spawn(run) {
            Ok(_) => self.started = Some(Started { orders: Some(orders), end }),
            Err(error) => say_failed(log, purpose, &error),
        }
    }

    /// Sends an order. The order comes back as the error if there is no thread: it was not started, has failed, or has ended.
    pub(crate) fn send(&self, order: O) -> Result<(), O> {
        match self.started.as_ref().and_then(|started| started.orders.as_ref()) {
            Some(orders) => orders.send(order).map_err(|error| error.0),
            None => Err(order),
        }
    }

    /// Sends no more orders, and waits until the thread has ended, but no longer than `limit`.
    pub(crate) fn finish(&mut self, limit: Duration) {
        if let Some(started) = &mut self.started {
            started.orders = None;
            // The result does not matter: the thread has ended, or takes too long.
            let _ = started.end.recv_timeout(limit);
        }
    }
}

fn say_failed(log: &Log, purpose: &str, error: &std::io::Error) {
    log.write(Level::Error, &format!("could not start the thread {purpose}: {error}"));
}

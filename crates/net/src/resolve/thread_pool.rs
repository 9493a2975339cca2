//! The threads that look names up. A thread starts if there is something to ask and no thread is free: a
//! pooler whose servers are configured by address has no such threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::{Request, look_up};
use crate::worker::mesh::WorkerMessage;

/// The maximum number of threads. One name that hangs does not hold up the others.
const RESOLVER_THREADS_MAX: usize = 3;

/// The sender of requests. The threads end after the last clone is dropped, as soon as they have finished
/// their look-up.
#[derive(Clone)]
pub(crate) struct Resolver {
    ask: Sender<Request>,
    /// The threads; `None` in tests, which answer requests themselves.
    thread_pool: Option<Arc<ThreadPool>>,
}

struct ThreadPool {
    requests: Mutex<Receiver<Request>>,
    resolv_conf: Option<PathBuf>,
    /// The number of requests without an answer.
    open: AtomicUsize,
    threads: AtomicUsize,
}

impl Resolver {
    /// Creates a resolver without threads. `resolv_conf` is the file with the name servers to ask; without it
    /// the operating system is asked for hosts.
    pub(crate) fn new(resolv_conf: Option<PathBuf>) -> Self {
        let (ask, requests) = channel();
        let requests = Mutex::new(requests);
        let (open, threads) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { ask, thread_pool: Some(Arc::new(ThreadPool { requests, resolv_conf, open, threads })) }
    }

    #[cfg(test)]
    pub(super) fn answered_by_test() -> (Self, Receiver<Request>) {
        let (ask, requests) = channel();
        (Self { ask, thread_pool: None }, requests)
    }

    /// Takes a request. Returns `false` if no thread can ever answer it.
    pub(super) fn send(&self, request: Request) -> bool {
        if let Some(thread_pool) = &self.thread_pool {
            let open = thread_pool.open.fetch_add(1, Ordering::SeqCst) + 1;
            if !thread_pool.has_thread_for(open) {
                thread_pool.open.fetch_sub(1, Ordering::SeqCst);
                return false;
            }
        }
        self.ask.send(request).is_ok()
    }
}

impl ThreadPool {
    /// Starts a thread if all are busy and the limit is not reached. Returns whether there is a thread.
    fn has_thread_for(self: &Arc<Self>, open: usize) -> bool {
        let mut threads = self.threads.load(Ordering::SeqCst);
        while threads < open.min(RESOLVER_THREADS_MAX) {
            let one_more =
                self.threads.compare_exchange(threads, threads + 1, Ordering::SeqCst, Ordering::SeqCst);
            let Err(now) = one_more else {
                let thread_pool = Arc::clone(self);
                let started = thread::Builder::new()
                    .name(format!("resolver-{threads}"))
                    .spawn(move || thread_pool.answer_all());
                if started.is_err() {
                    return self.threads.fetch_sub(1, Ordering::SeqCst) > 1;
                }
                return true;
            };
            threads = now;
        }
        true
    }

    fn answer_all(&self) {
        loop {
            // Only `recv` runs under the lock, and it does not panic.
            let next = self.requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Request { about, reply_to }) = next else { return };
            let answer = look_up(about, self.resolv_conf.as_deref().map(Path::new));
            self.open.fetch_sub(1, Ordering::SeqCst);
            reply_to.send(WorkerMessage::Resolved(Box::new(answer)));
        }
    }
}

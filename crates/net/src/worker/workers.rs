//! The workers from the view of the binary: started together, addressed by messages, ended together.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use mio::{Poll, Registry, Waker};
use pgweir_core::driver::{Level, Now, WorkerId};
use pgweir_core::mail::{Mail, Question};

use crate::clock::Clock;
use crate::connection::table::WAKER;
use crate::listening::accept::{Acceptor, Listener};
use crate::listening::listen::{Listeners, SocketFile};
use crate::options::SocketOptions;
use crate::resolve::{Names, Resolver};
use crate::scheduling::PollPermits;
use crate::takeover::{Arrivals, Giver};
use crate::tls::TlsConfigs;
use crate::worker::io::{Io, Parts};
use crate::worker::mesh::{Mailbox, Mesh, NetCommand, WorkerMessage};
use crate::worker::tick::{Worker, WorkerParts};
use pgweir_core::Engine;

/// A receiver of log lines, called from every worker's thread.
pub trait LogSink: Send + Sync {
    /// Takes one line.
    fn write(&self, level: Level, line: &str);

    /// Returns `false` if lines of this level are written nowhere.
    fn reaches_anybody(&self, level: Level) -> bool {
        let _ = level;
        true
    }

    /// Makes the lines so far readable. It is called before clients get an answer that the lines explain.
    fn settle(&self) {}
}

impl<F: Fn(Level, &str) + Send + Sync> LogSink for F {
    fn write(&self, level: Level, line: &str) {
        self(level, line);
    }
}

/// The log, as the workers share it.
pub type Log = Arc<dyn LogSink>;

/// The parts from which the workers are started.
pub struct Setup<F> {
    /// The number of threads, at least 1.
    pub workers: u16,
    /// The sockets that clients connect to, shared by all workers.
    pub listeners: Listeners,
    /// TLS towards clients and towards servers.
    pub tls: TlsConfigs,
    /// Options of sockets and of name resolution.
    pub options: SocketOptions,
    /// The receiver of log lines.
    pub log: Log,
    /// The channel for the machines' questions to the control plane.
    pub questions: Sender<(WorkerId, Question)>,
    /// The channel for connections of processes that want to replace this one; see [`Giver`].
    pub surrendered: Sender<OwnedFd>,
    /// A function that makes a worker's machine, in that worker's thread.
    pub machine: F,
}

/// A worker's counters, which any thread may read at any time.
#[derive(Default, Debug)]
pub struct WorkerLoad {
    /// Microseconds spent in turns, without waiting.
    pub busy_us: AtomicU64,
    /// Microseconds spent polling for more instead of sleeping; not counted in `busy_us`.
    pub busy_poll_us: AtomicU64,
    /// Turns of the loop.
    pub turns: AtomicU64,
    /// Messages that were sent together with others of the same turn, by one system call.
    pub batched_sends: AtomicU64,
    /// The current number of connections of either kind.
    pub connections: AtomicU64,
}

/// The running workers.
pub struct Workers {
    mailboxes: Vec<Mailbox>,
    loads: Vec<Arc<WorkerLoad>>,
    threads: Vec<JoinHandle<()>>,
    socket_files: Vec<SocketFile>,
    clock: Clock,
}

/// A handle to the workers, for mail and for their counters. It may outlive them; then mail is dropped.
#[derive(Clone)]
pub struct Post {
    mailboxes: Vec<Mailbox>,
    loads: Vec<Arc<WorkerLoad>>,
}

impl Post {
    /// The number of workers.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.mailboxes.len()).expect("as many as a u16 said")
    }

    /// Sends a message to a worker's machine, as [`Workers::mail`] does.
    pub fn mail(&self, to: WorkerId, mail: Mail) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) {
            mailbox.send(WorkerMessage::Mail(mail));
        }
    }

    /// Returns the counters of each worker.
    #[must_use]
    pub fn loads(&self) -> &[Arc<WorkerLoad>] {
        &self.loads
    }
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The operating system refuses a thread, a poll or a duplicate of a listener.
    pub fn start<E, F>(setup: Setup<F>) -> io::Result<Self>
    where
        E: Engine + 'static,
        F: Fn(WorkerId, Now) -> E + Send + Sync + 'static,
    {
        let Setup { workers, listeners, tls, options, log, questions, surrendered, machine } = setup;
        let clock = Clock::new();
        let resolver = Resolver::new(options.resolv_conf.clone());
        let (inputs, mailboxes) = inputs_and_mailboxes(workers.max(1))?;
        let mut running = Self {
            loads: mailboxes.iter().map(|_| Arc::default()).collect(),
            mailboxes,
            threads: Vec::new(),
            socket_files: listeners.socket_files,
            clock,
        };
        let machine = Arc::new(machine);
        let poll_permits = Arc::new(PollPermits::for_this_machine());
        for (number, (poll, messages)) in inputs.into_iter().enumerate() {
            let thread_parts = ThreadParts {
                me: WorkerId(u16::try_from(number).expect("as many as a u16 said")),
                registry: poll.registry().try_clone()?,
                poll,
                messages,
                listeners: duplicate(&listeners.sockets)?,
                boxes: running.mailboxes.clone(),
                resolver: resolver.clone(),
                options: options.clone(),
                tls: tls.clone(),
                questions: questions.clone(),
                surrendered: surrendered.clone(),
                log: Arc::clone(&log),
                load: Arc::clone(&running.loads[number]),
                clock,
                poll_permits: Arc::clone(&poll_permits),
            };
            let machine = Arc::clone(&machine);
            let thread = thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || run(thread_parts, machine.as_ref()))?;
            running.threads.push(thread);
        }
        Ok(running)
    }

    /// The number of workers.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.mailboxes.len()).expect("as many as a u16 said")
    }

    /// Returns the workers' time, for messages that carry one.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Sends a message to a worker's machine. If there is no such worker, or it has ended, the message is
    /// dropped.
    pub fn mail(&self, to: WorkerId, mail: Mail) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) {
            mailbox.send(WorkerMessage::Mail(mail));
        }
    }

    /// Sends a message to every worker's machine; `make` is called once for each.
    pub fn broadcast(&self, mut make: impl FnMut(WorkerId) -> Mail) {
        for number in 0..self.count() {
            self.mail(WorkerId(number), make(WorkerId(number)));
        }
    }

    /// Returns a handle to the workers for code that does not own them.
    #[must_use]
    pub fn post(&self) -> Post {
        Post { mailboxes: self.mailboxes.clone(), loads: self.loads.clone() }
    }

    /// Sets the TLS configuration of sessions that begin from now on; existing ones keep theirs.
    pub fn set_tls(&self, configs: &TlsConfigs) {
        self.command(&NetCommand::Tls(configs.clone()));
    }

    /// Sets the options of connections made from now on.
    pub fn set_options(&self, options: &SocketOptions) {
        self.command(&NetCommand::Options(options.clone()));
    }

    /// Returns the handle that gives everything to another process.
    #[must_use]
    pub fn giver(&self) -> Giver {
        Giver { mailboxes: self.mailboxes.clone(), extra_listeners: Arc::default() }
    }

    /// Returns the handle that takes in what another process gives.
    #[must_use]
    pub fn arrivals(&self) -> Arrivals {
        Arrivals { mailboxes: self.mailboxes.clone() }
    }

    /// Leaves the unix socket's file in place at the end, because it belongs to another process now.
    pub fn leave_socket_file(&mut self) {
        self.socket_files.clear();
    }

    /// Ends the loops after the turn they are in, waits for them, and removes the unix socket.
    pub fn stop(mut self) {
        self.command(&NetCommand::Stop);
        for thread in self.threads.drain(..) {
            // A panic has been logged and has ended the process already.
            let _ = thread.join();
        }
        self.socket_files.drain(..).for_each(SocketFile::remove);
    }

    fn command(&self, command: &NetCommand) {
        for mailbox in &self.mailboxes {
            mailbox.send(WorkerMessage::Command(Box::new(command.clone())));
        }
    }
}

/// The parts of a worker's thread. All descriptors that it needs were opened before, so a lack of descriptors
/// is an error of the start, and nothing later can keep a worker from running.
struct ThreadParts {
    me: WorkerId,
    registry: Registry,
    poll: Poll,
    messages: Receiver<WorkerMessage>,
    listeners: Vec<Listener>,
    boxes: Vec<Mailbox>,
    resolver: Resolver,
    options: SocketOptions,
    tls: TlsConfigs,
    questions: Sender<(WorkerId, Question)>,
    surrendered: Sender<OwnedFd>,
    log: Log,
    load: Arc<WorkerLoad>,
    clock: Clock,
    poll_permits: Arc<PollPermits>,
}

/// Runs a worker's thread. A worker that fails aborts the process: its clients would hang, and a supervisor
/// can restart a whole process but not a part of it.
fn run<E: Engine>(thread_parts: ThreadParts, machine: &dyn Fn(WorkerId, Now) -> E) {
    let (me, log) = (thread_parts.me.0, Arc::clone(&thread_parts.log));
    let ended = catch_unwind(AssertUnwindSafe(|| work(thread_parts, machine)));
    match &ended {
        Ok(Ok(())) => return,
        Ok(Err(e)) => log.write(Level::Fatal, &format!("worker {me} cannot go on: {e}")),
        Err(_) => {
            log.write(Level::Fatal, &format!("worker {me} panicked; this is a defect, please report it"));
        }
    }
    std::process::abort();
}

fn work<E: Engine>(thread_parts: ThreadParts, machine: &dyn Fn(WorkerId, Now) -> E) -> io::Result<()> {
    let me = thread_parts.boxes[usize::from(thread_parts.me.0)].clone();
    let mut io = Io::new(Parts {
        me: thread_parts.me,
        registry: thread_parts.registry,
        mesh: Mesh::new(thread_parts.boxes),
        names: Names::new(thread_parts.resolver, me),
        options: thread_parts.options,
        tls: thread_parts.tls,
        questions: thread_parts.questions,
        surrendered: thread_parts.surrendered,
        log: thread_parts.log,
    });
    let acceptor = Acceptor::new(thread_parts.listeners, &mut io)?;
    let engine = machine(thread_parts.me, thread_parts.clock.now());
    let parts = WorkerParts {
        io,
        acceptor,
        clock: thread_parts.clock,
        poll: thread_parts.poll,
        messages: thread_parts.messages,
        load: thread_parts.load,
        poll_permits: thread_parts.poll_permits,
    };
    Worker::new(engine, parts).run()
}

type WorkerInput = (Poll, Receiver<WorkerMessage>);

/// Creates a poll and a mailbox for every worker.
fn inputs_and_mailboxes(count: u16) -> io::Result<(Vec<WorkerInput>, Vec<Mailbox>)> {
    let (mut inputs, mut mailboxes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (messages, received) = channel();
        mailboxes.push(Mailbox { messages, waker });
        inputs.push((poll, received));
    }
    Ok((inputs, mailboxes))
}

fn duplicate(listeners: &[Listener]) -> io::Result<Vec<Listener>> {
    listeners.iter().map(|l| Ok(Listener { socket: l.socket.try_clone()?, kind: l.kind })).collect()
}

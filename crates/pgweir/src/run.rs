//! The pooler's life: start, serve, end.

use std::backtrace::Backtrace;
use std::os::fd::OwnedFd;
use std::panic;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use pgweir_control::log::Log;
use pgweir_control::process::PidFile;
use pgweir_control::stopping::SIGNALS;
use pgweir_control::supervisor::{self, Notification};
use pgweir_control::web::{self, Web, WebSetup};
use pgweir_control::{
    AUTH_THREAD, AuthWorkers, Commands, ConfigState, EndClients, Event, Keys, Limits, Plane, Sources, Vip,
};
use pgweir_core::driver::{Level, Now, WorkerId};
use pgweir_core::mail::{Mail, Question};
use pgweir_core::{Machine, Shared};
use pgweir_net::{LogSink, Post, Setup, SocketOptions, Workers};
use pgweir_settings::Main;
use signal_hook::iterator::Signals;

use crate::command_line::RunOptions;
use crate::fleet::{Watched, WorkerFleet};
use crate::start::{self, Ready, StartError};
use crate::succession::{self, HandoverParts};
use crate::version;

/// Our pid file, where the panic hook finds it too.
pub(crate) type SharedPidFile = Arc<Mutex<Option<PidFile>>>;

/// Runs until a signal or the console ends it. Exit code 0 for every end that was asked for, 1 when it could not start.
pub(crate) fn run(options: RunOptions) -> ExitCode {
    let log = Log::to_stderr();
    let code = match start_and_serve(options, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = error.to_string();
            log.write(Level::Fatal, &text);
            start::note_user(&text, &log);
            ExitCode::FAILURE
        }
    };
    log.flush();
    code
}

fn start_and_serve(options: RunOptions, log: &Log) -> Result<(), StartError> {
    // From here on a signal waits until the process can act on it, instead of ending a half-started process.
    let signals = Signals::new(SIGNALS)?;
    let ready = start::start(options, log)?;
    serve(ready, signals, log)
}

fn serve(ready: Ready, signals: Signals, log: &Log) -> Result<(), StartError> {
    let Ready { command_line, draft, tls, listeners, web_sockets, pid_file, quiet, takeover } = ready;
    let generation = takeover.as_ref().map_or(0, |old| old.generation().wrapping_add(1));
    log.start_writer()?;
    let pid_file = Arc::new(Mutex::new(pid_file));
    end_on_panic(log.clone(), Arc::clone(&pid_file));
    let (events, event_queue) = mpsc::channel();
    hear_signals(signals, events.clone())?;
    let (questions, question_queue) = mpsc::channel();
    let (web, web_inbox) = web::channel();
    let web = (!web_sockets.is_empty()).then_some(web);
    hear_questions(question_queue, events.clone(), web.clone())?;
    let (surrendered, successors) = mpsc::channel();
    let auth_workers =
        AuthWorkers::new(events.clone(), log, pgweir_net::pam::check_password, pgweir_net::verified_by);
    let sources = Sources::new(events.clone(), log, pgweir_net::addresses_of, pgweir_net::verified_by);
    let commands = Commands::new(events.clone(), log);

    let config_state = ConfigState::new(command_line, draft);
    let rules = config_state.rules().clone();
    let workers = number_of_workers(&rules.config.main, log);
    let mock_seed = start::random_seed()?;
    let keys = Keys::new(mock_seed, log);
    let shared = Arc::new(Shared::new(workers, mock_seed).of_generation(generation));
    if let Some(old) = &takeover {
        old.switches().inherit(&shared, &rules.config);
    }
    let options = SocketOptions::from(&rules.config.main);
    let rules_for_web = rules.clone();
    let clock = log.clone();
    let machines_shared = Arc::clone(&shared);
    let workers = Workers::start(Setup {
        workers,
        listeners,
        tls,
        options,
        log: Arc::new(WorkersLog(log.clone())),
        questions,
        surrendered,
        machine: move |worker: WorkerId, now: Now| {
            let (rules, shared, log) = (rules.clone(), Arc::clone(&machines_shared), clock.clone());
            Machine::new(pgweir_core::Setup { worker, rules, shared, now })
                .show_times_by(Arc::new(move |seconds| log.moment(seconds)))
                .of_version(pgweir_version::VERSION)
        },
    })?;
    let vip = virtual_address(log, (Arc::clone(&shared), workers.post()), events.clone(), takeover.is_some());
    let limits = shared_limits(log, Arc::clone(&shared), events.clone(), takeover.is_some());
    let web_listeners = web_sockets.iter().map(|socket| socket.try_clone().map(OwnedFd::from));
    let handover_parts = HandoverParts {
        giver: workers.giver().with_listeners(web_listeners.collect::<io::Result<_>>()?),
        shared: Arc::clone(&shared),
        pid_file: Arc::clone(&pid_file),
        events,
        log: log.clone(),
    };
    let (given, giving) = succession::hear_successors(handover_parts, successors)?;
    if let Some(mut old) = takeover {
        old.ready()?;
        *pid_file.lock().unwrap_or_else(PoisonError::into_inner) =
            start::create_pid_file(&config_state.rules().config.main.pidfile)?;
        succession::receive(old, workers.arrivals(), shared, log.clone())?;
    }
    if web.is_some() {
        web::start(WebSetup {
            sockets: web_sockets,
            inbox: web_inbox,
            rules: rules_for_web,
            present: pgweir_net::own_certificate,
            workforce: Box::new(Watched(workers.post())),
            log: log.clone(),
            version: pgweir_version::VERSION,
        })?;
    }
    log.write(Level::Log, &version::process_up(&config_state.rules().config.main));
    supervisor::tell(log, Notification::Ready);
    let plane = Plane::new(WorkerFleet(workers), config_state, log.clone(), quiet);
    let plane = plane
        .with_web(web)
        .with_auth_workers(auth_workers)
        .with_keys(keys)
        .with_sources(sources)
        .with_commands(commands)
        .with_vip(vip)
        .with_limits(limits);
    let WorkerFleet(mut workers) = plane.run(&event_queue);
    let given = given.load(Ordering::Acquire);
    if given {
        workers.leave_socket_file();
    }
    workers.stop();
    if given && giving.join().is_err() {
        log.write(Level::Error, "the thread that hands over has failed");
    }
    // An observer that sees the pid file gone finds the last lines in the log.
    log.flush();
    take(&pid_file);
    Ok(())
}

/// The number of workers, which is logged with what it follows from.
fn number_of_workers(main: &Main, log: &Log) -> u16 {
    let cores = start::cores();
    let workers = start::workers(main.workers, cores);
    log.write(Level::Log, &format!("workers: {workers} (cores: {cores}, setting: {})", main.workers));
    workers
}

/// The handle of the virtual address. It tells the console through what the workers share, and the workers by mail.
fn virtual_address(
    log: &Log,
    (shared, post): (Arc<Shared>, Post),
    events: Sender<Event>,
    is_successor: bool,
) -> Vip {
    let end_clients: EndClients = Arc::new(move |address| {
        (0..post.count()).for_each(|worker| post.mail(WorkerId(worker), Mail::AddressLeft(address)));
    });
    let outside = (shared, end_clients, events);
    Vip::new(log, pgweir_net::addresses_of, pgweir_net::verified_by, outside, is_successor)
}

/// The handle of limits that several poolers share.
fn shared_limits(log: &Log, shared: Arc<Shared>, events: Sender<Event>, is_successor: bool) -> Limits {
    let outside = (shared, events);
    Limits::new(log, pgweir_net::addresses_of, pgweir_net::verified_by, outside, is_successor)
}

/// A thread that turns signals into events.
fn hear_signals(mut signals: Signals, events: Sender<Event>) -> io::Result<()> {
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                break;
            }
        }
    })?;
    Ok(())
}

/// A thread that turns the workers' questions into events: a channel has one reader, and the control loop reads events.
fn hear_questions(
    questions: Receiver<(WorkerId, Question)>,
    events: Sender<Event>,
    web: Option<Web>,
) -> io::Result<()> {
    thread::Builder::new().name("questions".into()).spawn(move || {
        for (from, question) in questions {
            // What the HTTP server asked need not wait until the control loop is through with a file.
            let question = match &web {
                Some(web) => web.deliver(question),
                None => Some(question),
            };
            let Some(question) = question else { continue };
            if events.send(Event::Asked(from, question)).is_err() {
                break;
            }
        }
    })?;
    Ok(())
}

/// The process's log, as the workers know it.
struct WorkersLog(Log);

impl LogSink for WorkersLog {
    fn write(&self, level: Level, line: &str) {
        self.0.write(level, line);
    }

    fn reaches_anybody(&self, level: Level) -> bool {
        self.0.reaches_anybody(level)
    }

    fn settle(&self) {
        self.0.settle();
    }
}

/// A panic in any thread ends the process, with exit code 1 and a FATAL line: a worker less would leave its clients
/// hanging, and a supervisor can start a process again but not a part of one.
fn end_on_panic(log: Log, pid_file: SharedPidFile) {
    panic::set_hook(Box::new(move |info| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("?");
        if name == AUTH_THREAD {
            // It goes on with the next question.
            let place = info.location().map_or_else(String::new, |place| format!(" ({place})"));
            let payload = info.payload();
            let what = payload.downcast_ref::<&str>().copied();
            let what =
                what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown");
            return log.write(
                Level::Error,
                &format!("an answer to a login's question makes no sense: {what}{place}"),
            );
        }
        let text = format!("{info}\nthis is a defect in thread \"{name}\" of pgweir, please report it");
        log.write(Level::Fatal, &text);
        take(&pid_file);
        // After what matters, as finding the names of functions may fail itself.
        log.write(Level::Fatal, &format!("backtrace:\n{}", Backtrace::force_capture()));
        std::process::exit(1);
    }));
}

/// Removes the pid file.
pub(crate) fn take(pid_file: &SharedPidFile) {
    drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
}

//! The control loop: one thread that handles signals and the workers' questions, one at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use pgweir_core::console::SET_FAILED;
use pgweir_core::console::command::{Command, Outcome};
use pgweir_core::driver::{Level, WorkerId};
use pgweir_core::ids::UnpooledId;
use pgweir_core::inquiry::{Answer, Obstacle};
use pgweir_core::mail::{LagRequest, Mail, PromoteRequest, Question, Scarce, Shutdown};
use pgweir_core::source::SourceReport;
use pgweir_core::stats::Window;
use pgweir_core::trace::TracedStatement;
use pgweir_settings::Main;

use crate::commands::Commands;
use crate::config::config_state::{ConfigState, Draft, SetDraft, is_about_tls};
use crate::config::files::TlsFiles;
use crate::keys::Keys;
use crate::limits::Limits;
use crate::log::syslog::{Destination, SOCKET};
use crate::log::{Log, Targets};
use crate::login::auth_workers::AuthWorkers;
use crate::sources::{Request, Sources};
use crate::stopping::{Order, Stopping};
use crate::supervisor::{self, Notification};
#[cfg(any(feature = "traces", test))]
use crate::traces::Traces;
use crate::vip::{NO_ADDRESS, Vip};
use crate::web::Web;

/// The ticket of a command whose result no client waits for: machines number theirs from 1.
const NO_TICKET: u64 = 0;

/// An event of the control loop.
#[derive(Debug)]
pub enum Event {
    /// A signal came.
    Signal(i32),
    /// The process is to end in this way.
    Shutdown(Shutdown),
    /// A worker's machine asks a question.
    Asked(WorkerId, Question),
    /// The answer to a question of a login, for a worker's client.
    Answered(WorkerId, UnpooledId, Answer),
    /// The source of a cluster has answered, or could not be asked.
    Source(Arc<SourceReport>),
    /// `lag_command` has ended for a standby, or could not be run.
    Lag {
        /// The cluster.
        cluster: Arc<str>,
        /// The standby.
        node: Arc<str>,
        /// The standby's lag, or the reason why it is not known.
        told: Result<Duration, String>,
    },
    /// VIP TAKE FORCE has ended: this pooler has the virtual address, or the reason why it has not.
    TookVip {
        /// The worker that asked.
        from: WorkerId,
        /// The worker's number for the command.
        ticket: u64,
        /// The reason of a failure.
        result: Result<(), String>,
    },
    /// The parts of shared limits that this process has were changed.
    PartsChanged,
    /// The processes that PostgreSQL has must be known, for a limit that is shared.
    LookAtBackends {
        /// The number of the request.
        number: u64,
        /// The limit.
        of: Scarce,
    },
    /// Patroni or `promote_command` has switched over, or has not.
    Switched {
        /// The cluster.
        cluster: Arc<str>,
        /// The number of the switchover.
        number: u64,
        /// The reason of a failure.
        result: Result<(), String>,
    },
}

/// The workers, as the control plane sees them. All calls return at once.
pub trait Fleet {
    /// TLS configurations that were built and can be put into effect.
    type Tls;

    /// Returns the number of workers; their ids are below it.
    fn count(&self) -> u16;

    /// Sends a message to a worker's machine.
    fn mail(&self, to: WorkerId, mail: Mail);

    /// Builds TLS configurations. The error names the setting and the problem.
    ///
    /// # Errors
    /// A certificate or a key cannot be used.
    fn build_tls(&self, main: &Main, files: &TlsFiles) -> Result<Self::Tls, String>;

    /// Sets the TLS configurations of sessions that begin from now on.
    fn use_tls(&self, tls: Self::Tls);

    /// Sets the options of sockets and names for connections made from now on.
    fn use_socket_settings(&self, main: &Main);
}

/// The control loop and what it owns.
pub struct Plane<F> {
    fleet: F,
    config_state: ConfigState,
    log: Log,
    quiet: bool,
    stopping: Stopping,
    /// The numbers of each worker for the last `stats_period`; `None` for workers that have not reported yet.
    periods: Vec<Option<Window>>,
    web: Option<Web>,
    auth_workers: Option<AuthWorkers>,
    keys: Option<Keys>,
    sources: Option<Sources>,
    commands: Option<Commands>,
    vip: Option<Vip>,
    limits: Option<Limits>,
    #[cfg(any(feature = "traces", test))]
    traces: Option<Traces>,
}

impl<F: Fleet> Plane<F> {
    /// Creates the loop. `quiet`: nothing is logged to standard error (`-q`, `-d`), whatever the configuration becomes.
    #[must_use]
    pub fn new(fleet: F, config_state: ConfigState, log: Log, quiet: bool) -> Plane<F> {
        let periods = vec![None; usize::from(fleet.count())];
        Plane {
            fleet,
            config_state,
            log,
            quiet,
            stopping: Stopping::No,
            periods,
            web: None,
            auth_workers: None,
            keys: None,
            sources: None,
            commands: None,
            vip: None,
            limits: None,
            #[cfg(any(feature = "traces", test))]
            traces: None,
        }
    }

    /// Adds the HTTP server, which gets new rules.
    #[must_use]
    pub fn with_web(mut self, web: Option<Web>) -> Plane<F> {
        self.web = web;
        self
    }

    /// Adds the threads for the questions of logins.
    #[must_use]
    pub fn with_auth_workers(self, auth_workers: AuthWorkers) -> Plane<F> {
        Plane { auth_workers: Some(auth_workers), ..self }
    }

    /// Adds the thread that derives keys before logins need them.
    #[must_use]
    pub fn with_keys(self, keys: Keys) -> Plane<F> {
        Plane { keys: Some(keys), ..self }
    }

    /// Adds the thread that asks the sources of clusters.
    #[must_use]
    pub fn with_sources(self, sources: Sources) -> Plane<F> {
        Plane { sources: Some(sources), ..self }
    }

    /// Adds the thread that runs programs.
    #[must_use]
    pub fn with_commands(self, commands: Commands) -> Plane<F> {
        Plane { commands: Some(commands), ..self }
    }

    /// Adds the thread for the virtual address.
    #[must_use]
    pub fn with_vip(self, vip: Vip) -> Plane<F> {
        Plane { vip: Some(vip), ..self }
    }

    /// Adds the thread for limits that several poolers share.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Plane<F> {
        Plane { limits: Some(limits), ..self }
    }

    /// Handles events until the process has to end, and returns the fleet. It also ends if no sender of
    /// events is left.
    #[must_use]
    pub fn run(mut self, events: &Receiver<Event>) -> F {
        self.follow_traces();
        self.follow_users();
        self.follow_sources();
        while let Some(event) = self.next(events) {
            match event {
                Event::Signal(signal) => self.signal(signal),
                Event::Shutdown(kind) => self.shutdown(kind),
                Event::Asked(from, question) => self.asked(from, question),
                Event::Answered(to, client, answer) => self.answered(to, client, answer),
                Event::TookVip { from, ticket, result } => self.took_vip(from, ticket, result),
                Event::PartsChanged => self.mail_all(|| Mail::Parts),
                Event::LookAtBackends { number, of } => {
                    self.mail_all(|| Mail::LookAtBackends { number, of: of.clone() });
                }
                // Only one worker watches the cluster; the others ignore these.
                Event::Switched { cluster, number, result } => self.mail_all(|| Mail::Switched {
                    cluster: Arc::clone(&cluster),
                    number,
                    result: result.clone(),
                }),
                Event::Source(report) => self.mail_all(|| Mail::Source(Arc::clone(&report))),
                Event::Lag { cluster, node, told } => self.mail_all(|| Mail::Lag {
                    cluster: Arc::clone(&cluster),
                    node: Arc::clone(&node),
                    told: told.clone(),
                }),
            }
            if let Some(words) = self.stopping.last_words() {
                if !words.is_empty() {
                    self.log.write(Level::Log, words);
                }
                break;
            }
        }
        if let Some(vip) = &mut self.vip {
            vip.finish();
        }
        if let Some(limits) = &mut self.limits {
            limits.finish();
        }
        self.fleet
    }

    /// Returns the next event; the end of a drain is one. `None` if no sender is left.
    fn next(&self, events: &Receiver<Event>) -> Option<Event> {
        let Some(rest) = self.stopping.rest_of_drain(Instant::now()) else { return events.recv().ok() };
        match events.recv_timeout(rest) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => {
                self.log
                    .write(Level::Log, "drain is over, waiting for all servers connections to be released");
                Some(Event::Shutdown(Shutdown::WaitForServers))
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn signal(&mut self, signal: i32) {
        let drain = self.config_state.rules().config.main.shutdown_drain_seconds;
        let (order, words) = self.stopping.understand(signal, drain);
        if let Some(words) = words {
            self.log.write(Level::Log, words);
        }
        match order {
            Order::Reload => {
                // The log has the faults; a signal has no other place to report to.
                let _ = self.reload();
            }
            Order::Pause => self.command_all(&Command::Pause(None)),
            Order::Resume => self.mail_all(|| Mail::Continue),
            Order::Shutdown(kind) => self.shutdown(kind),
            Order::Drain => {
                supervisor::tell(&self.log, Notification::Stopping);
                if let Some(web) = &self.web {
                    web.drain();
                }
                if let Some(vip) = &mut self.vip {
                    vip.give_away();
                }
                self.stopping.drain(Instant::now(), drain);
            }
            Order::Ignore => {}
        }
    }

    fn took_vip(&self, from: WorkerId, ticket: u64, result: Result<(), String>) {
        let outcome = result.map_or_else(Outcome::Failed, |()| Outcome::Done);
        self.fleet.mail(from, Mail::Outcome { ticket, outcome });
    }

    fn asked(&mut self, from: WorkerId, question: Question) {
        match question {
            Question::Reload { from, ticket } => {
                let outcome = match self.reload() {
                    Ok(()) => Outcome::Done,
                    Err(()) => Outcome::Failed("RELOAD failed, see logs for additional details".to_owned()),
                };
                self.fleet.mail(from, Mail::Outcome { ticket, outcome });
            }
            Question::Set { from, ticket, key, value } => {
                let outcome = self.set(&key, &value);
                self.fleet.mail(from, Mail::Outcome { ticket, outcome });
            }
            Question::TakeVip { from, ticket } => match &self.vip {
                Some(vip) => vip.take_by_force(from, ticket),
                None => self.took_vip(from, ticket, Err(NO_ADDRESS.to_owned())),
            },
            Question::Login(inquiry) => match &self.auth_workers {
                Some(auth_workers) => auth_workers.ask(inquiry),
                None => self.answered(from, inquiry.client, Answer::Unavailable(Obstacle::Unreachable)),
            },
            Question::Switchover { cluster, number, from: primary, to } => match &self.sources {
                Some(sources) => sources.switch_over(Request { cluster, number, from: primary, to }),
                None => {
                    let result = Err("no source is asked".to_owned());
                    self.fleet.mail(from, Mail::Switched { cluster, number, result });
                }
            },
            Question::Promote(request) => match &mut self.commands {
                Some(commands) => commands.promote(*request),
                None => {
                    let PromoteRequest { cluster, number, .. } = *request;
                    let result = Err("no program is run".to_owned());
                    self.fleet.mail(from, Mail::Switched { cluster, number, result });
                }
            },
            Question::MeasureLag(request) => match &mut self.commands {
                Some(commands) => commands.measure_lag(*request),
                None => {
                    let LagRequest { cluster, node, .. } = *request;
                    let told = Err("no program is run".to_owned());
                    self.fleet.mail(from, Mail::Lag { cluster, node, told });
                }
            },
            Question::HurrySource { cluster, hurries } => {
                if let Some(sources) = &self.sources {
                    sources.hurry(cluster, hurries);
                }
            }
            Question::Shutdown(kind) => self.shutdown(kind),
            Question::Drained(worker) => {
                debug_assert_eq!(from, worker, "a worker speaks for itself");
                self.stopping.drained(worker);
            } // A suspended machine reads nothing from those it accepts, so the listeners can go on.
            Question::Limits(seen) => {
                if let Some(limits) = &self.limits {
                    limits.seen(from, seen);
                }
            }
            Question::Backends(seen) => {
                if let Some(limits) = &self.limits {
                    limits.backends(seen);
                }
            }
            Question::PeriodOver(window) => self.period_over(from, window),
            Question::Traced(statement) => self.trace(*statement),
            // Answers to the HTTP server reach it directly; without that server there was no question.
            Question::Seen { .. } | Question::Operated { .. } => {}
        }
    }

    /// Logs one line for the process, after every worker has reported its numbers.
    fn period_over(&mut self, from: WorkerId, window: Window) {
        if let Some(place) = self.periods.get_mut(usize::from(from.0)) {
            *place = Some(window);
        }
        if self.periods.iter().any(Option::is_none) {
            return;
        }
        let sum = self
            .periods
            .iter_mut()
            .filter_map(Option::take)
            .fold(Window::default(), |sum, one| sum.plus(&one));
        let line = sum.log_line(self.config_state.rules().config.main.compatible_with);
        supervisor::tell(&self.log, Notification::Status(&line));
        self.log.write(Level::Log, &line);
    }

    fn answered(&self, to: WorkerId, client: UnpooledId, answer: Answer) {
        self.fleet.mail(to, Mail::Answered { client, answer });
    }

    fn reload(&mut self) -> Result<(), ()> {
        supervisor::tell(&self.log, Notification::Reloading);
        let result = self.config_state.draft_reload().and_then(|draft| self.put_into_effect(draft));
        self.config_state.forget_unusable();
        if let Err(faults) = &result {
            self.log_faults(faults);
            self.log.write(
                Level::Warning,
                "config file loading failed: the old configuration stays in effect as a whole",
            );
        }
        // The log is opened again even after a fault: log rotation relies on it.
        self.open_log();
        supervisor::tell(&self.log, Notification::Reloaded);
        result.map_err(drop)
    }

    fn set(&mut self, key: &str, value: &str) -> Outcome {
        let result = match self.config_state.draft_set(key, value) {
            Ok(SetDraft::Ready(draft)) => match self.put_into_effect(*draft) {
                // Key and certificate are set one after the other, and the first alone may not be usable.
                Err(faults) if is_about_tls(key) => Ok(Some(faults)),
                other => other.map(|()| None),
            },
            Ok(SetDraft::NeedsRestart) => Ok(None),
            Ok(SetDraft::Unusable(faults)) => Ok(Some(faults)),
            Err(faults) => Err(faults),
        };
        match result {
            Ok(None) => {
                if is_about_tls(key) {
                    self.config_state.forget_unusable();
                }
                let lower = key.to_ascii_lowercase();
                if ["logfile", "log_format", "syslog", "syslog_ident", "syslog_facility"]
                    .contains(&lower.as_str())
                {
                    self.open_log();
                }
                Outcome::Done
            }
            Ok(Some(faults)) => {
                self.log_faults(&faults);
                self.config_state.keep_unusable(key, value);
                Outcome::Noted("TLS settings could not be applied, still using old configuration")
            }
            Err(faults) => {
                self.log_faults(&faults);
                Outcome::Failed(SET_FAILED.to_owned())
            }
        }
    }

    /// Logs the configuration's sources, if there are others than the file and their changes differ from
    /// before.
    fn tell_sources(&self, draft: &Draft) {
        if draft.config().overlay != self.config_state.rules().config.overlay {
            draft.sources().iter().for_each(|line| self.log.write(Level::Log, line));
        }
    }

    /// Does everything that can fail, and then puts the draft into effect everywhere.
    fn put_into_effect(&mut self, draft: Draft) -> Result<(), Vec<String>> {
        let tls = if self.config_state.would_change_tls(&draft) {
            let built = self.fleet.build_tls(&draft.config().main, draft.tls());
            Some(built.map_err(|fault| {
                vec![fault, "TLS configuration could not be reloaded, keeping old configuration".to_owned()]
            })?)
        } else {
            None
        };
        for warning in &draft.warnings {
            self.log.write(Level::Warning, warning);
        }
        self.tell_sources(&draft);
        for name in self.config_state.dropped_by(&draft) {
            let line =
                format!("dropping database '{name}' as it does not exist anymore or inactive auto-database");
            self.log.write(Level::Warning, &line);
        }
        let endpoint = self.config_state.rules().config.main.otlp_endpoint.clone();
        self.config_state.adopt(draft);
        if self.config_state.rules().config.main.otlp_endpoint != endpoint {
            self.follow_traces();
        }
        let rules = self.config_state.rules();
        self.log.set_verbosity(u8::try_from(rules.config.main.verbose).unwrap_or(u8::MAX));
        // TLS comes before the rules: the machines recycle servers when they see the new epoch.
        if let Some(tls) = tls {
            self.fleet.use_tls(tls);
        }
        self.fleet.use_socket_settings(&rules.config.main);
        for number in 0..self.fleet.count() {
            self.fleet.mail(WorkerId(number), Mail::Rules(rules.clone()));
        }
        if let Some(web) = &self.web {
            web.follow(rules.clone());
        }
        self.follow_users();
        self.follow_sources();
        Ok(())
    }

    /// Derives the keys of the users that may log in from now on.
    fn follow_users(&mut self) {
        if let Some(keys) = &mut self.keys {
            keys.follow(self.config_state.rules());
        }
    }

    /// Asks the sources of clusters, uses the virtual address, and shares limits, as the configuration says.
    fn follow_sources(&mut self) {
        if let Some(sources) = &mut self.sources {
            sources.follow(self.config_state.rules());
        }
        if let Some(vip) = &mut self.vip {
            vip.follow(self.config_state.rules());
        }
        if let Some(limits) = &mut self.limits {
            limits.follow(self.config_state.rules());
        }
    }

    #[cfg(any(feature = "traces", test))]
    fn trace(&self, statement: TracedStatement) {
        if let Some(traces) = &self.traces {
            traces.send(statement);
        }
    }

    /// Drops the statement: `follow_traces` has warned that this build sends no spans.
    #[cfg(not(any(feature = "traces", test)))]
    fn trace(&self, _statement: TracedStatement) {}

    /// Sends spans to `otlp_endpoint` from now on.
    #[cfg(any(feature = "traces", test))]
    fn follow_traces(&mut self) {
        let endpoint = self.config_state.rules().config.main.otlp_endpoint.clone();
        if self.traces.is_none() && !endpoint.is_empty() {
            self.traces = Traces::start(self.log.clone(), pgweir_version::VERSION);
        }
        if let Some(traces) = &self.traces {
            traces.follow(&endpoint);
        }
    }

    /// Warns if `otlp_endpoint` is set: this build has no thread that sends spans.
    #[cfg(not(any(feature = "traces", test)))]
    fn follow_traces(&mut self) {
        if !self.config_state.rules().config.main.otlp_endpoint.is_empty() {
            let text = "otlp_endpoint is set, but this pgweir was built without the feature traces: no spans are sent";
            self.log.write(Level::Warning, text);
        }
    }

    fn open_log(&self) {
        let targets = log_targets(&self.config_state.rules().config.main, self.quiet);
        let file = targets.file.clone().unwrap_or_default();
        if let Err(error) = self.log.open(targets) {
            let text =
                format!("could not open log file {}: {error}; the old one stays in use", file.display());
            self.log.write(Level::Error, &text);
        }
    }

    fn shutdown(&mut self, kind: Shutdown) {
        match (kind, &self.web) {
            // The service goes on in another process, so it is not stopping.
            (Shutdown::HandOver, Some(web)) => web.close(),
            (Shutdown::HandOver, None) => {}
            _ => supervisor::tell(&self.log, Notification::Stopping),
        }
        match (kind, &mut self.vip) {
            // The address stays with the machine, for the process that takes over.
            (Shutdown::HandOver, Some(vip)) => vip.leave(),
            (_, Some(vip)) => vip.give_away(),
            (_, None) => {}
        }
        if let (Shutdown::HandOver, Some(limits)) = (kind, &mut self.limits) {
            limits.hand_over();
        }
        self.stopping.begin(kind, self.fleet.count());
        self.mail_all(|| Mail::Shutdown(kind));
    }

    fn mail_all(&self, mail: impl Fn() -> Mail) {
        for number in 0..self.fleet.count() {
            self.fleet.mail(WorkerId(number), mail());
        }
    }

    fn command_all(&self, command: &Command) {
        for number in 0..self.fleet.count() {
            let to = WorkerId(number);
            let command = command.clone();
            self.fleet.mail(to, Mail::Command { from: to, ticket: NO_TICKET, command });
        }
    }

    fn log_faults(&self, faults: &[String]) {
        for fault in faults {
            self.log.write(Level::Error, fault);
        }
    }
}

/// Returns the destinations of log lines in a configuration.
#[must_use]
pub fn log_targets(main: &Main, quiet: bool) -> Targets {
    let file = (!main.logfile.is_empty()).then(|| PathBuf::from(&main.logfile));
    let syslog = main.syslog.then(|| Destination {
        ident: main.syslog_ident.clone(),
        facility: main.syslog_facility.clone(),
        socket: SOCKET.into(),
    });
    Targets { file, stderr: !quiet, calm: false, syslog, format: main.log_format }
}

#[cfg(test)]
mod tests;

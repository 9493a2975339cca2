//! The log, which gets the lines of all planes.
//!
//! A worker must never wait for a disk or a pipe, so [`Log::write`] only puts the finished line into a
//! bounded queue, and one thread writes the queued lines. Before a worker gives clients an answer that a line
//! explains, it gives that thread a moment ([`Log::settle`]). If the queue is full, lines are lost and
//! counted, and the count is logged. Before [`Log::start_writer`] (while the process starts, and in tools)
//! lines are written at once.

mod json;
mod recent;
mod stamp;
pub mod syslog;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use pgweir_core::driver::Level;
use pgweir_settings::LogFormat;

use self::recent::Recent;
pub use self::recent::RecentLine;
use self::stamp::Stamp;
pub use self::stamp::word;

/// The maximum size of the lines in the queue. At 150 bytes a line that is about 28,000 lines.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// The size above which a queue buffer that grew in a burst is returned to the allocator.
const QUEUE_BYTES_KEPT: usize = 64 << 10;

/// The writer's pause after a write in a burst, so that lines collect and a worker need not wake it for each.
const COLLECT_MS: u64 = 5;

/// The number of bytes within [`BURST_MS`] above which it is a burst. Otherwise lines are written as they
/// come: a user who gets an error, and then looks into the log, finds it there.
const BURST_BYTES: usize = 8 << 10;

/// The time over which bytes are counted; see [`BURST_BYTES`].
const BURST_MS: u128 = 100;

/// The time that [`Log::settle`] waits for the writer. If that was not enough, no caller waits until the
/// writer has caught up.
const SETTLE_MS_MAX: u64 = 250;

/// The time that [`Log::flush`] waits for the writer before it gives up.
const FLUSH_MS_MAX: u64 = 2_000;

/// The destinations of lines, and their format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// The file that lines are appended to; `None` means no file.
    pub file: Option<PathBuf>,
    /// `true` if lines go to standard error, too.
    pub stderr: bool,
    /// `true` if only warnings and worse go to standard error until the writer is started: the terminal of a
    /// daemon should show problems, not each step.
    pub calm: bool,
    /// The system's logger, if it gets the lines, too.
    pub syslog: Option<syslog::Destination>,
    /// The format of lines.
    pub format: LogFormat,
}

impl Default for Targets {
    fn default() -> Self {
        Targets { file: None, stderr: false, calm: false, syslog: None, format: LogFormat::Text }
    }
}

/// A handle to the process's log. Clones share it.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    recent: Recent,
    /// The level of detail: 0 up to LOG, 1 also DEBUG, 2 everything.
    verbosity: AtomicU8,
    /// `true` if lines are written anywhere.
    has_target: AtomicBool,
    queue: Mutex<Queue>,
    /// The condition on which the writer waits for lines.
    filled: Condvar,
    /// The condition on which [`Log::flush`] waits for the writer.
    written: Condvar,
    outputs: Mutex<Outputs>,
}

struct Queue {
    lines: Vec<u8>,
    /// The same lines for syslog, if it gets any.
    datagrams: Vec<Vec<u8>>,
    syslog: Option<syslog::Destination>,
    lost: u64,
    /// The number of batches that the writer has taken from the queue. `written` is the number of those that
    /// it has written.
    taken: u64,
    written: u64,
    /// The batch for which a worker has waited in vain. No worker waits again before it is written.
    late: u64,
    stamp: Stamp,
    format: LogFormat,
    writer: Writer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// There is no thread: the thread that logs writes the line.
    None,
    /// The writer waits on `filled` and has to be woken.
    Waiting,
    /// The writer is writing, and will check the queue again by itself.
    Awake,
    /// The writer pauses in a burst, and will check the queue again by itself.
    Pausing,
}

/// The opened destinations.
#[derive(Default)]
struct Outputs {
    targets: Targets,
    file: Option<File>,
    logger: syslog::Sender,
    /// `true` if the file could not be written. This is reported once, until a write succeeds again.
    failing: bool,
}

impl Log {
    /// Creates a log that writes to standard error only, at once.
    #[must_use]
    pub fn to_stderr() -> Log {
        let queue = Queue {
            lines: Vec::new(),
            datagrams: Vec::new(),
            syslog: None,
            lost: 0,
            taken: 0,
            written: 0,
            late: 0,
            stamp: Stamp::local(std::process::id()),
            format: LogFormat::Text,
            writer: Writer::None,
        };
        let outputs =
            Outputs { targets: Targets { stderr: true, ..Targets::default() }, ..Outputs::default() };
        Log {
            shared: Arc::new(Shared {
                recent: Recent::default(),
                verbosity: AtomicU8::new(0),
                has_target: AtomicBool::new(true),
                queue: Mutex::new(queue),
                filled: Condvar::new(),
                written: Condvar::new(),
                outputs: Mutex::new(outputs),
            }),
        }
    }

    /// Sets the levels that are written: 0 up to LOG, 1 also DEBUG, 2 or more also NOISE.
    pub fn set_verbosity(&self, verbosity: u8) {
        self.shared.verbosity.store(verbosity, Ordering::Relaxed);
    }

    /// Returns whether lines of this level are written at all.
    #[must_use]
    pub fn wants(&self, level: Level) -> bool {
        let needed = match level {
            Level::Fatal | Level::Error | Level::Warning | Level::Log => 0,
            Level::Debug => 1,
            Level::Noise => 2,
        };
        self.shared.verbosity.load(Ordering::Relaxed) >= needed
    }

    /// Returns whether a line of this level can be read anywhere: in a file, or on the dashboard.
    #[must_use]
    pub fn reaches_anybody(&self, level: Level) -> bool {
        (self.shared.recent.keeps(level) || self.shared.has_target.load(Ordering::Relaxed))
            && self.wants(level)
    }

    /// Writes one line. While the writer runs, this returns at once; if the queue is full, the line is lost
    /// and counted. After a line of level FATAL the process is about to end, so the call waits until that
    /// line is written.
    pub fn write(&self, level: Level, message: &str) {
        if !self.wants(level) {
            return;
        }
        self.shared.recent.note(level, message);
        if self.shared.has_target.load(Ordering::Relaxed) {
            self.queue_line(level, message);
        }
        if level == Level::Fatal {
            self.flush();
        }
    }

    fn queue_line(&self, level: Level, message: &str) {
        let mut queue = self.shared.queue();
        queue.push(level, message);
        match queue.writer {
            Writer::Awake | Writer::Pausing => {}
            Writer::Waiting => {
                queue.writer = Writer::Awake;
                drop(queue);
                self.shared.filled.notify_one();
            }
            Writer::None => {
                let mut batch = queue.take();
                // The queue stays locked, so that lines keep their order.
                let mut outputs = self.shared.outputs();
                // Levels are in order of importance: those above `Warning` are less important.
                let calm = outputs.targets.calm && level > Level::Warning;
                outputs.write(&batch, !calm);
                batch.clear();
                queue.lines = batch.lines;
            }
        }
    }

    /// Opens the destinations, or opens them again (log rotation), and reads the time zone again. Earlier
    /// lines still go to the old destinations. On an error everything stays as it was.
    ///
    /// # Errors
    ///
    /// The file cannot be opened for appending.
    pub fn open(&self, targets: Targets) -> io::Result<()> {
        self.flush();
        let file = targets.file.as_deref().map(open_for_append).transpose()?;
        let zone = Stamp::local(std::process::id());
        let (syslog, format) = (targets.syslog.clone(), targets.format);
        let has_target = targets.file.is_some() || targets.stderr || targets.syslog.is_some();
        *self.shared.outputs() = Outputs { targets, file, ..Outputs::default() };
        let mut queue = self.shared.queue();
        queue.stamp = zone;
        queue.syslog = syslog;
        queue.format = format;
        self.shared.has_target.store(has_target, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a moment, in seconds since 1970, as local time with its zone, in the form of the log's own
    /// lines.
    #[must_use]
    pub fn moment(&self, seconds: u64) -> String {
        self.shared.queue().stamp.moment(seconds)
    }

    /// Starts the writer thread. Call it once, after the process has become a daemon (a thread does not
    /// survive a fork).
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start_writer(&self) -> io::Result<()> {
        {
            let mut queue = self.shared.queue();
            queue.stamp = Stamp::local(std::process::id());
            queue.writer = Writer::Awake;
        }
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new().name("log".into()).spawn(move || shared.write_out());
        if let Err(error) = started {
            self.shared.queue().writer = Writer::None;
            return Err(error);
        }
        Ok(())
    }

    /// Keeps the last lines of level LOG besides the last warnings and errors, for readers of the dashboard.
    pub fn keep_usual(&self) {
        self.shared.recent.keep_usual();
    }

    /// Returns the last lines down to `level`, LOG or WARNING, whose number is above `after`, the newest first.
    #[must_use]
    pub fn recent(&self, level: Level, after: u64) -> Vec<RecentLine> {
        self.shared.recent.lines(level, after)
    }

    /// Gives the writer a moment to write the lines so far, so that a client that is told of an event finds
    /// its line in the log. In a burst, and while the writer is late, the call returns at once.
    pub fn settle(&self) {
        let queue = self.shared.queue();
        let is_settling = |queue: &Queue| matches!(queue.writer, Writer::Waiting | Writer::Awake);
        if !is_settling(&queue) || queue.written < queue.late {
            return;
        }
        let batch = queue.taken + u64::from(!queue.lines.is_empty());
        let timeout = Duration::from_millis(SETTLE_MS_MAX);
        let is_due = |queue: &mut Queue| queue.written < batch && is_settling(queue);
        let waited = self.shared.written.wait_timeout_while(queue, timeout, is_due);
        let (mut queue, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            queue.late = batch;
        }
    }

    /// Waits until all lines so far are written, for two seconds at most. It is for the end of the process.
    pub fn flush(&self) {
        let queue = self.shared.queue();
        if queue.writer == Writer::None {
            return;
        }
        let batch = queue.taken + u64::from(!queue.lines.is_empty());
        let timeout = Duration::from_millis(FLUSH_MS_MAX);
        let _unused = self.shared.written.wait_timeout_while(queue, timeout, |queue| queue.written < batch);
    }
}

impl Shared {
    // If a thread panicked while it held one of these locks, at most its own line is incomplete, so the
    // others go on.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outputs(&self) -> MutexGuard<'_, Outputs> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the writer thread.
    fn write_out(&self) {
        let mut batch = Batch::default();
        let (mut since, mut bytes) = (Instant::now(), 0);
        loop {
            self.take_lines(&mut batch);
            self.outputs().write(&batch, true);
            if since.elapsed().as_millis() > BURST_MS {
                (since, bytes) = (Instant::now(), 0);
            }
            bytes += batch.lines.len();
            batch.clear();
            let is_burst = bytes > BURST_BYTES;
            {
                let mut queue = self.queue();
                queue.written += 1;
                if is_burst {
                    queue.writer = Writer::Pausing;
                }
            }
            self.written.notify_all();
            if is_burst {
                thread::sleep(Duration::from_millis(COLLECT_MS));
            }
        }
    }

    /// Waits for lines and swaps them with the empty buffers of `into`.
    fn take_lines(&self, into: &mut Batch) {
        let mut queue = self.queue();
        while queue.lines.is_empty() {
            queue.writer = Writer::Waiting;
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.writer = Writer::Awake;
        queue.taken += 1;
        std::mem::swap(&mut queue.lines, &mut into.lines);
        std::mem::swap(&mut queue.datagrams, &mut into.datagrams);
        if queue.lost > 0 {
            let text =
                format!("{} log lines were lost: they came faster than they could be written", queue.lost);
            queue.lost = 0;
            queue.write_line(SystemTime::now(), Level::Warning, &text, &mut into.lines);
        }
    }
}

impl Queue {
    fn push(&mut self, level: Level, message: &str) {
        // Once a line is lost, all are lost until the writer comes, so that the count is logged at the place
        // of the gap.
        if self.lost > 0 || self.lines.len() + message.len() > QUEUE_BYTES_MAX {
            self.lost += 1;
            return;
        }
        let at = SystemTime::now();
        let mut lines = std::mem::take(&mut self.lines);
        self.write_line(at, level, message, &mut lines);
        self.lines = lines;
        if let Some(syslog) = &self.syslog {
            let pid = std::process::id();
            let datagram = match self.format {
                LogFormat::Text => syslog.datagram(level, pid, message),
                LogFormat::Json => {
                    syslog.datagram(level, pid, &json::object(&mut self.stamp, at, level, message))
                }
            };
            self.datagrams.extend(datagram);
        }
    }

    fn write_line(&mut self, at: SystemTime, level: Level, message: &str, out: &mut Vec<u8>) {
        match self.format {
            LogFormat::Text => self.stamp.write_line(at, level, message, out),
            LogFormat::Json => {
                out.extend_from_slice(json::object(&mut self.stamp, at, level, message).as_bytes());
                out.push(b'\n');
            }
        }
    }

    fn take(&mut self) -> Batch {
        Batch { lines: std::mem::take(&mut self.lines), datagrams: std::mem::take(&mut self.datagrams) }
    }
}

/// The lines that are written together.
#[derive(Default)]
struct Batch {
    lines: Vec<u8>,
    datagrams: Vec<Vec<u8>>,
}

impl Batch {
    fn clear(&mut self) {
        self.lines.clear();
        self.lines.shrink_to(QUEUE_BYTES_KEPT);
        self.datagrams.clear();
    }
}

impl Outputs {
    fn write(&mut self, batch: &Batch, to_terminal: bool) {
        let lines = &batch.lines[..];
        if let Some(destination) = &self.targets.syslog {
            for datagram in &batch.datagrams {
                // Without a logger the lines are lost, as with syslog(3). The file has them.
                let _ = self.logger.send(&destination.socket, datagram);
            }
        }
        if let Some(file) = &mut self.file {
            match file.write_all(lines) {
                Ok(()) => self.failing = false,
                Err(error) if !self.failing => {
                    self.failing = true;
                    let path = self.targets.file.as_deref().unwrap_or(Path::new("?"));
                    // If this fails, too, there is no place left to report it.
                    let _ = writeln!(io::stderr(), "could not write log file {}: {error}", path.display());
                }
                Err(_) => {}
            }
        }
        if self.targets.stderr && to_terminal {
            let _ = io::stderr().write_all(lines);
        }
    }
}

/// Returns the longest beginning of `message` that has at most `bytes_max` bytes and ends between two
/// characters.
fn beginning(message: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
    &message[..end]
}

fn open_for_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn file_log(path: &Path) -> Log {
        let log = Log::to_stderr();
        log.open(Targets { file: Some(path.into()), ..Targets::default() }).expect("opens");
        log
    }

    fn messages(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).expect("readable");
        text.lines().map(|line| line.split("] ").nth(1).unwrap_or(line).to_owned()).collect()
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        for (message, kept) in
            [("", ""), ("abc", "abc"), ("abcd", "abcd"), ("abcde", "abcd"), ("abcé", "abc"), ("€€", "€")]
        {
            assert_eq!(beginning(message, 4), kept, "{message}");
        }
    }

    #[test]
    fn levels_follow_verbosity() {
        let scratch = Scratch::new("log-levels");
        let path = scratch.path("log");
        let log = file_log(&path);
        for (verbosity, level) in [
            (0, Level::Log),
            (0, Level::Debug),
            (1, Level::Debug),
            (1, Level::Noise),
            (2, Level::Noise),
            (0, Level::Fatal),
        ] {
            log.set_verbosity(verbosity);
            log.write(level, &format!("at {verbosity}"));
        }
        assert_eq!(messages(&path), ["LOG at 0", "DEBUG at 1", "NOISE at 2", "FATAL at 0"]);
    }

    #[test]
    fn the_writer_keeps_order_and_flush_waits_for_it() {
        let scratch = Scratch::new("log-writer");
        let path = scratch.path("log");
        let log = file_log(&path);
        log.write(Level::Log, "before");
        log.start_writer().expect("a thread");
        for turn in 0..3 {
            for line in 0..100 {
                log.write(Level::Log, &format!("{turn} {line}"));
            }
            log.flush();
            assert_eq!(messages(&path).len(), 1 + (turn + 1) * 100);
        }
        let expected = (0..3).flat_map(|turn| (0..100).map(move |line| format!("LOG {turn} {line}")));
        assert!(messages(&path).into_iter().skip(1).eq(expected));
    }

    #[test]
    fn a_fatal_line_is_written_before_the_call_returns() {
        let scratch = Scratch::new("log-fatal");
        let path = scratch.path("log");
        let log = file_log(&path);
        log.start_writer().expect("a thread");
        for turn in 1..20 {
            log.write(Level::Log, "usual");
            log.write(Level::Fatal, "the end");
            assert_eq!(messages(&path).len(), turn * 2);
        }
    }

    #[test]
    fn a_full_queue_loses_lines_and_says_how_many() {
        let mut queue = Queue {
            lines: vec![b'x'; QUEUE_BYTES_MAX],
            datagrams: Vec::new(),
            syslog: None,
            lost: 0,
            taken: 0,
            written: 0,
            late: 0,
            stamp: Stamp::local(1),
            format: LogFormat::Text,
            writer: Writer::Awake,
        };
        queue.push(Level::Log, "lost");
        queue.push(Level::Log, "lost too");
        assert_eq!((queue.lines.len(), queue.lost), (QUEUE_BYTES_MAX, 2));

        let log = Log::to_stderr();
        *log.shared.queue() = queue;
        let mut taken = Batch::default();
        log.shared.take_lines(&mut taken);
        let text = String::from_utf8(taken.lines.split_off(QUEUE_BYTES_MAX)).expect("text");
        assert!(text.contains("WARNING 2 log lines were lost"), "{text}");
        assert_eq!(log.shared.queue().lost, 0);
    }

    #[test]
    fn syslog_gets_the_messages_alone() {
        let scratch = Scratch::new("log-syslog");
        let socket = scratch.path("dev-log");
        let logger = std::os::unix::net::UnixDatagram::bind(&socket).expect("can listen");
        let log = Log::to_stderr();
        let destination = |ident: &str| {
            Some(syslog::Destination {
                ident: ident.into(),
                facility: "local0".into(),
                socket: socket.clone(),
            })
        };
        log.open(Targets { syslog: destination("one"), ..Targets::default() }).expect("opens");
        log.start_writer().expect("a thread");
        log.set_verbosity(2);
        log.write(Level::Debug, "never here");
        log.write(Level::Log, "first");
        log.open(Targets { syslog: destination("two"), ..Targets::default() }).expect("opens");
        log.write(Level::Error, "second");
        log.flush();
        log.open(Targets::default()).expect("opens");
        log.write(Level::Error, "off");
        log.flush();
        logger.set_nonblocking(true).expect("can");
        let mut buffer = [0; 64];
        let mut next =
            || logger.recv(&mut buffer).ok().map(|got| String::from_utf8_lossy(&buffer[..got]).into_owned());
        let pid = std::process::id();
        assert_eq!(next(), Some(format!("<134>one[{pid}]: first")));
        assert_eq!(next(), Some(format!("<131>two[{pid}]: second")));
        assert_eq!(next(), None);
    }

    #[test]
    fn json_goes_to_file_and_syslog_and_a_reload_changes_it() {
        let scratch = Scratch::new("log-json");
        let (path, socket) = (scratch.path("log"), scratch.path("dev-log"));
        let logger = std::os::unix::net::UnixDatagram::bind(&socket).expect("can listen");
        let log = Log::to_stderr();
        let destination = syslog::Destination { ident: "one".into(), facility: "local0".into(), socket };
        let json = Targets {
            file: Some(path.clone()),
            syslog: Some(destination),
            format: LogFormat::Json,
            ..Targets::default()
        };
        log.open(json).expect("opens");
        log.write(Level::Warning, "two\nlines");
        log.open(Targets { file: Some(path.clone()), ..Targets::default() }).expect("opens");
        log.write(Level::Log, "text");
        let text = std::fs::read_to_string(&path).expect("readable");
        let (first, second) = text.split_once('\n').expect("two lines");
        let object: serde_json::Value = serde_json::from_str(first).expect("an object");
        assert_eq!((&object["level"], &object["message"]), (&"WARNING".into(), &"two\nlines".into()));
        assert!(second.ends_with("LOG text\n"), "{second}");
        let mut buffer = [0; 512];
        let got = logger.recv(&mut buffer).expect("a line");
        let datagram = String::from_utf8_lossy(&buffer[..got]);
        assert_eq!(datagram, format!("<132>one[{}]: {first}", std::process::id()));
    }

    #[test]
    fn opening_again_follows_a_rotated_file() {
        let scratch = Scratch::new("log-rotate");
        let (path, rotated) = (scratch.path("log"), scratch.path("log.1"));
        let log = file_log(&path);
        log.write(Level::Log, "first");
        std::fs::rename(&path, &rotated).expect("renames");
        log.write(Level::Log, "still the old file");
        log.open(Targets { file: Some(path.clone()), ..Targets::default() }).expect("opens");
        log.write(Level::Log, "second");
        assert_eq!(messages(&rotated), ["LOG first", "LOG still the old file"]);
        assert_eq!(messages(&path), ["LOG second"]);
    }

    #[test]
    fn a_target_that_cannot_be_opened_leaves_the_old_one() {
        let scratch = Scratch::new("log-keep");
        let path = scratch.path("log");
        let log = file_log(&path);
        let nowhere = scratch.path("no/such/folder/log");
        assert!(log.open(Targets { file: Some(nowhere), ..Targets::default() }).is_err());
        log.write(Level::Log, "here");
        assert_eq!(messages(&path), ["LOG here"]);
    }
}

//! Clients that keep books: each knows what became of each of its changes, as far as it was told. In the end their books are
//! compared with what the database has.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pgweir_client::{Client, Login, ServerError};

/// What a client's table is made by.
pub(super) const TABLE: &str = "CREATE TABLE ledger (client int, n int); CREATE INDEX ON ledger (client, n)";
/// Clients think: what is shown is not how fast it goes.
const PAUSE: Duration = Duration::from_millis(10);
/// After an error that says nothing of how long to wait.
const RETRY: Duration = Duration::from_millis(100);

/// What a client was told of one of its changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// COMMIT succeeded.
    Committed,
    /// It was rolled back, or never begun: 40001, 57P03.
    RolledBack,
    /// It is not known: 08007.
    Unknown,
    /// 57P01: PostgreSQL ended the connection.
    Ended,
    /// Another error, or the connection just ended.
    Broken,
}

/// Something that a client waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// A read of a client's own changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) at: Instant,
    /// The port of the server that answered.
    pub(super) port: u16,
    /// It did not show the last change that was acknowledged before.
    pub(super) is_behind: bool,
}

/// The books of one client.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// By the number of its change.
    pub(super) changes: Vec<Told>,
    /// The longest wait for the first answer of a transaction, or for a login.
    pub(super) longest: Option<Wait>,
    /// What it read meanwhile, on a connection for reading.
    pub(super) reads: Vec<Read>,
    /// Texts of errors of which nothing follows.
    pub(super) errors: Vec<String>,
}

/// Clients at work: each has a thread that changes and one that reads. Dropping it lets them end by themselves.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<(JoinHandle<Book>, JoinHandle<Book>)>,
}

impl Load {
    /// Starts so many clients; they change through one login, and read through another.
    pub(super) fn start(clients: u32, login: &Login, read_login: &Login) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |number: u32| {
            let last = Arc::new(AtomicUsize::new(NONE));
            let run = |login: &Login, step: Step| {
                let (stop, last, login) = (Arc::clone(&stop), Arc::clone(&last), login.clone());
                thread::spawn(move || Worker { number, login, last, book: Book::default() }.run(&stop, step))
            };
            (run(login, Worker::change), run(read_login, Worker::read))
        };
        Load { clients: (1..=clients).map(start).collect(), stop }
    }

    /// Lets each client end its transaction; gives their books.
    pub(super) fn end(mut self) -> Vec<Book> {
        self.stop.store(true, Ordering::Relaxed);
        let books = self.clients.drain(..).filter_map(|(changes, reads)| {
            let (mut book, read) = (changes.join().ok()?, reads.join().ok()?);
            book.reads = read.reads;
            book.errors.extend(read.errors);
            Some(book)
        });
        books.collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What a thread does again and again; false: its connection is not used again.
type Step = fn(&mut Worker, &mut Client) -> bool;

/// No change was acknowledged yet.
const NONE: usize = usize::MAX;

struct Worker {
    number: u32,
    login: Login,
    /// The client's last change that was acknowledged.
    last: Arc<AtomicUsize>,
    book: Book,
}

impl Worker {
    fn run(mut self, stop: &AtomicBool, step: Step) -> Book {
        let mut client = None;
        while !stop.load(Ordering::Relaxed) {
            let Some(mut connected) = client.take().or_else(|| self.log_in()) else {
                thread::sleep(RETRY);
                continue;
            };
            if step(&mut self, &mut connected) {
                client = Some(connected);
                thread::sleep(PAUSE);
            }
        }
        self.book
    }

    fn log_in(&mut self) -> Option<Client> {
        let from = Instant::now();
        let client = Client::log_in(&self.login);
        match client {
            Ok(client) => {
                self.waited(from);
                Some(client)
            }
            Err(error) => {
                self.note(&error);
                None
            }
        }
    }

    /// One transaction that adds a line to the ledger.
    fn change(&mut self, client: &mut Client) -> bool {
        let n = self.book.changes.len();
        let from = Instant::now();
        let insert = format!("INSERT INTO ledger VALUES ({}, {n})", self.number);
        let begun = client.query("BEGIN").and_then(|_| client.query(&insert));
        if begun.is_ok() {
            self.waited(from);
        }
        let told = match begun.and_then(|_| client.query("COMMIT")) {
            Ok(_) => Told::Committed,
            Err(error) => match ServerError::of(&error).map(|error| error.code.as_str()) {
                Some("40001" | "57P03") => Told::RolledBack,
                Some("08007") => Told::Unknown,
                Some("57P01") => Told::Ended,
                _ => {
                    self.note(&error);
                    Told::Broken
                }
            },
        };
        if told == Told::Committed {
            self.last.store(n, Ordering::Release);
        }
        self.book.changes.push(told);
        told == Told::Committed
    }

    /// Reads the client's last change.
    fn read(&mut self, client: &mut Client) -> bool {
        let last = self.last.load(Ordering::Acquire);
        let question = format!(
            "SELECT coalesce(max(n), -1), inet_server_port() FROM ledger WHERE client = {}",
            self.number
        );
        let rows = match client.query(&question) {
            Ok(rows) => rows,
            Err(error) => {
                self.note(&error);
                return false;
            }
        };
        let cell = |at: usize| rows.first().and_then(|row| row.get(at));
        let seen = cell(0).and_then(|n| n.parse::<usize>().ok());
        let port = cell(1).and_then(|port| port.parse().ok()).unwrap_or(0);
        self.book.reads.push(Read { at: Instant::now(), port, is_behind: last != NONE && seen < Some(last) });
        true
    }

    fn waited(&mut self, from: Instant) {
        let wait = Wait { from, to: Instant::now() };
        if self.book.longest.is_none_or(|longest| longest.duration() < wait.duration()) {
            self.book.longest = Some(wait);
        }
    }

    fn note(&mut self, error: &io::Error) {
        self.book.errors.push(error.to_string());
    }
}

impl Wait {
    pub(super) fn duration(&self) -> Duration {
        self.to - self.from
    }
}

/// What became of changes of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Found {
    pub(super) changes: u64,
    /// The database has them.
    pub(super) there: u64,
    /// The database has them more than once.
    pub(super) doubled: u64,
}

/// What became of the changes of all clients, by what they were told. `rows`: client, number, how often it is there.
pub(super) fn compare(books: &[Book], rows: &[Vec<String>]) -> HashMap<&'static str, Found> {
    let number = |row: &[String], at: usize| row.get(at).and_then(|text| text.parse::<usize>().ok());
    let there: HashMap<(usize, usize), usize> =
        rows.iter().filter_map(|row| Some(((number(row, 0)?, number(row, 1)?), number(row, 2)?))).collect();
    let mut found: HashMap<&'static str, Found> = HashMap::new();
    for (client, book) in (1..).zip(books) {
        for (n, told) in book.changes.iter().enumerate() {
            let one = found.entry(told.name()).or_default();
            let times = there.get(&(client, n)).copied().unwrap_or(0);
            one.changes += 1;
            one.there += u64::from(times > 0);
            one.doubled += u64::from(times > 1);
        }
    }
    found
}

impl Told {
    pub(super) fn name(self) -> &'static str {
        match self {
            Told::Committed => "committed",
            Told::RolledBack => "rolled back",
            Told::Unknown => "unknown",
            Told::Ended => "ended",
            Told::Broken => "broken",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_are_compared_with_the_database() {
        let book = |changes: &[Told]| Book { changes: changes.to_vec(), ..Book::default() };
        let books = [
            book(&[Told::Committed, Told::Unknown, Told::Committed]),
            book(&[Told::RolledBack, Told::Unknown, Told::Committed]),
        ];
        let rows =
            [["1", "0", "1"], ["1", "1", "1"], ["2", "2", "2"]].map(|row| row.map(str::to_owned).to_vec());
        let found = compare(&books, &rows);
        assert_eq!(found["committed"], Found { changes: 3, there: 2, doubled: 1 });
        assert_eq!(found["unknown"], Found { changes: 2, there: 1, doubled: 0 });
        assert_eq!(found["rolled back"], Found { changes: 1, there: 0, doubled: 0 });
    }
}

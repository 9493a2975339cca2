//! NOTIFY and LISTEN of the whole model: what was sent in which order, which clients must hear it, and which heard it.
//!
//! A client must hear what it would hear on a direct connection: everything that is committed from the commit of its
//! LISTEN to its UNLISTEN, once, and on each channel in the order of the commits. Around both ends what is under way may be
//! heard or not; so may be what a server that listened already was not told of before, as its transaction was open
//! (`asyncQueueReadAllNotifications` of PostgreSQL: the channels are compared when the queue is read). (Between channels the order may differ while one of them is being joined.)

use std::collections::{BTreeMap, BTreeSet};

/// A notification that was committed.
#[derive(Clone, Debug)]
pub struct Notification {
    /// The database of the notification.
    pub database: String,
    /// The channel of the notification.
    pub channel: String,
    /// Names the statement that sent it; no other has the same.
    pub payload: String,
    /// The process that sent it.
    pub pid: usize,
    at_us: u64,
}

/// A time in which a client listens to a channel: numbers of notifications.
#[derive(Debug)]
struct Span {
    channel: String,
    from: usize,
    from_us: u64,
    /// The first that its server had not read when it was committed.
    unread: usize,
    /// The place at which the client's UNLISTEN was committed.
    to: Option<(usize, u64)>,
    /// The place at which the client was told of that.
    told: Option<usize>,
}

#[derive(Debug, Default)]
struct Listener {
    database: String,
    spans: Vec<Span>,
    /// By channel: the first notification that has not been judged yet.
    next: BTreeMap<String, usize>,
}

/// See the module's head.
#[derive(Default)]
pub struct NotifyCheck {
    /// The notifications, in the order of their commits.
    pub board: Vec<Notification>,
    listeners: BTreeMap<u32, Listener>,
}

/// The maximum time that a notification may take.
const UNDER_WAY_US: u64 = 2_000_000;

impl NotifyCheck {
    /// A notification is committed.
    pub fn sent(&mut self, now_us: u64, notification: (&str, &str, &str), pid: usize) {
        let (database, channel, payload) = notification;
        self.board.push(Notification {
            database: database.to_owned(),
            channel: channel.to_owned(),
            payload: payload.to_owned(),
            pid,
            at_us: now_us,
        });
    }

    /// A client's LISTEN is committed, by a server that has read the notifications before `unread`.
    pub fn listens(&mut self, now_us: u64, client: u32, database: &str, channel: &str, unread: usize) {
        let from = self.board.len();
        let listener = self.listeners.entry(client).or_default();
        database.clone_into(&mut listener.database);
        let channel = channel.to_owned();
        let span = Span { channel, from, from_us: now_us, unread, to: None, told: None };
        listener.spans.push(span);
    }

    /// A client's UNLISTEN is committed.
    pub fn leaves(&mut self, now_us: u64, client: u32, channel: &str) {
        let to = (self.board.len(), now_us);
        let Some(listener) = self.listeners.get_mut(&client) else { return };
        let spans = listener.spans.iter_mut().filter(|span| span.channel == channel && span.to.is_none());
        spans.for_each(|span| span.to = Some(to));
    }

    /// A client was told that its transaction is over, and it listens to these now, as far as it knows.
    pub fn told(&mut self, client: u32, channels: &BTreeSet<String>) {
        let Some(listener) = self.listeners.get_mut(&client) else { return };
        let ended = |span: &&mut Span| span.to.is_some() && span.told.is_none();
        let spans = listener.spans.iter_mut().filter(ended);
        for span in spans.filter(|span| !channels.contains(&span.channel)) {
            span.told = Some(self.board.len());
        }
    }

    /// A client has left.
    pub fn left(&mut self, client: u32) {
        self.listeners.remove(&client);
    }

    /// A client is told of a notification; whose it was, where it had to be told (not around the ends of its listening).
    ///
    /// # Errors
    /// Why it must not be told so.
    pub fn heard(&mut self, client: u32, channel: &str, payload: &str) -> Result<Option<u32>, String> {
        let Some(listener) = self.listeners.get(&client) else {
            return Err(format!("told of \"{payload}\" on {channel}, and never listened"));
        };
        let serial = self.board.iter().rposition(|notification| notification.payload == payload);
        let Some(serial) = serial else { return Err(format!("told of \"{payload}\", which no client sent")) };
        let notification = &self.board[serial];
        if notification.channel != channel || notification.database != listener.database {
            return Err(format!("told of \"{payload}\" on {channel}: it is {notification:?}"));
        }
        if serial < listener.next.get(channel).copied().unwrap_or_default() {
            return Err(format!("told of \"{payload}\" twice, or out of order"));
        }
        if !listener.spans.iter().any(|span| span.allows(serial, notification)) {
            return Err(format!("told of \"{payload}\" on {channel}, and does not listen there"));
        }
        if let Some(lost) = self.owed(listener, channel, serial) {
            return Err(format!("told of \"{payload}\" and not of \"{lost}\" before it"));
        }
        let had_to_be = listener.spans.iter().any(|span| span.demands(serial, notification));
        let sender = payload.strip_prefix("c=").and_then(|rest| rest.split(' ').next()?.parse().ok());
        if let Some(listener) = self.listeners.get_mut(&client) {
            listener.next.insert(channel.to_owned(), serial + 1);
        }
        Ok(sender.filter(|_| had_to_be))
    }

    /// The first notification that a client must be told of and was not.
    #[must_use]
    pub fn missing(&self, client: u32) -> Option<&str> {
        let listener = self.listeners.get(&client)?;
        let channels: BTreeSet<&str> = listener.spans.iter().map(|span| span.channel.as_str()).collect();
        channels.into_iter().find_map(|channel| self.owed(listener, channel, self.board.len()))
    }

    /// A client listens to something, or did.
    #[must_use]
    pub fn has_listened(&self, client: u32) -> bool {
        self.listeners.contains_key(&client)
    }

    /// Returns the time at which the last notification was committed.
    #[must_use]
    pub fn last_us(&self) -> u64 {
        self.board.last().map_or(0, |notification| notification.at_us)
    }

    fn owed(&self, listener: &Listener, channel: &str, upto: usize) -> Option<&str> {
        let next = listener.next.get(channel).copied().unwrap_or_default();
        let owed = self.board.get(next..upto)?.iter().enumerate().find(|(at, notification)| {
            let here = notification.channel == channel && notification.database == listener.database;
            here && listener.spans.iter().any(|span| span.demands(next + at, notification))
        });
        owed.map(|(_, notification)| notification.payload.as_str())
    }
}

impl Span {
    fn demands(&self, serial: usize, notification: &Notification) -> bool {
        let ended =
            self.to.is_some_and(|(to, to_us)| serial >= to || notification.at_us + UNDER_WAY_US >= to_us);
        self.channel == notification.channel && serial >= self.from && !ended
    }

    fn allows(&self, serial: usize, notification: &Notification) -> bool {
        let begun = serial >= self.from.min(self.unread) || notification.at_us + UNDER_WAY_US >= self.from_us;
        self.channel == notification.channel && begun && self.told.is_none_or(|told| serial < told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Client 1 listens to `a`; four notifications follow, two of them there.
    fn notify_check() -> NotifyCheck {
        let mut notify_check = NotifyCheck::default();
        notify_check.listens(10_000_000, 1, "db", "a", 0);
        for (number, channel) in ["a", "b", "a", "a"].iter().enumerate() {
            notify_check.sent(20_000_000, ("db", channel, &format!("c=2 n={number}")), 5);
        }
        notify_check
    }

    #[test]
    fn everything_is_heard_once_and_in_order() {
        let mut good = notify_check();
        for number in [0, 2, 3] {
            assert_eq!(good.heard(1, "a", &format!("c=2 n={number}")), Ok(Some(2)));
        }
        assert_eq!(good.missing(1), None);
        assert!(good.heard(1, "a", "c=2 n=3").is_err(), "twice");
        assert!(good.heard(1, "a", "c=2 n=0").is_err(), "out of order");
        let mut lossy = notify_check();
        assert_eq!(lossy.missing(1), Some("c=2 n=0"));
        assert!(lossy.heard(1, "a", "c=2 n=2").is_err(), "n=0 is lost");
        assert!(notify_check().heard(1, "b", "c=2 n=1").is_err(), "not its channel");
        assert!(notify_check().heard(1, "a", "c=2 n=1").is_err(), "on another channel");
        assert!(notify_check().heard(1, "a", "c=9 n=1").is_err(), "no client sent it");
        assert!(notify_check().heard(3, "a", "c=2 n=0").is_err(), "it never listened");
    }

    #[test]
    fn a_client_that_was_told_that_it_listens_no_more_hears_nothing_more() {
        let mut late = notify_check();
        late.leaves(21_000_000, 1, "a");
        late.sent(21_000_001, ("db", "a", "c=2 n=9"), 5);
        assert_eq!(late.missing(1), None, "they were under way");
        assert_eq!(late.heard(1, "a", "c=2 n=9"), Ok(None), "it has not been told yet");
        late.told(1, &BTreeSet::new());
        late.sent(21_000_002, ("db", "a", "c=2 n=10"), 5);
        assert!(late.heard(1, "a", "c=2 n=10").is_err());
    }

    #[test]
    fn what_was_sent_long_before_is_not_heard() {
        let mut notify_check = NotifyCheck::default();
        notify_check.sent(1, ("db", "a", "c=2 n=1"), 5);
        notify_check.sent(5_000_000, ("db", "a", "c=2 n=2"), 5);
        notify_check.listens(5_000_001, 1, "db", "a", 2);
        assert!(notify_check.heard(1, "a", "c=2 n=1").is_err());
        assert!(notify_check.heard(1, "a", "c=2 n=2").is_ok());
    }

    #[test]
    fn what_its_server_had_not_read_may_be_heard() {
        for (unread, may) in [(0, true), (1, true), (2, false)] {
            let mut notify_check = NotifyCheck::default();
            notify_check.sent(1, ("db", "b", "c=2 n=1"), 5);
            notify_check.sent(2, ("db", "a", "c=2 n=2"), 5);
            notify_check.listens(5_000_001, 1, "db", "a", unread);
            assert_eq!(notify_check.heard(1, "a", "c=2 n=2").is_ok(), may, "unread from {unread}");
            assert_eq!(notify_check.missing(1), None);
        }
    }
}

//! Answers that are kept until PostgreSQL says that a table has changed (`follow=wal`). One worker reads the changes of a database from a
//! replication stream (`worker/subscriptions`), and tells all workers what it learns, in order ([`News`]). Each worker decides by that which
//! answers it keeps and gives. Values only: this room sends nothing.

pub(crate) mod analyses;
pub(crate) mod catalog;
pub(crate) mod changes;
pub(crate) mod decoder;
pub(crate) mod node;
pub(crate) mod probes;
pub(crate) mod reads;
pub(crate) mod row_key;
pub(crate) mod stamp;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::STAMPS_KEPT;
use crate::pool::cache::capture::SentAt;
use crate::pool::cache::wal::analyses::Analyses;
use crate::pool::cache::wal::catalog::Catalog;
use crate::pool::cache::wal::changes::{Changes, Seen, StampNumber, Touched};
use crate::pool::cache::wal::node::Node;
use crate::pool::cache::wal::probes::Fresh;
use crate::pool::cache::wal::reads::Subject;
use crate::pool::cache::wal::stamp::Stamp;
use crate::stats::obstacle::KeptUntil;

/// The news that the worker which follows a database tells all workers. The order counts: a probe's stamp comes before its confirmation, and a
/// transaction before the confirmation of a probe whose position is after it.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// The stream has begun. No answer may be kept yet.
    Began(Began),
    /// The database's catalog, which is another one than before. Everything that was kept under the earlier one is void.
    Catalog(Arc<Catalog>),
    /// The database's definitions were looked at when this was the state of the changes through pgweir.
    Looked(ChangesMade),
    /// The number identifies everything that is kept from now on: answers may be kept and given.
    Opened(u64),
    /// The settings with which connections begin have changed: answers of servers that have logged in before are not kept.
    Settings,
    /// No answer may be kept or given, for this reason, until [`News::Opened`]. The stream goes on.
    Closed(Arc<str>),
    /// The stream has ended, or has not begun: the state, and the reason.
    Ended(&'static str, Arc<str>),
    /// A probe was answered.
    Stamp(StampNumber, Arc<Stamp>),
    /// A committed transaction was received: its number, and what it has changed.
    Changed(u64, Arc<[(u32, Touched)]>),
    /// A probe was confirmed; and the number of bytes of the log that are not read yet.
    Fresh(Fresh, u64),
}

/// The beginning of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Began {
    /// The number of the last probe that was sent, which rises before a probe is sent.
    pub(crate) probes_sent: Arc<AtomicU64>,
    /// The PostgreSQL server and database, by which other connections are compared.
    pub(crate) node: Node,
}

/// The changes of objects, rights and roles that were made through pgweir, as numbers that rise with each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct ChangesMade {
    /// The value of [`Shared::age`](crate::shared::Shared::age).
    pub(crate) age: u64,
    /// The value of [`Shared::changes`](crate::shared::Shared::changes).
    pub(crate) changes: u64,
}

/// The databases that are followed, as one worker knows them.
#[derive(Default)]
pub(crate) struct FollowedDatabases {
    databases: HashMap<Arc<str>, Following>,
}

/// The state of a database, for SHOW CACHE.
pub(crate) struct Following {
    /// The state in a word.
    pub(crate) state: &'static str,
    /// The reason of the state; empty if answers are kept.
    pub(crate) reason: Arc<str>,
    /// The time since which the state lasts (monotonic, µs).
    pub(crate) since_us: u64,
    /// Answers of servers that were dialed before this time are not kept (monotonic, µs).
    pub(crate) servers_from_us: u64,
    stream: Option<Box<Followed>>,
}

/// A worker's knowledge of a stream that goes on.
pub(crate) struct Followed {
    began: Began,
    catalog: Arc<Catalog>,
    /// The number of [`News::Opened`]; `None` if answers may not be kept or given.
    opened: Option<u64>,
    /// The time at which this worker learned of it (monotonic, µs).
    opened_us: u64,
    /// The last stamps, with the times at which this worker learned of them (monotonic, µs), the newest last.
    stamps: VecDeque<(u64, StampNumber, Arc<Stamp>)>,
    changes: Changes,
    fresh: Option<Fresh>,
    pub(crate) lag_bytes: u64,
    /// The changes through pgweir after which the definitions were last looked at; `None` if they were not.
    looked: Option<ChangesMade>,
    /// The number of times that the definitions were looked at.
    looks: u64,
    pub(crate) analyses: Analyses,
    /// Whether this worker has asked for a probe since the last one was answered.
    wants_probe: bool,
}

/// The progress of a stream, as a worker knows it at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    /// The number of the last probe that was sent.
    probe: u64,
    /// The number of times that the definitions were looked at.
    looks: u64,
}

/// The basis of an answer on its way: what must hold for the answer to be kept.
pub(crate) struct Fill {
    opened: u64,
    stamp: (StampNumber, Arc<Stamp>),
    subject: Subject,
}

/// The conditions under which a kept answer may be given.
pub(crate) struct Dependence {
    opened: u64,
    subject: Subject,
    /// The changes that were received when the answer was kept.
    changes: Seen,
    /// The number of the last probe that was sent before the answer was kept. A client that was given the answer needs a newer one.
    seen: u64,
}

/// The reason why an answer that is kept is not given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stale {
    /// The database is not followed, or is followed again from the start.
    NotFollowed,
    /// A table was changed. The answer is of no use to anybody.
    Changed,
    /// The row that the answer depends on was changed, or all rows of its table.
    RowChanged,
    /// Whether a table was changed lately is not known yet.
    NotFresh,
}

impl FollowedDatabases {
    /// Takes news of a database.
    pub(crate) fn take(&mut self, database: &Arc<str>, news: &News, now_us: u64) {
        let following = self.databases.entry(Arc::clone(database)).or_insert_with(|| Following {
            state: "",
            reason: "".into(),
            since_us: now_us,
            servers_from_us: 0,
            stream: None,
        });
        let (state, reason) = match news {
            News::Began(began) => {
                following.stream = Some(Box::new(Followed::new(began.clone())));
                return;
            }
            News::Ended(state, reason) => {
                following.stream = None;
                (*state, Arc::clone(reason))
            }
            News::Closed(reason) => ("opening", Arc::clone(reason)),
            News::Settings => {
                following.servers_from_us = now_us;
                return;
            }
            News::Opened(_) => ("following", "".into()),
            _ => (following.state, Arc::clone(&following.reason)),
        };
        if state != following.state {
            following.since_us = now_us;
        }
        (following.state, following.reason) = (state, reason);
        if let Some(stream) = &mut following.stream {
            stream.take(news, now_us);
        }
    }

    /// Forgets what statements depend on: the sessions of clients get other numbers from now on.
    pub(crate) fn forget_analyses(&mut self) {
        let streams = self.databases.values_mut().filter_map(|following| following.stream.as_deref_mut());
        streams.for_each(|stream| stream.analyses = Analyses::default());
    }

    /// Returns the state of a database; `None` if nothing was told of it.
    pub(crate) fn state(&self, database: &str) -> Option<&Following> {
        self.databases.get(database)
    }

    /// Returns the time before which servers of a database were dialed whose answers are not kept (monotonic, µs).
    pub(crate) fn servers_from_us(&self, database: &str) -> u64 {
        self.databases.get(database).map_or(0, |following| following.servers_from_us)
    }

    /// Returns the number of bytes that keys take which no answer has.
    pub(crate) fn key_bytes(&self) -> usize {
        let streams = self.databases.values().filter_map(Following::stream);
        streams.map(|stream| stream.changes.key_bytes()).sum()
    }

    /// Returns the stream of a database, if its answers may be kept and given.
    pub(crate) fn opened(&mut self, database: &str) -> Option<&mut Followed> {
        let stream = self.databases.get_mut(database)?.stream.as_deref_mut()?;
        stream.opened.is_some().then_some(stream)
    }
}

impl Following {
    /// Returns the stream, if it goes on.
    pub(crate) fn stream(&self) -> Option<&Followed> {
        self.stream.as_deref()
    }
}

impl Followed {
    fn new(began: Began) -> Followed {
        Followed {
            began,
            catalog: Arc::default(),
            opened: None,
            opened_us: 0,
            stamps: VecDeque::new(),
            changes: Changes::default(),
            fresh: None,
            lag_bytes: 0,
            looked: None,
            looks: 0,
            analyses: Analyses::default(),
            wants_probe: false,
        }
    }

    fn take(&mut self, news: &News, now_us: u64) {
        match news {
            News::Catalog(catalog) => {
                self.opened = None;
                self.catalog = Arc::clone(catalog);
                self.analyses = Analyses::default();
            }
            News::Opened(number) => (self.opened, self.opened_us) = (Some(*number), now_us),
            News::Closed(_) => self.opened = None,
            News::Looked(changes) => {
                self.looked = Some(*changes);
                self.looks += 1;
            }
            News::Stamp(number, stamp) => {
                self.changes.settle(*number, stamp);
                if self.stamps.len() >= STAMPS_KEPT {
                    self.stamps.pop_front();
                }
                self.stamps.push_back((now_us, *number, Arc::clone(stamp)));
                self.wants_probe = false;
            }
            News::Changed(xid, touched) => {
                let last = self.stamps.back().map(|(_, number, stamp)| (*number, &**stamp));
                self.changes.receive(*xid, touched, last);
            }
            News::Fresh(fresh, lag_bytes) => (self.fresh, self.lag_bytes) = (Some(*fresh), *lag_bytes),
            News::Began(_) | News::Settings | News::Ended(..) => {}
        }
    }

    /// Returns the number that identifies what is kept now.
    pub(crate) fn number(&self) -> Option<u64> {
        self.opened
    }

    /// Returns the catalog.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns the PostgreSQL server and database that is followed.
    pub(crate) fn node(&self) -> Node {
        self.began.node
    }

    /// Returns the number of the last probe that was sent. What a client was told before this call is confirmed by each later probe.
    pub(crate) fn last_probe(&self) -> u64 {
        self.began.probes_sent.load(Ordering::SeqCst)
    }

    /// Notes that a client asks for answers. Returns `true` if a probe is to be asked for.
    pub(crate) fn wants_probe(&mut self) -> bool {
        !std::mem::replace(&mut self.wants_probe, true)
    }

    /// Returns the basis for the answer to a statement that depends on this subject; `None` if there is none.
    pub(crate) fn fill(&self, sent: SentAt, subject: Subject) -> Option<Fill> {
        // After a change through pgweir, the tables of the statement may be others. They are known when the definitions were looked at again.
        self.looked.filter(|looked| *looked == sent.changes_made())?;
        // What was learned in the tick in which the statement was sent may have been learned after it.
        let opened = self.opened.filter(|_| self.opened_us < sent.at_us)?;
        let (_, number, stamp) = self.stamps.iter().rfind(|(learned_us, ..)| *learned_us < sent.at_us)?;
        Some(Fill { opened, stamp: (*number, Arc::clone(stamp)), subject })
    }

    /// Returns what an answer depends on that is whole now and is to be kept; `None` if it must not be kept.
    pub(crate) fn admit(&mut self, fill: &Fill) -> Option<Dependence> {
        let (number, stamp) = &fill.stamp;
        if self.opened != Some(fill.opened) {
            return None;
        }
        let changes = self.changes.admit(&fill.subject, (*number, stamp))?;
        Some(Dependence {
            opened: fill.opened,
            subject: fill.subject.clone(),
            changes,
            seen: self.last_probe(),
        })
    }

    /// Checks whether a kept answer may be given at `now_us`. `max_age_us` is the time by which the answer may be behind, and `seen` the number
    /// of a probe: the client may have seen what was visible when it was sent, and must not see less.
    pub(crate) fn check(
        &self,
        kept: &Dependence,
        seen: u64,
        (now_us, max_age_us): (u64, u64),
    ) -> Result<Fresh, Stale> {
        self.check_changes(kept)?;
        let is_fresh =
            |fresh: &Fresh| fresh.number.0 > seen && now_us.saturating_sub(fresh.at_us) <= max_age_us;
        self.fresh.filter(is_fresh).ok_or(Stale::NotFresh)
    }

    /// Checks whether a kept answer counts by all that was received.
    pub(crate) fn check_changes(&self, kept: &Dependence) -> Result<(), Stale> {
        match () {
            () if self.opened != Some(kept.opened) => Err(Stale::NotFollowed),
            () if self.changes.is_unchanged(&kept.subject, &kept.changes) => Ok(()),
            () if kept.is_by_key() => Err(Stale::RowChanged),
            () => Err(Stale::Changed),
        }
    }

    /// Returns the progress of the stream.
    pub(crate) fn progress(&self) -> Progress {
        Progress { probe: self.last_probe(), looks: self.looks }
    }

    /// Whether all changes are received, and all changes of definitions known, that were made before the stream had this progress.
    pub(crate) fn is_past(&self, progress: Progress) -> bool {
        let is_received = self.fresh.is_some_and(|fresh| fresh.number.0 > progress.probe);
        // The first look may have been on its way to this worker, and PostgreSQL may have begun the second before: the third one began later.
        is_received && self.looks >= progress.looks + 3
    }
}

impl Fill {
    /// Returns the number of bytes that the value takes besides its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.subject.bytes()
    }
}

impl Dependence {
    /// Returns the number of a probe: a client that was given this answer needs a newer one.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns what ends the answer.
    pub(crate) fn kept_until(&self) -> KeptUntil {
        if self.is_by_key() { KeptUntil::RowChanges } else { KeptUntil::AgeOrTables }
    }

    /// Whether the answer depends on one row, so that changes of other rows leave it.
    fn is_by_key(&self) -> bool {
        matches!(self.subject, Subject::Row(..))
    }

    /// Returns the number of bytes that the value takes besides its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.subject.bytes()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod stream_messages;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1000;
    const AGE: u64 = 100;

    fn tell(followed: &mut FollowedDatabases, news: &[News], now_us: u64) {
        news.iter().for_each(|news| followed.take(&"db".into(), news, now_us));
    }

    fn begin() -> News {
        News::Began(Began {
            probes_sent: Arc::default(),
            node: Node { started_us: 1, system: 2, database: 3 },
        })
    }

    fn probe(number: u64) -> [News; 2] {
        let stamp = Stamp::parse(b"10:10:").expect("it is a snapshot");
        let fresh = Fresh { number: StampNumber(number), at_us: NOW };
        [News::Stamp(StampNumber(number), Arc::new(stamp)), News::Fresh(fresh, 0)]
    }

    fn opened() -> FollowedDatabases {
        let mut followed = FollowedDatabases::default();
        tell(&mut followed, &[begin(), News::Looked(ChangesMade::default()), News::Opened(1)], NOW);
        tell(&mut followed, &probe(1), NOW);
        followed
    }

    fn all(table: u32) -> Subject {
        Subject::Tables([table].into())
    }

    fn sent(at_us: u64) -> SentAt {
        SentAt { at_us, age: 0, changes: 0 }
    }

    fn kept(followed: &mut FollowedDatabases) -> (Fill, Dependence) {
        let stream = followed.opened("db").expect("it is open");
        let fill = stream.fill(sent(NOW + 1), all(5)).expect("there is a stamp");
        let dependence = stream.admit(&fill).expect("nothing has changed");
        (fill, dependence)
    }

    fn check(followed: &mut FollowedDatabases, kept: &Dependence) -> Result<(), Stale> {
        let stream = followed.opened("db").ok_or(Stale::NotFollowed)?;
        stream.check(kept, 0, (NOW + 2, AGE)).map(|_| ())
    }

    #[test]
    fn an_answer_is_given_until_its_table_changes() {
        let mut followed = opened();
        let (_, kept) = kept(&mut followed);
        assert_eq!(check(&mut followed, &kept), Ok(()));
        tell(&mut followed, &[News::Changed(11, [(6, Touched::All)].into())], NOW);
        assert_eq!(check(&mut followed, &kept), Ok(()), "another table");
        tell(&mut followed, &[News::Changed(12, [(5, Touched::All)].into())], NOW);
        assert_eq!(check(&mut followed, &kept), Err(Stale::Changed));
    }

    #[test]
    fn nothing_is_kept_across_a_gap() {
        let mut followed = opened();
        let (fill, kept) = kept(&mut followed);
        tell(&mut followed, &[News::Ended("off", "the connection ended".into())], NOW);
        assert_eq!(check(&mut followed, &kept), Err(Stale::NotFollowed));
        tell(&mut followed, &[begin(), News::Opened(2)], NOW);
        tell(&mut followed, &probe(2), NOW);
        assert_eq!(check(&mut followed, &kept), Err(Stale::NotFollowed));
        let stream = followed.opened("db").expect("it is open");
        assert!(stream.admit(&fill).is_none());
    }

    #[test]
    fn nothing_is_kept_across_a_change_of_definitions() {
        for change in [News::Catalog(Arc::default()), News::Closed("definitions have changed".into())] {
            let mut followed = opened();
            let (fill, kept) = kept(&mut followed);
            tell(&mut followed, &[change], NOW);
            assert!(followed.opened("db").is_none());
            tell(&mut followed, &[News::Opened(2)], NOW);
            assert_eq!(check(&mut followed, &kept), Err(Stale::NotFollowed));
            let stream = followed.opened("db").expect("it is open");
            assert!(stream.admit(&fill).is_none());
            assert!(stream.fill(sent(NOW), all(5)).is_none(), "it was sent in the tick of the opening");
        }
    }

    #[test]
    fn after_a_change_through_the_pooler_nothing_is_kept_before_definitions_were_looked_at() {
        let mut followed = opened();
        let changed = SentAt { changes: 1, ..sent(NOW + 1) };
        let stream = followed.opened("db").expect("it is open");
        assert!(stream.fill(changed, all(5)).is_none());
        tell(&mut followed, &[News::Looked(changed.changes_made())], NOW);
        let stream = followed.opened("db").expect("it is open");
        assert!(stream.fill(changed, all(5)).is_some());
        assert!(stream.fill(sent(NOW + 1), all(5)).is_none(), "it was sent before the change");
    }

    #[test]
    fn servers_of_before_a_change_of_settings_stay_so_when_the_stream_begins_again() {
        let mut followed = opened();
        tell(&mut followed, &[News::Settings], NOW + 5);
        tell(&mut followed, &[News::Ended("off", "the connection ended".into()), begin()], NOW + 9);
        assert_eq!(followed.state("db").map(|state| state.servers_from_us), Some(NOW + 5));
    }

    #[test]
    fn an_answer_must_be_fresh_for_its_client() {
        let mut followed = opened();
        let (_, kept) = kept(&mut followed);
        let stream = followed.opened("db").expect("it is open");
        assert!(stream.check(&kept, 0, (NOW + AGE, AGE)).is_ok());
        assert_eq!(stream.check(&kept, 0, (NOW + AGE + 1, AGE)), Err(Stale::NotFresh));
        assert_eq!(stream.check(&kept, 1, (NOW, AGE)), Err(Stale::NotFresh), "the client has seen more");
    }
}

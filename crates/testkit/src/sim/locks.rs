//! Advisory locks of the model PostgreSQL, of all its processes: which process has which, and which wait. Each node has its own locks:
//! a standby knows nothing of its primary's.

use std::collections::BTreeMap;

/// A node and a database of it, as [`Locks`] tells them apart.
type Place<'a> = (usize, &'a str);

/// Node, database and key.
type Key = (usize, String, u64);

/// The answer to a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The process has it.
    Got,
    /// Another one has it.
    Held,
    /// The process that has it waits for this process.
    Deadlock,
}

/// See the module's head.
#[derive(Default)]
pub struct Locks {
    /// The process that has it, and how often.
    held: BTreeMap<Key, (usize, u32)>,
    /// The processes that wait, with the lock that each waits for; the longest wait first.
    waiting: Vec<(usize, Key)>,
}

impl Locks {
    /// A process asks for a lock. If it is held and the process `waits`, it does so from here on.
    pub fn ask(&mut self, pid: usize, (node, database): Place<'_>, key: u64, waits: bool) -> Answer {
        let key = (node, database.to_owned(), key);
        if !self.is_anothers(pid, &key) {
            self.held.entry(key).or_insert((pid, 0)).1 += 1;
            self.withdraw(pid);
            return Answer::Got;
        }
        if waits && self.closes_circle(pid, &key) {
            self.withdraw(pid);
            return Answer::Deadlock;
        }
        if waits && !self.waiting.iter().any(|(other, _)| *other == pid) {
            self.waiting.push((pid, key));
        }
        Answer::Held
    }

    fn is_anothers(&self, pid: usize, key: &Key) -> bool {
        self.held.get(key).is_some_and(|(holder, _)| *holder != pid)
    }

    fn closes_circle(&self, pid: usize, key: &Key) -> bool {
        let mut wanted = key.clone();
        // No longer than there are processes that wait.
        for _ in 0..=self.waiting.len() {
            let Some((holder, _)) = self.held.get(&wanted) else { return false };
            if *holder == pid {
                return true;
            }
            let Some((_, next)) = self.waiting.iter().find(|(other, _)| other == holder) else {
                return false;
            };
            wanted.clone_from(next);
        }
        false
    }

    /// A process gives a lock up, once.
    pub fn give_up(&mut self, pid: usize, (node, database): Place<'_>, key: u64) {
        let key = (node, database.to_owned(), key);
        if let Some((holder, times)) = self.held.get_mut(&key)
            && *holder == pid
        {
            *times -= 1;
            if *times == 0 {
                self.held.remove(&key);
            }
        }
    }

    /// A process waits no longer.
    pub fn withdraw(&mut self, pid: usize) {
        self.waiting.retain(|(other, _)| *other != pid);
    }

    /// A process has ended.
    pub fn ended(&mut self, pid: usize) {
        self.withdraw(pid);
        self.held.retain(|_, (holder, _)| *holder != pid);
    }

    /// The process that has waited longest for a lock that no process has.
    #[must_use]
    pub fn next(&self) -> Option<usize> {
        let mut waiting = self.waiting.iter();
        waiting.find(|(pid, key)| !self.is_anothers(*pid, key)).map(|(pid, _)| *pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_and_is_given_up_as_often_as_it_was_taken() {
        let mut locks = Locks::default();
        assert_eq!(locks.ask(1, (0, "a"), 7, true), Answer::Got);
        assert_eq!(locks.ask(1, (0, "a"), 7, true), Answer::Got);
        assert_eq!(locks.ask(2, (0, "b"), 7, true), Answer::Got, "another database");
        assert_eq!(locks.ask(2, (1, "a"), 7, true), Answer::Got, "another node");
        assert_eq!(locks.ask(2, (0, "a"), 7, false), Answer::Held);
        assert_eq!(locks.ask(3, (0, "a"), 7, true), Answer::Held);
        locks.give_up(1, (0, "a"), 7);
        assert_eq!(locks.next(), None);
        locks.give_up(1, (0, "a"), 7);
        assert_eq!(locks.next(), Some(3));
        assert_eq!(locks.ask(3, (0, "a"), 7, true), Answer::Got);
        assert_eq!(locks.next(), None);
    }

    #[test]
    fn a_circle_of_waiters_is_seen_by_the_last_of_them() {
        let mut locks = Locks::default();
        for (pid, key) in [(1, 1), (2, 2), (3, 3)] {
            assert_eq!(locks.ask(pid, (0, "a"), key, true), Answer::Got);
        }
        assert_eq!(locks.ask(1, (0, "a"), 2, true), Answer::Held);
        assert_eq!(locks.ask(2, (0, "a"), 3, true), Answer::Held);
        assert_eq!(locks.ask(3, (0, "a"), 1, true), Answer::Deadlock);
        locks.ended(3);
        assert_eq!(locks.next(), Some(2));
    }
}

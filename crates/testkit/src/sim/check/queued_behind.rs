//! The clients queued behind a server's statement: it was sent their statements and has not begun with them. Told from the bytes alone, which name their
//! client wherever a statement is executed.

use std::collections::BTreeSet;

use crate::sim::network::proto::Splitter;

/// See the module's head.
#[derive(Default, Debug, PartialEq, Eq)]
pub(in crate::sim) struct QueuedBehind {
    clients: BTreeSet<u32>,
    /// `true` if a group names no client, or has not named it yet.
    strangers: bool,
}

impl QueuedBehind {
    /// Looks at what a server has not begun with, which begins with a message.
    pub(in crate::sim) fn read(bytes: &[u8]) -> Self {
        let mut splitter = Splitter::default();
        splitter.push(bytes);
        let (mut queued_behind, mut group) = (QueuedBehind::default(), Vec::new());
        while let Ok(Some(message)) = splitter.message() {
            group.extend_from_slice(&message.body);
            if matches!(message.tag, b'Q' | b'S' | b'F') {
                queued_behind.note(&std::mem::take(&mut group));
            }
        }
        group.extend_from_slice(splitter.rest());
        if !group.is_empty() {
            queued_behind.note(&group);
        }
        queued_behind
    }

    fn note(&mut self, group: &[u8]) {
        let text = String::from_utf8_lossy(group);
        let named = text.split("c=").skip(1).filter_map(|text| text.split_once(" n=")?.0.parse().ok());
        let named: Vec<u32> = named.collect();
        self.strangers |= named.is_empty();
        self.clients.extend(named);
    }

    /// Returns whether this client may be queued, as far as can be told.
    pub(in crate::sim) fn may_have(&self, client: u32) -> bool {
        self.strangers || self.clients.contains(&client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::client::message::{bind, execute, parse, query, sync};
    use crate::sim::network::proto::Message;

    fn bytes(messages: &[Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        bytes
    }

    #[test]
    fn clients_are_known_by_what_they_execute() {
        let group =
            [parse("", "SELECT who($1) /*t=4*/"), bind("", "", &["c=12 n=3".to_owned()]), execute("", 0)];
        let all = bytes(&[&[query("SELECT who /*c=3 n=1*/")], &group[..], &[sync()]].concat());
        let queued_behind = QueuedBehind::read(&all);
        assert!(
            queued_behind.may_have(3)
                && queued_behind.may_have(12)
                && !queued_behind.may_have(1)
                && !queued_behind.may_have(2)
        );
        assert_eq!(QueuedBehind::read(b""), QueuedBehind::default());
    }

    #[test]
    fn a_statement_without_a_client_may_be_any_clients() {
        let unnamed = bytes(&[parse("s1", "SELECT who($1) /*t=4*/"), sync()]);
        assert!(QueuedBehind::read(&unnamed).may_have(7));
        assert!(QueuedBehind::read(&bytes(&[query("SELECT who /*c=3 n=1*/")])[..9]).may_have(7));
    }
}

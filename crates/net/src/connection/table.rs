//! The table of connections: a slot for each, with ids that have generations.

use mio::Token;
use pgweir_core::driver::ConnId;

use crate::connection::conn::{Conn, Dialing, Lingering};

/// The number of generations. [`Token`]s above it are not connections.
const GENERATIONS: u32 = 1 << 31;
/// The token of the worker's own wake-up.
pub(crate) const WAKER: Token = Token(usize::MAX);
/// The bits of a listener's token, to which its number is added.
const LISTENER_BITS: u64 = (GENERATIONS as u64) << 32;

const _: () = assert!(size_of::<usize>() == 8, "a token carries index and generation");

/// The source of an event, as its token says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A message for this worker.
    Waker,
    /// A listener, by its place in the worker's list.
    Listener(usize),
    /// A connection.
    Conn(ConnId),
}

/// The content of a slot.
pub(crate) enum State {
    /// No connection.
    Free,
    /// A server connection that is being opened.
    Dialing(Dialing),
    /// A connection that the machine knows.
    Open(Conn),
    /// A connection that the machine has closed and that still has something to send.
    Lingering(Lingering),
}

struct Slot {
    generation: u32,
    state: State,
}

/// All connections of a worker.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Table {
    pub(crate) fn insert(&mut self, state: State) -> ConnId {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.state = state;
            return ConnId { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).expect("descriptors run out before 2^32 connections");
        self.slots.push(Slot { generation: 0, state });
        ConnId { index, generation: 0 }
    }

    /// Empties a slot. The id is invalid from then on.
    pub(crate) fn remove(&mut self, id: ConnId) -> State {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return State::Free };
        if slot.generation != id.generation || matches!(slot.state, State::Free) {
            return State::Free;
        }
        // Events and requests for the old connection find no match from now on.
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.push(id.index);
        std::mem::replace(&mut slot.state, State::Free)
    }

    pub(crate) fn state(&mut self, id: ConnId) -> Option<&mut State> {
        let slot = self.slots.get_mut(id.index as usize)?;
        (slot.generation == id.generation).then_some(&mut slot.state)
    }

    /// Returns the connection, if the machine may still use its id.
    pub(crate) fn open(&mut self, id: ConnId) -> Option<&mut Conn> {
        match self.state(id)? {
            State::Open(conn) => Some(conn),
            _ => None,
        }
    }

    /// Returns the connection like [`Table::open`], but shared.
    pub(crate) fn peek(&self, id: ConnId) -> Option<&Conn> {
        match self.slots.get(id.index as usize)? {
            Slot { generation, state: State::Open(conn) } if *generation == id.generation => Some(conn),
            _ => None,
        }
    }

    /// Returns the connection, also while it lingers.
    pub(crate) fn any(&mut self, id: ConnId) -> Option<&mut Conn> {
        match self.state(id)? {
            State::Open(conn) => Some(conn),
            State::Lingering(lingering) => Some(&mut lingering.conn),
            _ => None,
        }
    }

    /// Returns the number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Returns the token under which the poll reports a connection.
pub(crate) fn token(id: ConnId) -> Token {
    Token(usize::try_from(u64::from(id.generation) << 32 | u64::from(id.index)).expect("64 bits"))
}

/// Returns the token under which the poll reports a listener.
pub(crate) fn listener_token(number: usize) -> Token {
    Token(usize::try_from(LISTENER_BITS).expect("64 bits") | number)
}

pub(crate) fn source(token: Token) -> Source {
    if token == WAKER {
        return Source::Waker;
    }
    let bits = token.0 as u64;
    if bits & LISTENER_BITS != 0 {
        return Source::Listener(usize::try_from(bits & !LISTENER_BITS).expect("64 bits"));
    }
    let halves = (u32::try_from(bits & 0xffff_ffff), u32::try_from(bits >> 32));
    let (Ok(index), Ok(generation)) = halves else { unreachable!("both halves have 32 bits") };
    Source::Conn(ConnId { index, generation })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialing() -> State {
        State::Dialing(Dialing::Resolving)
    }

    #[test]
    fn a_stale_name_does_not_reach_the_slots_next_owner() {
        let mut table = Table::default();
        let first = table.insert(dialing());
        assert!(matches!(table.remove(first), State::Dialing(_)));
        let second = table.insert(dialing());
        assert_eq!(first.index, second.index);
        assert!(table.state(first).is_none());
        assert!(matches!(table.remove(first), State::Free));
        assert!(matches!(table.state(second), Some(State::Dialing(_))));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn tokens_and_sources_agree() {
        let id = ConnId { index: u32::MAX, generation: GENERATIONS - 1 };
        assert_eq!(source(token(id)), Source::Conn(id));
        assert_eq!(source(listener_token(7)), Source::Listener(7));
        assert_eq!(source(WAKER), Source::Waker);
    }

    #[test]
    fn an_idle_plain_connection_is_small() {
        let slot = size_of::<Slot>();
        assert!(slot <= 104, "a slot takes {slot} bytes");
    }
}

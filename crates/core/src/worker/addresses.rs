//! The virtual address has left this process, or is about to leave it: clients that came by it are told to connect again. This file must
//! not decide when that is so.

use std::net::IpAddr;

use crate::context::Cx;
use crate::driver::{Driver, Peer};
use crate::errors::Fault;
use crate::ids::{ClientId, UnpooledId};
use crate::worker::Worker;
use crate::worker::unpooled::UnpooledState;

impl Peer {
    /// Whether the client has connected to this address of the machine.
    fn came_by(&self, address: IpAddr) -> bool {
        // A listener at [::] shows IPv4 addresses as IPv6 ones.
        matches!(self, Peer::Tcp { local, .. } if local.ip().to_canonical() == address.to_canonical())
    }
}

impl Worker {
    /// Ends the clients that came by this address: no packet of theirs reaches this process any more. Their open transactions are rolled
    /// back.
    pub(crate) fn end_clients_of_address<D: Driver>(&mut self, cx: &mut Cx<'_, D>, address: IpAddr) {
        // A cancel request goes on, and a client that was refused has its error already.
        let is_over =
            |state: &UnpooledState| matches!(state, UnpooledState::Cancelling(_) | UnpooledState::Refused(_));
        let of_address = self
            .unpooled
            .iter()
            .filter(|(_, client)| !is_over(&client.state) && client.origin.peer.came_by(address));
        let unpooled: Vec<UnpooledId> = of_address.map(|(id, _)| id).collect();
        for id in unpooled {
            self.refuse_unpooled(cx, id, &Fault::AddressMoved);
        }
        self.for_pools(cx, |pool, cx| {
            // A client that has departed is not read from any more; what it sent ahead of its Terminate runs.
            let of_address = pool
                .clients
                .iter()
                .filter(|(_, client)| !client.departed && client.origin.peer.came_by(address));
            let clients: Vec<ClientId> = of_address.map(|(id, _)| id).collect();
            for id in clients {
                pool.refuse_client(cx, id, &Fault::AddressMoved);
            }
        });
        cx.env.shared.note_address_left();
    }
}

//! A client's first try with `route=auto`: a group at a standby that runs on the primary if the standby does not run it. What it is, and
//! how its client leaves the standby for the primary. `second_try.rs` says when.

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::{ClientState, First, Request};
use crate::pool::cluster::route::Asked;
use crate::pool::multiplex::held::{HeldBack, Unshown};
use crate::pool::relay::attempt::KeptFor;
use crate::pool::{Branch, Pool};
use crate::stats::rare_path::RarePath;

/// The progress of a client's group that runs on the primary if its standby does not run it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum FirstTry {
    /// The client has no such group, or the standby has run it.
    #[default]
    None,
    /// The group was not sent yet. The number is its length in bytes, at the front of the client's inbox.
    Unsent(u32),
    /// The group is being sent, message by message.
    Sending,
    /// The group was sent, and the client has received nothing of its answer.
    Unshown,
    /// The group has failed at the standby. It runs on the primary after the standby has answered all of it.
    Failed,
    /// The client's transaction has read at the standby and ends there. The next group begins it on the primary.
    Left,
}

impl Pool {
    /// Begins the first try of a client that was linked to a server of a standby. Returns `false` if the client's group may not run
    /// on the primary instead.
    pub(crate) fn begin_first_try(&mut self, env: &Env, id: ClientId) -> bool {
        self.begins_to_see(env, id);
        let Some(client) = self.clients.get_mut(id) else { return false };
        let len = match client.account.routing.as_deref().map(|routing| routing.asked) {
            Some(Asked::Read(group)) => group.len,
            Some(Asked::Transaction(group)) => group.len,
            Some(Asked::Other | Asked::Change) | None => return false,
        };
        let branch = client.account.branch;
        let ClientState::Linked(link) = &mut client.state else { return false };
        self.state.note_try(branch);
        let Some(server) = self.servers.get_mut(link.server) else { return false };
        if !server.attempt.is_for(KeptFor::QUEUED) {
            link.first_try = FirstTry::Unsent(len);
            return true;
        }
        // It was queued behind other clients: its group was sent.
        link.first_try = FirstTry::Unshown;
        server.attempt.keep_for(KeptFor::STANDBY);
        if server.pipelined.held().is_none() {
            server.pipelined.hold(Some(HeldBack::Unshown(Unshown::default())));
        }
        true
    }

    /// Returns the progress of the first try of this server's client.
    pub(crate) fn first_try_at(&self, id: ServerId) -> FirstTry {
        let client = self.servers.get(id).and_then(|server| server.state.client());
        match client.and_then(|client| self.clients.get(client)).map(|client| &client.state) {
            Some(ClientState::Linked(link)) => link.first_try,
            _ => FirstTry::None,
        }
    }

    /// Linked → Waiting: nothing of a first try was shown, and it runs on the primary. The caller sees to the server. `false`: it is no
    /// first try, or it runs.
    pub(crate) fn goes_to_primary<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
    ) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Linked(link) = &client.state else { return false };
        if link.first_try == FirstTry::None {
            return false;
        }
        if let Some(server) = self.servers.get_mut(server_id).filter(|server| server.attempt.holds_later()) {
            server.attempt.take_back(&mut client.inbox, &mut cx.env.buffers);
        }
        self.wait_at_primary(cx, id);
        if let Some(server) = self.servers.get_mut(server_id) {
            server.pipelined.hold(None);
            (server.work.query_us, server.work.xact_us) = (0, 0);
        }
        true
    }

    /// Makes the client wait for the primary with its group, ahead of everything that it sent later.
    pub(crate) fn wait_at_primary<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let first = First::of_begin(self.take_begin(id));
        let Some(client) = self.clients.get_mut(id) else { return };
        let account = &mut client.account;
        let has_left = matches!(&client.state, ClientState::Linked(link) if link.first_try == FirstTry::Left);
        if has_left {
            // What it sent last, not what its transaction has read.
            account.request = Request::new(cx.env);
            cx.driver.reached(RarePath::LeftStandby);
        } else {
            self.state.note_second_try(account.branch);
            cx.driver.reached(RarePath::SecondTry);
            cx.log(Level::Debug, "a read that a standby did not run runs on the primary");
        }
        account.branch = Branch::PRIMARY;
        account.forget_asked();
        if let Some(must_see) = account.must_see.as_deref_mut() {
            must_see.is_sent_to_primary(cx.env.now.mono_us);
        }
        self.requeue(cx, id, first);
    }

    /// A linked client keeps its server although the answer to its first exchange has begun: the exchange is not sent again, and what the
    /// client has sent after it goes on.
    #[cold]
    pub(crate) fn drop_attempt(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        let Some(server) = self.servers.get_mut(link.server) else { return };
        if !server.attempt.holds_later() {
            return;
        }
        server.attempt.end(false, &mut env.buffers);
        if !client.inbox.is_empty() {
            self.state.due.to_resume.push_back(id);
        }
    }
}

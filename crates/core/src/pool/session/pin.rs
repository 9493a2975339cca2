//! Clients that keep their server when their transaction is over.

use crate::context::Cx;
use crate::context::duration_us;
use crate::driver::{Driver, Level};
use crate::errors::Fault;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::sequences::state::Drawing;
use crate::pool::session::pins::{Pin, Reasons};

impl Pool {
    /// Notes the reasons for which the client keeps its server; without a reason it no longer keeps the server. If the client must not keep
    /// a server, this returns a fault: the client must leave, as a pinned client, and its state on the server is cleared.
    pub(crate) fn set_pin<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        reasons: Reasons,
    ) -> Result<(), Fault> {
        let now_us = cx.env.now.mono_us;
        let Some(client) = self.clients.get_mut(id) else { return Ok(()) };
        let ClientState::Linked(link) = &mut client.state else { return Ok(()) };
        let pool = &mut self.state;
        match &mut link.pin {
            Some(pin) if !reasons.is_none() => pin.reasons = reasons,
            Some(_) => {
                link.pin = None;
                pool.count.pinned -= 1;
            }
            None if reasons.is_none() => {}
            None => {
                link.pin = Some(Box::new(Pin { reasons, since_us: now_us, logged: false }));
                if !reasons.has(Reasons::SEQUENCES) {
                    // Its next transaction is another one.
                    link.drawing = Drawing::Nothing;
                }
                pool.count.pinned += 1;
                pool.numbers.continuity.pins += 1;
                let limit = cx.env.rules.config.main.max_pinned;
                if pool.policy.refuses_pins() {
                    return Err(Fault::CanNotMove(reasons.text()));
                }
                if limit > 0 && pool.count.pinned > limit {
                    return Err(Fault::TooManyPinned(reasons.text()));
                }
                let line = format!(
                    "{} keeps its server: {}",
                    self.client_log_name(&self.clients[id]),
                    reasons.text()
                );
                cx.log(Level::Debug, &line);
            }
        }
        Ok(())
    }

    /// Logs each client once that has kept its server for longer than `pin_warn_after`.
    pub(crate) fn log_long_pins<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let limit_us = duration_us(cx.env.rules.config.main.pin_warn_after);
        if limit_us == 0 || self.state.count.pinned == 0 {
            return;
        }
        let now_us = cx.env.now.mono_us;
        let mut long = Vec::new();
        for (id, client) in &mut self.clients {
            if let ClientState::Linked(link) = &mut client.state
                && let Some(pin) = &mut link.pin
                && !pin.logged
                && now_us.saturating_sub(pin.since_us) >= limit_us
            {
                pin.logged = true;
                long.push((id, pin.reasons.text(), now_us.saturating_sub(pin.since_us) / 1_000_000));
            }
        }
        for (id, reasons, seconds) in long {
            let name = self.client_log_name(&self.clients[id]);
            let line = format!("{name} has kept its server for {seconds} s (pin_warn_after), for: {reasons}");
            cx.log(Level::Warning, &line);
        }
    }

    /// Notes that a client left, with the state that it kept on its server.
    pub(crate) fn forget_pin(&mut self, pin: Option<&Pin>) {
        if pin.is_some() {
            self.state.count.pinned -= 1;
        }
    }
}

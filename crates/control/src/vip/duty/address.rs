//! The address on the network interface, or with the commands that stand for one: setting it, announcing it and removing it.

use std::time::{Duration, Instant};

use pgweir_core::driver::Level;

use super::Duty;
use crate::commands::Program;
use crate::vip::announce::announce;
use crate::vip::decide::{Holding, Lease, Purpose, Seen};
use crate::vip::interface;

/// The time in which an address that was taken is announced in each round: an announcement may be lost, and for a moment the machine of a dead
/// process may answer for the address, too.
const ANNOUNCED_AT_FIRST: Duration = Duration::from_secs(3);
/// The time between two announcements after that, for machines and switches that were cut off.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(5);

impl Duty {
    pub(super) async fn take(&mut self) {
        let address = self.spec.address;
        let said = match (&self.spec.commands, &self.link) {
            (Some(commands), _) => self.run("vip_up_command", &commands.up).await,
            (None, Ok(link)) => interface::set(link, address, self.spec.lifetime_s())
                .map_err(|error| format!("the address cannot be set on {}: {error}", link.name)),
            (None, Err(why)) => Err(why.clone()),
        };
        if let Err(why) = said {
            self.failure = Some((Instant::now(), why));
            if std::mem::replace(&mut self.holding, Holding::No) != Holding::No {
                self.clients.end().await;
            }
            return;
        }
        self.failure = None;
        self.is_set_by_command = true;
        self.clients.address_is_back();
        self.taken = Instant::now();
        // Without the lease, only force takes the address.
        let (taken, how) = match self.lease {
            Lease::Own => (Holding::Taken, ""),
            _ => (Holding::Forced, ", by force"),
        };
        if std::mem::replace(&mut self.holding, taken) == Holding::No {
            self.log.write(Level::Log, &format!("vip {address}: this pooler has the address now{how}"));
        }
    }

    /// Renews the lifetime of an address that is set. A failure shows when the kernel has removed the address.
    pub(super) fn renew(&self) {
        if let (None, Ok(link)) = (&self.spec.commands, &self.link) {
            let _ = interface::set(link, self.spec.address, self.spec.lifetime_s());
        }
    }

    pub(super) async fn remove(&mut self, seen: &Seen) {
        self.clients.end().await;
        let said = match (&self.spec.commands, &self.link) {
            (Some(commands), _) => self.run("vip_down_command", &commands.down).await,
            (None, Ok(link)) => interface::remove(link, self.spec.address)
                .map_err(|error| format!("the address cannot be removed from {}: {error}", link.name)),
            // With its interface the address is gone.
            (None, Err(_)) => Ok(()),
        };
        // Some may have connected in the meantime.
        self.clients.end_late();
        self.is_set_by_command = false;
        let held = std::mem::replace(&mut self.holding, Holding::No) != Holding::No;
        if let Err(why) = said {
            self.failure = Some((Instant::now(), why));
        }
        if held {
            let line = format!(
                "vip {}: this pooler does not have the address any more: {}",
                self.spec.address,
                self.reason(seen)
            );
            self.log.write(Level::Log, &line);
        }
    }

    /// Returns the reason why the address was removed.
    fn reason(&self, seen: &Seen) -> String {
        match (seen.lease, &self.holder) {
            _ if seen.purpose == Purpose::Leave => "it is given away".to_owned(),
            _ if !seen.is_able => self.obstacle().unwrap_or_default(),
            (Lease::Other, Some(holder)) => format!("{holder} has the lease"),
            _ if seen.other_announces => "another machine announces it".to_owned(),
            _ => "the kernel has removed it, because it was not renewed in time".to_owned(),
        }
    }

    pub(super) fn announce_if_due(&mut self, is_contested: bool) {
        let is_due = self.taken.elapsed() < ANNOUNCED_AT_FIRST
            || self.announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_AGAIN);
        if self.spec.commands.is_some() || !(is_due || is_contested) {
            return;
        }
        if let Ok(link) = &self.link {
            self.announced = Some(Instant::now());
            let said = announce(link, self.spec.address.ip);
            let fault = said.err().map(|error| format!("the address cannot be announced: {error}"));
            self.say(1, Level::Warning, fault);
        }
    }

    async fn run(&self, setting: &'static str, command: &str) -> Result<(), String> {
        let interface =
            self.link.as_ref().map(|link| link.name.clone()).unwrap_or_else(|_| self.spec.interface.clone());
        let program = Program {
            setting,
            words: command,
            arguments: Vec::new(),
            variables: vec![
                ("PGWEIR_VIP", self.spec.address.to_string()),
                ("PGWEIR_VIP_INTERFACE", interface),
            ],
            limit: self.spec.ttl,
            limit_setting: "vip_ttl",
        };
        program.run().await?.succeeded(setting)
    }
}

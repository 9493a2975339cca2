//! Thousands of clients that log in and then do nothing, and what a pooler's memory grows by for each.

use std::time::Duration;

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::sampler::{Memory, memory};
use crate::servers::cluster::{DATABASE, USER};
use pgweir_client::Address;
use pgweir_client::Client;

/// A pooler may give buffers back a moment after a client went quiet.
const SETTLE: Duration = Duration::from_secs(1);

/// What one idle client costs, in bytes of user-space memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IdleCost {
    /// Private dirty memory per client that only logged in.
    pub(crate) fresh_bytes: f64,
    /// Private dirty memory per client that has run a statement, too.
    pub(crate) used_bytes: f64,
    /// Resident memory per client that has run a statement.
    pub(crate) used_rss_bytes: f64,
}

/// Opens `count` clients through the pooler `pid` at `address`, one after the other; weighs it before, after the logins,
/// and after each client has run one statement.
///
/// # Errors
/// A client was refused, the pooler's memory cannot be read, or a signal came.
pub(crate) fn weigh(
    count: u32,
    address: &Address,
    pid: u32,
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<IdleCost, BenchError> {
    let weigh_now = || {
        interrupt.sleep(SETTLE)?;
        memory(pid).map_err(BenchError::io("reading the pooler's memory"))
    };
    // The first client of all makes the pool and its first server connection.
    let mut first = connect(address, 0)?;
    query(&mut first, 0)?;
    let before = weigh_now()?;
    let mut clients = Vec::new();
    for number in 1..=count {
        interrupt.check()?;
        clients.push(connect(address, number)?);
        if number % 100 == 0 {
            say(&format!("{number} of {count} clients logged in"));
        }
    }
    let fresh = weigh_now()?;
    for (number, client) in (1_u32..).zip(&mut clients) {
        interrupt.check()?;
        query(client, number)?;
    }
    let used = weigh_now()?;
    Ok(cost(count, before, fresh, used))
}

fn connect(address: &Address, number: u32) -> Result<Client, BenchError> {
    Client::connect(address, USER, DATABASE).map_err(BenchError::io(format!("idle client {number}")))
}

fn query(client: &mut Client, number: u32) -> Result<(), BenchError> {
    client.query("SELECT 1").map(drop).map_err(BenchError::io(format!("a statement of idle client {number}")))
}

#[expect(clippy::cast_precision_loss, reason = "a process has less than 2^52 KiB")]
fn cost(count: u32, before: Memory, fresh: Memory, used: Memory) -> IdleCost {
    let each = |before_kib: u64, after_kib: u64| {
        (after_kib as f64 - before_kib as f64) * 1024.0 / f64::from(count.max(1))
    };
    IdleCost {
        fresh_bytes: each(before.private_dirty_kib, fresh.private_dirty_kib),
        used_bytes: each(before.private_dirty_kib, used.private_dirty_kib),
        used_rss_bytes: each(before.rss_kib, used.rss_kib),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_growth_per_client() {
        let at = |kib| Memory { rss_kib: kib * 2, pss_kib: kib, private_dirty_kib: kib };
        let cost = cost(1024, at(1000), at(1500), at(3000));
        assert_eq!(cost, IdleCost { fresh_bytes: 500.0, used_bytes: 2000.0, used_rss_bytes: 4000.0 });
    }
}

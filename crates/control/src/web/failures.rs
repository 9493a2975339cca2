//! Failed logins of each address: an address that guesses passwords must wait, and no other address does.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::limits::{FAILING_ADDRESSES_MAX, FAILURES_MAX, FAILURES_WINDOW};

/// The latest failures of each address.
#[derive(Default)]
pub(super) struct Failures(RefCell<HashMap<IpAddr, VecDeque<Instant>>>);

impl Failures {
    /// Returns the time that this address has to wait before it may try again, if it has to.
    pub(super) fn wait(&self, from: IpAddr) -> Option<Duration> {
        let mut known = self.0.borrow_mut();
        let failures = known.get_mut(&network(from))?;
        failures.retain(|at| at.elapsed() < FAILURES_WINDOW);
        let first = failures.front().filter(|_| failures.len() >= FAILURES_MAX as usize)?;
        Some(FAILURES_WINDOW.saturating_sub(first.elapsed()))
    }

    pub(super) fn note(&self, from: IpAddr) {
        let mut known = self.0.borrow_mut();
        if known.len() >= FAILING_ADDRESSES_MAX {
            known.retain(|_, failures| failures.back().is_some_and(|at| at.elapsed() < FAILURES_WINDOW));
        }
        if known.len() >= FAILING_ADDRESSES_MAX
            && let Some(oldest) = known.iter().min_by_key(|(_, failures)| failures.back()).map(|(ip, _)| *ip)
        {
            known.remove(&oldest);
        }
        known.entry(network(from)).or_default().push_back(Instant::now());
    }
}

/// Returns the network of an address: a client can have any number of addresses of an IPv6 network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn only_the_network_that_guesses_waits() {
        let failures = Failures::default();
        for _ in 0..FAILURES_MAX {
            assert_eq!(failures.wait(ip("10.0.0.1")), None);
            failures.note(ip("10.0.0.1"));
            failures.note(ip("2001:db8::1"));
        }
        for guesses in ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::2"] {
            assert!(failures.wait(ip(guesses)).is_some_and(|wait| wait <= FAILURES_WINDOW), "{guesses}");
        }
        for other in ["10.0.0.2", "2001:db8:0:1::1", "127.0.0.1"] {
            assert_eq!(failures.wait(ip(other)), None, "{other}");
        }
    }

    #[test]
    fn the_addresses_are_bounded_and_the_latest_are_known() {
        let failures = Failures::default();
        for number in 0..FAILING_ADDRESSES_MAX + 10 {
            failures.note(IpAddr::V4(u32::try_from(number).expect("small").into()));
        }
        assert_eq!(failures.0.borrow().len(), FAILING_ADDRESSES_MAX);
    }
}

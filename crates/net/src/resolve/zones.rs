//! The zones of host names (the part after the first dot), with their last serial numbers. A number that has
//! risen means that something in the zone has changed (`dns_zone_check_period`).

use std::collections::HashMap;
use std::sync::Arc;

/// The zones that a worker knows.
#[derive(Default)]
pub(super) struct Zones {
    known: HashMap<Arc<str>, Zone>,
    /// The time of the last check; `None` before the first one.
    checked_us: Option<u64>,
}

#[derive(Default)]
struct Zone {
    serial: Option<u32>,
    asked: bool,
    failing: bool,
}

/// The meaning of an answer for a zone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The zone is unchanged, or the same check failed before.
    Same,
    /// The zone has changed.
    Changed,
    /// The zone's servers did not answer, and did the time before.
    FailedNow,
}

/// Returns the zone of a host's name; `None` for a name without a dot.
pub(super) fn zone_of(host: &str) -> Option<&str> {
    let (_, zone) = host.split_once('.')?;
    let zone = zone.strip_suffix('.').unwrap_or(zone);
    (!zone.is_empty()).then_some(zone)
}

impl Zones {
    /// Adds the zone of a known host.
    pub(super) fn note(&mut self, zone: &str) {
        if !self.known.contains_key(zone) {
            self.known.insert(zone.into(), Zone::default());
        }
    }

    /// Forgets the zones without a known host.
    pub(super) fn retain(&mut self, has_hosts: impl Fn(&str) -> bool) {
        self.known.retain(|name, _| has_hosts(name));
    }

    /// Returns the time of the next check of the zones; `None` if there is none.
    pub(super) fn due_us(&self, period_us: u64) -> Option<u64> {
        let is_on = period_us > 0 && !self.known.is_empty();
        is_on.then(|| self.checked_us.map_or(0, |checked_us| checked_us.saturating_add(period_us)))
    }

    /// Returns the zones to ask now, and marks them as asked.
    pub(super) fn take_due(&mut self, now_us: u64, period_us: u64) -> Vec<Arc<str>> {
        if self.due_us(period_us).is_none_or(|due_us| due_us > now_us) {
            return Vec::new();
        }
        self.checked_us = Some(now_us);
        let to_ask = |(name, zone): (&Arc<str>, &mut Zone)| {
            (!std::mem::replace(&mut zone.asked, true)).then(|| Arc::clone(name))
        };
        self.known.iter_mut().filter_map(to_ask).collect()
    }

    /// Takes the answer for a zone: its serial number, or `None` if it could not be asked.
    pub(super) fn answered(&mut self, name: &str, serial: Option<u32>) -> Verdict {
        let Some(zone) = self.known.get_mut(name) else { return Verdict::Same };
        zone.asked = false;
        let Some(serial) = serial else {
            let failed_before = std::mem::replace(&mut zone.failing, true);
            return if failed_before { Verdict::Same } else { Verdict::FailedNow };
        };
        zone.failing = false;
        match zone.serial.replace(serial) {
            Some(before) if is_newer(serial, before) => Verdict::Changed,
            _ => Verdict::Same,
        }
    }

    /// Returns names and serial numbers; 0 if the number is not known.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.known.iter().map(|(name, zone)| (&**name, zone.serial.unwrap_or(0)))
    }

    /// Returns the number of zones that are being asked.
    pub(super) fn asked(&self) -> usize {
        self.known.values().filter(|zone| zone.asked).count()
    }
}

/// Returns whether a serial number is newer than another one; they wrap around (RFC 1982).
fn is_newer(serial: u32, before: u32) -> bool {
    (1..0x8000_0000).contains(&serial.wrapping_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_what_stands_behind_the_first_dot() {
        for (host, zone) in [
            ("db", None),
            ("db.", None),
            ("db.example.net", Some("example.net")),
            ("db.example.net.", Some("example.net")),
        ] {
            assert_eq!(zone_of(host), zone, "{host}");
        }
    }

    #[test]
    fn serial_numbers_go_round() {
        for (serial, before, newer) in
            [(2, 1, true), (1, 1, false), (1, 2, false), (0, u32::MAX, true), (5, 0xffff_fff0, true)]
        {
            assert_eq!(is_newer(serial, before), newer, "{serial} after {before}");
        }
    }

    #[test]
    fn asked_at_once_and_then_every_period_but_never_twice_at_a_time() {
        let mut zones = Zones::default();
        assert_eq!(zones.due_us(10), None);
        zones.note("a");
        zones.note("a");
        assert_eq!((zones.due_us(0), zones.due_us(10)), (None, Some(0)));
        assert_eq!(zones.take_due(100, 10), ["a".into()]);
        assert_eq!((zones.due_us(10), zones.asked()), (Some(110), 1));
        assert!(zones.take_due(110, 10).is_empty(), "it was not answered yet");
        assert_eq!(zones.answered("a", Some(7)), Verdict::Same, "the first number");
        assert_eq!(zones.take_due(120, 10), ["a".into()]);
        assert_eq!(zones.answered("a", Some(8)), Verdict::Changed);
        assert_eq!(zones.answered("a", None), Verdict::FailedNow);
        assert_eq!(zones.answered("a", None), Verdict::Same, "said once");
        assert_eq!(zones.answered("a", Some(9)), Verdict::Changed);
        assert_eq!(zones.iter().collect::<Vec<_>>(), [("a", 9)]);
        zones.retain(|_| false);
        assert_eq!(zones.due_us(10), None);
    }
}

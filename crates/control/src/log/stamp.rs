//! The format of a log line: `2026-11-20 19:19:14.123 CET [4711] LOG message`, in local time with its zone's
//! abbreviation.
//!
//! This is PgBouncer's format, which log analysers (pgbadger and others) parse. Nothing here writes anywhere.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pgweir_core::driver::Level;

/// Turns a moment and a message into the bytes of a log line.
///
/// The date and time up to the second are cached: many lines fall into one second, and the calendar is the
/// expensive part.
pub(crate) struct Stamp {
    zone: TimeZone,
    pid: u32,
    second: Option<u64>,
    date_time: String,
    zone_name: String,
    /// The difference between local time and UTC, in seconds.
    offset_s: i32,
}

impl Stamp {
    pub(crate) fn new(zone: TimeZone, pid: u32) -> Stamp {
        Stamp { zone, pid, second: None, date_time: String::new(), zone_name: String::new(), offset_s: 0 }
    }

    /// Creates a stamp for the zone of this machine (`TZ`, else `/etc/localtime`), or for UTC if the zone
    /// cannot be read.
    pub(crate) fn local(pid: u32) -> Stamp {
        Stamp::new(TimeZone::try_system().unwrap_or(TimeZone::UTC), pid)
    }

    /// Appends one line, with its newline. A newline within the message becomes newline and tab, so that a
    /// reader can tell where a line starts. Other control characters become `\x..`, so that a peer's text
    /// cannot move a terminal's cursor or forge a line.
    pub(crate) fn write_line(&mut self, at: SystemTime, level: Level, message: &str, out: &mut Vec<u8>) {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.turn_to(since_epoch.as_secs());
        let mut head = String::with_capacity(48);
        let _ = write!(
            head,
            "{}.{:03} {} [{}] {} ",
            self.date_time,
            since_epoch.subsec_millis(),
            self.zone_name,
            self.pid,
            word(level)
        );
        out.extend_from_slice(head.as_bytes());
        push_message(message, out);
        out.push(b'\n');
    }

    /// Returns `2026-11-20 19:19:14 CET`, the form in which SHOW writes a moment.
    pub(crate) fn moment(&mut self, second: u64) -> String {
        self.turn_to(second);
        format!("{} {}", self.date_time, self.zone_name)
    }

    /// Returns `2026-11-20T19:19:14.123+01:00`, the form of RFC 3339.
    pub(super) fn moment_rfc3339(&mut self, at: SystemTime) -> String {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.turn_to(since_epoch.as_secs());
        let (date, time) = self.date_time.split_once(' ').unwrap_or((&self.date_time, ""));
        let (sign, offset_min) =
            (if self.offset_s < 0 { '-' } else { '+' }, self.offset_s.unsigned_abs() / 60);
        let (hours, minutes) = (offset_min / 60, offset_min % 60);
        format!("{date}T{time}.{:03}{sign}{hours:02}:{minutes:02}", since_epoch.subsec_millis())
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn turn_to(&mut self, second: u64) {
        if self.second == Some(second) {
            return;
        }
        let moment = i64::try_from(second)
            .ok()
            .and_then(|second| Timestamp::from_second(second).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH);
        let info = self.zone.to_offset_info(moment);
        let local = info.offset().to_datetime(moment);
        self.date_time.clear();
        let _ = write!(
            self.date_time,
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
            local.year(),
            local.month(),
            local.day(),
            local.hour(),
            local.minute(),
            local.second()
        );
        self.zone_name.clear();
        self.zone_name.push_str(info.abbreviation());
        self.offset_s = info.offset().seconds();
        self.second = Some(second);
    }
}

fn push_message(message: &str, out: &mut Vec<u8>) {
    for byte in message.trim_end_matches('\n').bytes() {
        match byte {
            b'\n' => out.extend_from_slice(b"\n\t"),
            b'\t' => out.push(byte),
            0..0x20 | 0x7f => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

/// Returns the word of a level in a log line.
#[must_use]
pub fn word(level: Level) -> &'static str {
    match level {
        Level::Fatal => "FATAL",
        Level::Error => "ERROR",
        Level::Warning => "WARNING",
        Level::Log => "LOG",
        Level::Debug => "DEBUG",
        Level::Noise => "NOISE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(zone: &TimeZone, millis: u64, level: Level, message: &str) -> String {
        let mut out = Vec::new();
        Stamp::new(zone.clone(), 4711).write_line(
            UNIX_EPOCH + Duration::from_millis(millis),
            level,
            message,
            &mut out,
        );
        String::from_utf8(out).expect("text in, text out")
    }

    #[test]
    fn format_is_pgbouncers() {
        assert_eq!(
            line(&TimeZone::UTC, 1_700_000_000_007, Level::Log, "process up"),
            "2023-11-14 22:13:20.007 UTC [4711] LOG process up\n"
        );
    }

    #[test]
    fn summer_and_winter_time_have_their_own_names() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a POSIX zone");
        assert_eq!(
            line(&berlin, 1_719_835_200_000, Level::Warning, "x"),
            "2024-07-01 14:00:00.000 CEST [4711] WARNING x\n"
        );
        assert_eq!(
            line(&berlin, 1_704_110_400_999, Level::Error, "x"),
            "2024-01-01 13:00:00.999 CET [4711] ERROR x\n"
        );
    }

    #[test]
    fn lines_of_one_second_share_the_date_but_not_the_milliseconds() {
        let mut stamp = Stamp::new(TimeZone::UTC, 1);
        let mut out = Vec::new();
        for millis in [999, 1_000, 1_001] {
            stamp.write_line(UNIX_EPOCH + Duration::from_millis(millis), Level::Debug, "x", &mut out);
        }
        assert_eq!(
            String::from_utf8(out).expect("text"),
            "1970-01-01 00:00:00.999 UTC [1] DEBUG x\n\
             1970-01-01 00:00:01.000 UTC [1] DEBUG x\n\
             1970-01-01 00:00:01.001 UTC [1] DEBUG x\n"
        );
    }

    #[test]
    fn a_message_cannot_forge_a_line() {
        assert_eq!(
            line(&TimeZone::UTC, 0, Level::Fatal, "one\ntwo\rthree\x1b[2J\n"),
            "1970-01-01 00:00:00.000 UTC [4711] FATAL one\n\ttwo\\x0dthree\\x1b[2J\n"
        );
    }

    proptest::proptest! {
        #[test]
        fn a_message_stays_one_entry(message in "[\\PC\n\r\t\x00-\x20]{0,80}") {
            let text = line(&TimeZone::UTC, 0, Level::Log, &message);
            let starts = text.lines().filter(|line| !line.starts_with('\t')).count();
            proptest::prop_assert_eq!(starts, 1);
            proptest::prop_assert!(text.ends_with('\n'));
            let controls = text.chars().filter(|c| c.is_ascii_control() && !"\n\t".contains(*c)).count();
            proptest::prop_assert_eq!(controls, 0);
        }
    }
}

//! `log_format = json`: log lines as JSON objects, one per line, for programs that collect logs.

use std::time::SystemTime;

use pgweir_core::driver::Level;
use serde_json::json;

use super::stamp::{Stamp, word};

/// Returns a line, without its newline. The message's own newlines and control characters are escaped, so
/// that an object is always one line.
pub(super) fn object(stamp: &mut Stamp, at: SystemTime, level: Level, message: &str) -> String {
    let time = stamp.moment_rfc3339(at);
    let message = message.trim_end_matches('\n');
    json!({ "time": time, "pid": stamp.pid(), "level": word(level), "message": message }).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use jiff::tz::TimeZone;

    use super::*;

    fn line(zone: &TimeZone, millis: u64, message: &str) -> String {
        let at = UNIX_EPOCH + Duration::from_millis(millis);
        object(&mut Stamp::new(zone.clone(), 4711), at, Level::Log, message)
    }

    #[test]
    fn an_object_has_the_time_with_its_offset() {
        let parsed: serde_json::Value =
            serde_json::from_str(&line(&TimeZone::UTC, 1_700_000_000_007, "process up\n"))
                .expect("an object");
        let expected = json!({
            "time": "2023-11-14T22:13:20.007+00:00", "pid": 4711, "level": "LOG", "message": "process up"
        });
        assert_eq!(parsed, expected);
        for (zone, time) in
            [("CET-1", "1970-01-01T01:00:00.000+01:00"), ("NST3:30", "1969-12-31T20:30:00.000-03:30")]
        {
            let zone = TimeZone::posix(zone).expect("a POSIX zone");
            assert!(line(&zone, 0, "x").contains(time), "{}", line(&zone, 0, "x"));
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_message_says_it_is_one_line_and_comes_back(message in "[\\PC\n\r\t\x00-\x20\"\\\\]{0,80}") {
            let text = line(&TimeZone::UTC, 0, &message);
            proptest::prop_assert!(!text.contains('\n'));
            let parsed: serde_json::Value = serde_json::from_str(&text).expect("an object");
            proptest::prop_assert_eq!(parsed["message"].as_str(), Some(message.trim_end_matches('\n')));
        }
    }
}

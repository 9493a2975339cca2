//! Numbers as PgBouncer writes them, with the units of PostgreSQL in addition.
//!
//! Integers follow C's `strtol` with base 0 (`010` is eight, `0x10` sixteen), times are decimal seconds with
//! a fraction. The whole text has to be the number: nothing is cut off or wrapped around silently. This file
//! must never know what a setting is.

use std::time::Duration;

/// The longest time that a setting may hold, in seconds (about 317 years): sums of a few of them stay far
/// inside `u64` microseconds.
pub const SECONDS_MAX: u64 = 10_000_000_000;

/// A second and a millisecond in microseconds.
pub(crate) const SECOND_US: f64 = 1e6;
pub(crate) const MILLISECOND_US: f64 = 1e3;

/// The description of the number that was wanted, as the end of "it must be ...".
pub(crate) type Wanted = &'static str;

const WHOLE: Wanted = "a whole number";
const IN_RANGE: Wanted = "a number of an ordinary size";
const TIME: Wanted = "a time in seconds, or with one of the units us, ms, s, min, h, d";
const SHORTER: Wanted = "a time below 10000000000 seconds";
const SIZE: Wanted = "a size in bytes, or with one of the units B, kB, MB, GB";

/// Reads a whole number with an optional sign: decimal, `0x` hexadecimal or `0` octal.
pub(crate) fn whole(text: &str) -> Result<i64, Wanted> {
    let text = text.trim();
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    // `from_str_radix` accepts a sign, too, but "+-5" is not a number.
    if digits.is_empty() || !digits.bytes().all(|b| char::from(b).is_digit(base)) {
        return Err(WHOLE);
    }
    let magnitude = i64::from_str_radix(digits, base).map_err(|_| IN_RANGE)?;
    Ok(if negative { -magnitude } else { magnitude })
}

/// Splits "64MB" or "64 MB" into its number and its unit; the unit is empty when there is none.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    (number.trim_end(), &text[number.len()..])
}

/// Reads a size in bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, Wanted> {
    if let Ok(plain) = whole(text) {
        return u64::try_from(plain).map_err(|_| SIZE);
    }
    let (number, unit) = split_unit(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1 << 10,
        "mb" => 1 << 20,
        "gb" => 1 << 30,
        _ => return Err(SIZE),
    };
    let number = u64::try_from(whole(number).map_err(|_| SIZE)?).map_err(|_| SIZE)?;
    number.checked_mul(factor).ok_or(IN_RANGE)
}

/// Reads a time. A number without a unit counts in units of `plain_us` microseconds.
pub(crate) fn time(text: &str, plain_us: f64) -> Result<Duration, Wanted> {
    let (number, factor_us) = match decimal(text) {
        Some(number) => (number, plain_us),
        None => {
            let (number, unit) = split_unit(text);
            (decimal(number).ok_or(TIME)?, unit_us(unit).ok_or(TIME)?)
        }
    };
    let time_us = (number * factor_us).round();
    if !time_us.is_finite() || time_us < 0.0 {
        return Err(TIME);
    }
    let longest_us = SECONDS_MAX as f64 * 1e6;
    if time_us > longest_us {
        return Err(SHORTER);
    }
    // The cast keeps the value, because the range was checked above.
    Ok(Duration::from_micros(time_us as u64))
}

fn unit_us(unit: &str) -> Option<f64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "min" => 60e6,
        "h" => 3600e6,
        "d" => 86400e6,
        _ => return None,
    })
}

/// A decimal number ("0.5", "1e6") or a hexadecimal integer; not "inf", not "nan".
fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.starts_with("0x") || text.starts_with("0X") {
        return whole(text).ok().map(|n| n as f64);
    }
    let plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    if !plain {
        return None;
    }
    text.parse().ok()
}

/// Writes a time in `plain_us` microseconds as C's `printf("%g")` does: six digits, no trailing zeros, an
/// exponent when it is shorter.
pub(crate) fn show_time(time: Duration, plain_us: f64) -> String {
    // The conversion is exact up to 2^53 microseconds, and six digits are shown.
    let value = time.as_micros() as f64 / plain_us;
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("the format above writes an exponent");
    let exponent: i32 = exponent.parse().expect("the format above writes a number");
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).expect("the exponent is below six");
        return trim_zeros(&format!("{value:.decimals$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim_zeros(mantissa), exponent.abs())
}

fn trim_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_numbers_follow_strtol_base_zero() {
        for (text, value) in [
            ("0", 0),
            ("42", 42),
            (" 12 ", 12),
            ("+7", 7),
            ("-1", -1),
            ("010", 8),
            ("0x20", 32),
            ("0X1f", 31),
            ("00", 0),
        ] {
            assert_eq!(whole(text), Ok(value), "{text:?}");
        }
        for text in [
            "",
            "-",
            "+-5",
            "--5",
            "abc",
            "1k",
            "08",
            "0x",
            "0xg",
            "1.5",
            "1 2",
            "0-1",
            "99999999999999999999",
        ] {
            assert!(whole(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_take_fractions_and_units() {
        for (text, time_us) in [
            ("0", 0),
            ("0.5", 500_000),
            (".5", 500_000),
            ("1e6", 1_000_000_000_000),
            ("0x10", 16_000_000),
            ("30s", 30_000_000),
            ("5min", 300_000_000),
            ("5 min", 300_000_000),
            ("500ms", 500_000),
            ("1.5 H", 5_400_000_000),
            ("7us", 7),
            ("2d", 172_800_000_000),
        ] {
            assert_eq!(time(text, SECOND_US), Ok(Duration::from_micros(time_us)), "{text:?}");
        }
        for text in [
            "",
            "-1",
            "-0.1",
            "inf",
            "nan",
            "infinity",
            "1x",
            "s",
            "1e30",
            "1e400",
            "1..2",
            "10000000001",
            "4e9d",
        ] {
            assert!(time(text, SECOND_US).is_err(), "{text:?}");
        }
        assert_eq!(time("1500", 1e3), Ok(Duration::from_millis(1500)));
    }

    #[test]
    fn sizes_take_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64MB"), Ok(64 << 20));
        assert_eq!(bytes("64 kb"), Ok(64 << 10));
        for text in ["-1", "-1kB", "1PB", "", "MB", "9223372036854775807GB", "1.5MB"] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_are_shown_like_printf_g() {
        for (text, shown) in [
            ("0", "0"),
            ("60", "60"),
            ("0.5", "0.5"),
            ("1234567.5", "1.23457e+06"),
            ("1e6", "1e+06"),
            ("100000", "100000"),
            ("999999.5", "1e+06"),
            ("123456", "123456"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.23456789", "1.23457"),
        ] {
            let time = time(text, SECOND_US).expect("a good time");
            assert_eq!(show_time(time, SECOND_US), shown, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC*") {
            let _ = (whole(&text), bytes(&text), time(&text, SECOND_US));
        }

        #[test]
        fn a_shown_time_reads_back_within_six_digits(time_us in 0u64..SECONDS_MAX * 1_000_000) {
            let there = Duration::from_micros(time_us);
            let back = time(&show_time(there, SECOND_US), SECOND_US).expect("what is shown can be read");
            let gap = there.abs_diff(back).as_secs_f64();
            prop_assert!(gap <= there.as_secs_f64() * 1e-5 + 1e-6);
        }
    }
}

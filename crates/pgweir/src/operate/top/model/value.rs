//! The values of the tables' cells: how they are shown, and how they are sorted.

use std::cmp::Ordering;

use pgweir_doctor::printable;

/// The value of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// The console does not tell this value, or the rate is not known yet.
    Unknown,
    Text(String),
    Count(u64),
    /// A time; 0 is shown as nothing.
    Micros(u64),
    /// A number of events per second.
    PerSecond(f64),
    /// A part of a whole: 0.25 is shown as 25 %.
    Share(f64),
    /// A number, and the limit of this number; a limit of 0 is no limit.
    Of(u64, u64),
    /// An average number, as that of the statements that run at the same time.
    Average(f64),
}

impl Value {
    /// A text from outside, without what a terminal would obey.
    pub(crate) fn text(text: &str) -> Value {
        Value::Text(printable(text))
    }

    /// The text that the cell shows.
    pub(crate) fn shown(&self) -> String {
        match self {
            Value::Unknown => String::new(),
            Value::Text(text) => text.clone(),
            Value::Count(number) => count(*number),
            Value::Micros(0) => String::new(),
            Value::Micros(micros) => duration(*micros),
            Value::PerSecond(rate) => per_second(*rate),
            Value::Share(share) => format!("{:.0} %", share * 100.0),
            Value::Of(number, 0) => count(*number),
            Value::Of(number, limit) => format!("{}/{}", count(*number), count(*limit)),
            Value::Average(number) if *number < 0.005 => "0".to_owned(),
            Value::Average(number) => format!("{number:.2}"),
        }
    }

    /// The number by which the cell is sorted; `None` for a text.
    fn number(&self) -> Option<f64> {
        match self {
            Value::Unknown => Some(-1.0),
            Value::Text(_) => None,
            Value::Count(number) | Value::Micros(number) | Value::Of(number, _) => Some(*number as f64),
            Value::PerSecond(number) | Value::Share(number) | Value::Average(number) => Some(*number),
        }
    }

    /// The order of two cells of a column: texts by their letters, numbers by their size.
    pub(crate) fn order(&self, other: &Value) -> Ordering {
        match (self.number(), other.number()) {
            (Some(one), Some(two)) => one.total_cmp(&two),
            (None, None) => self.shown().to_lowercase().cmp(&other.shown().to_lowercase()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
        }
    }
}

/// A number in at most five characters.
pub(crate) fn count(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{}k", number / 1000),
        1_000_000..10_000_000 => format!("{:.1}M", number as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{}M", number / 1_000_000),
        _ => format!("{:.1}G", number as f64 / 1e9),
    }
}

/// A time with two or three digits and its unit.
pub(crate) fn duration(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1000),
        1_000_000..10_000_000 => format!("{:.1} s", micros as f64 / 1e6),
        _ if seconds < 120 => format!("{seconds} s"),
        _ if seconds < 7_200 => format!("{} min", seconds / 60),
        _ if seconds < 172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A rate: with a decimal below ten.
pub(crate) fn per_second(rate: f64) -> String {
    match rate {
        rate if rate < 0.05 => "0".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    }
}

/// A number of bytes per second with its unit.
pub(crate) fn bytes(rate: f64) -> String {
    match rate {
        rate if rate < 1e3 => format!("{rate:.0} B/s"),
        rate if rate < 1e6 => format!("{:.1} kB/s", rate / 1e3),
        rate if rate < 1e9 => format!("{:.1} MB/s", rate / 1e6),
        rate => format!("{:.1} GB/s", rate / 1e9),
    }
}

/// A number with its noun, which takes an s unless the number is 1.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short_and_have_units() {
        let text = |value: Value| value.shown();
        assert_eq!(text(Value::Count(9_999)), "9999");
        assert_eq!(text(Value::Count(12_345)), "12k");
        assert_eq!(text(Value::Count(1_250_000)), "1.2M");
        assert_eq!(text(Value::Micros(0)), "");
        assert_eq!(text(Value::Micros(999)), "999 µs");
        assert_eq!(text(Value::Micros(1_500)), "1.5 ms");
        assert_eq!(text(Value::Micros(3_240_000)), "3.2 s");
        assert_eq!(text(Value::Micros(61_000_000)), "61 s");
        assert_eq!(text(Value::Micros(600_000_000)), "10 min");
        assert_eq!(text(Value::PerSecond(0.01)), "0");
        assert_eq!(text(Value::PerSecond(3.24)), "3.2");
        assert_eq!(text(Value::PerSecond(25_300.4)), "25k");
        assert_eq!(text(Value::Share(0.256)), "26 %");
        assert_eq!(text(Value::Of(20, 20)), "20/20");
        assert_eq!(text(Value::Of(3, 0)), "3");
        assert_eq!(text(Value::Average(0.001)), "0");
        assert_eq!(text(Value::Average(1.5)), "1.50");
        assert_eq!(bytes(2_400_000.0), "2.4 MB/s");
        assert_eq!(counted(1, "client"), "1 client");
        assert_eq!(counted(0, "client"), "0 clients");
    }

    #[test]
    fn a_text_from_outside_cannot_move_the_cursor() {
        assert!(!Value::text("a\u{1b}[2Jb").shown().contains('\u{1b}'));
    }

    #[test]
    fn numbers_are_sorted_by_size_and_texts_by_letters() {
        let mut values = [Value::Count(10), Value::Unknown, Value::Count(9)];
        values.sort_by(Value::order);
        assert_eq!(values, [Value::Unknown, Value::Count(9), Value::Count(10)]);
        assert_eq!(Value::text("Beta").order(&Value::text("alpha")), Ordering::Greater);
        assert_eq!(Value::Of(3, 9).order(&Value::Of(4, 5)), Ordering::Less);
    }
}

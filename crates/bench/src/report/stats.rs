//! Medians, spreads and how numbers are written.

/// The median; `None` without values.
#[must_use]
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted.get(middle).copied();
    }
    let below = sorted.get(middle.checked_sub(1)?)?;
    Some((below + sorted.get(middle)?) / 2.0)
}

/// How far the values lie apart, as a share of their median: (largest - smallest) / median.
#[must_use]
pub(crate) fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(values).filter(|middle| *middle != 0.0)?;
    let largest = values.iter().copied().max_by(f64::total_cmp)?;
    let smallest = values.iter().copied().min_by(f64::total_cmp)?;
    Some((largest - smallest) / middle.abs())
}

/// The result of a run, for the line that ends it. If no transaction ended and none failed, the figure 0 would be no measurement.
#[must_use]
pub(crate) fn made(tps: f64, ended: f64) -> String {
    match ended > 0.0 {
        true => format!("{tps:.0} TPS"),
        false => {
            "no transaction ended: the clients were connecting all the time, so run it for longer".to_owned()
        }
    }
}

/// Three significant digits, with thousands kept whole: `0.0123`, `1.23`, `45.6`, `12345`.
#[must_use]
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 100.0 || size == 0.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_transactions_has_no_rate() {
        assert_eq!(made(1234.4, 5.0), "1234 TPS");
        assert!(made(0.0, 0.0).starts_with("no transaction ended: the clients were connecting"));
    }

    #[test]
    fn medians_of_odd_even_and_nothing() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn spread_is_relative() {
        assert_eq!(spread(&[90.0, 100.0, 110.0]), Some(0.2));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[0.0]), None);
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.0123, 1.234, 45.67, 123.4, 12_345.6].map(short);
        assert_eq!(texts, ["0", "0.012", "1.23", "45.7", "123", "12346"]);
    }
}

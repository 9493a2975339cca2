//! Suggests the known name that a misspelled name may stand for.

/// The maximum number of changed letters for which a name counts as misspelled.
const SLIPS_MAX: usize = 2;
/// The length above which a name is not compared.
const NAME_BYTES_MAX: usize = 64;

/// `; did you mean "x"?` if a known name is near enough to `name`, otherwise nothing.
#[must_use]
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(name, known).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default()
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    // A short name with half of its letters changed is another word.
    let slips_max = SLIPS_MAX.min(name.len().div_ceil(4));
    let (slips, near) = known.map(|known| (distance(name, known), known)).min()?;
    (slips <= slips_max).then_some(near)
}

/// Returns the number of slips that turn one word into the other: a wrong, missing or additional letter, or
/// two neighbours that are exchanged (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.to_ascii_lowercase().into_bytes(), other.to_ascii_lowercase().into_bytes());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut cost = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                cost = cost.min(rows[i - 2][j - 2] + 1);
            }
            row.push(cost);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["host", "port", "user", "pool_mode", "pool_size"];
        for (name, meant) in [
            ("pool_mod", "; did you mean \"pool_mode\"?"),
            ("hots", "; did you mean \"host\"?"),
            ("Port", "; did you mean \"port\"?"),
            ("db", ""),
            ("x", ""),
            ("", ""),
            ("pool", ""),
            (&"pool_mode".repeat(8), ""),
        ] {
            assert_eq!(did_you_mean(name, known.into_iter()), meant, "{name}");
        }
        assert_eq!(did_you_mean("a", [].into_iter()), "");
    }
}

//! Prints an answer of the console, as a table or as JSON.

use pgweir_client::Answer;
use pgweir_doctor::printable;
use serde_json::{Map, Number, Value, json};

/// Types whose values are numbers in JSON: int8, int2, int4, oid, float4, float8, numeric.
const NUMBERS: [u32; 7] = [20, 21, 23, 26, 700, 701, 1700];

/// Leaves these columns, in this order. Without any named, and if none is there, all stay.
pub(super) fn narrow(answer: &mut Answer, columns: &[&str]) {
    let place = |name: &&str| answer.columns.iter().position(|(known, _)| known == *name);
    let places: Vec<usize> = columns.iter().filter_map(place).collect();
    if places.is_empty() {
        return;
    }
    answer.columns = places.iter().map(|place| answer.columns[*place].clone()).collect();
    for row in &mut answer.rows {
        *row = places.iter().map(|place| row.get(*place).cloned().flatten()).collect();
    }
}

/// A table with a line of names, or what was done.
pub(in crate::operate) fn text(answer: &Answer) -> String {
    let mut page: String =
        answer.notices.iter().map(|notice| format!("NOTICE: {}\n", printable(notice))).collect();
    if answer.columns.is_empty() {
        page.push_str(&format!("{}\n", printable(&answer.tag)));
        return page;
    }
    let head = answer.columns.iter().map(|(name, _)| name.clone()).collect();
    let cells =
        |row: &Vec<Option<String>>| row.iter().map(|cell| printable(cell.as_deref().unwrap_or(""))).collect();
    let mut lines: Vec<Vec<String>> = vec![head];
    lines.extend(answer.rows.iter().map(cells));
    let width =
        |place: usize| lines.iter().filter_map(|line| line.get(place)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..answer.columns.len()).map(|place| width(place).unwrap_or(0)).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        page.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        page.push('\n');
    }
    page
}

/// Rows as objects, or what was done.
pub(in crate::operate) fn json(answer: &Answer) -> String {
    let value = if answer.columns.is_empty() {
        json!({ "done": answer.tag, "notices": answer.notices })
    } else {
        let object = |row: &Vec<Option<String>>| {
            let pairs = answer.columns.iter().zip(row);
            pairs
                .map(|((name, kind), cell)| (name.clone(), value(*kind, cell.as_deref())))
                .collect::<Map<_, _>>()
        };
        answer.rows.iter().map(object).collect()
    };
    format!("{value:#}\n")
}

/// Why there is no answer.
pub(super) fn error(code: Option<&str>, message: &str) -> String {
    format!("{:#}\n", json!({ "error": { "code": code, "message": message } }))
}

fn value(kind: u32, cell: Option<&str>) -> Value {
    let Some(text) = cell else { return Value::Null };
    let number = NUMBERS.contains(&kind).then(|| text.trim().parse::<Number>().ok()).flatten();
    number.map_or_else(|| text.into(), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        let row = |cells: [Option<&str>; 3]| cells.map(|cell| cell.map(str::to_owned)).to_vec();
        Answer {
            columns: vec![
                ("database".to_owned(), 25),
                ("cl_waiting".to_owned(), 20),
                ("host".to_owned(), 25),
            ],
            rows: vec![
                row([Some("app"), Some("12"), None]),
                row([Some("a\u{1b}b"), Some("0"), Some("10.0.0.1")]),
            ],
            ..Answer::default()
        }
    }

    #[test]
    fn a_table_is_aligned_and_harmless() {
        assert_eq!(
            text(&answer()),
            "database  cl_waiting  host\napp       12\na b       0           10.0.0.1\n"
        );
        let mut narrowed = answer();
        narrow(&mut narrowed, &["cl_waiting", "no_such", "database"]);
        assert_eq!(text(&narrowed), "cl_waiting  database\n12          app\n0           a b\n");
        let done = Answer { tag: "PAUSE".to_owned(), notices: vec!["a".to_owned()], ..Answer::default() };
        assert_eq!(text(&done), "NOTICE: a\nPAUSE\n");
    }

    #[test]
    fn json_has_numbers_and_nulls() {
        let rows: Value = serde_json::from_str(&json(&answer())).expect("it is JSON");
        assert_eq!(rows[0], json!({ "database": "app", "cl_waiting": 12, "host": null }));
        let done: Value =
            serde_json::from_str(&json(&Answer { tag: "PAUSE".to_owned(), ..Answer::default() }))
                .expect("it is JSON");
        assert_eq!(done["done"], "PAUSE");
    }
}

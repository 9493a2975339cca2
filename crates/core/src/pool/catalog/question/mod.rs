//! The question to a server's catalog: what code an object leads to, and which names of objects lead to code that does something.
//!
//! PostgreSQL answers it in one statement: `routines.sql` and `trees.sql` find what routines and expressions do by themselves,
//! `edges.sql` finds which object runs code of which other one, and follows that. The answer has only the names that it comes to:
//! of a database whose code does nothing of the kind, nearly nothing. What a kind of row says stands in [`super::graph`] and
//! [`super::reach`].
//!
//! The parts are plain SQL. [`question`] gives every operator its schema, as the session may have another `search_path`. A backslash stands
//! nowhere: its meaning is the session's own matter, too.

/// A query without rows that names the columns of the answer. The tests' servers recognize the question by this beginning.
const BEGINNING: &str = "SELECT 'g', NULL, NULL WHERE false";

const PATTERNS: &str = include_str!("patterns.txt");

/// Operators that the parts use.
const OPERATORS: [&str; 12] = ["!~*", "!~", "~*", "~", "<>", ">=", "<=", "->>", "=", "<", ">", "&"];

/// Returns the whole question. `at_standbys`: it also asks for names that mean something else on a standby.
pub(crate) fn catalog_question(at_standbys: bool) -> String {
    let names =
        |kind: &str, marks: &str| include_str!("names.sql").replace("$kind", kind).replace("$marks", marks);
    let mut answers = vec![
        include_str!("sessions.sql").to_owned(),
        include_str!("known.sql").to_owned(),
        names("v", "v,w"),
        // What a RESET goes back to: the level of a new connection, whatever the present session has set.
        include_str!("isolation.sql").to_owned(),
        include_str!("columns.sql").to_owned(),
    ];
    if at_standbys {
        answers.push(names("s", "p"));
    }
    let parts = [include_str!("routines.sql"), include_str!("trees.sql"), include_str!("edges.sql")];
    let plain = format!("(WITH RECURSIVE\n{}{})", parts.concat(), answers.join("UNION ALL "));
    let mut text = String::with_capacity(32 * 1024);
    plain.lines().filter(|line| !line.starts_with("--")).for_each(|line| qualify(&mut text, line));
    for (name, value) in patterns() {
        text = text.replace(name, &value);
    }
    format!("{BEGINNING} UNION ALL {text}")
}

/// Adds a line with its operators qualified. They stand between two spaces.
fn qualify(text: &mut String, line: &str) {
    for word in line.trim_start().split(' ') {
        match OPERATORS.contains(&word) {
            true => ["OPERATOR(pg_catalog.", word, ") "].iter().for_each(|part| text.push_str(part)),
            false => [word, " "].iter().for_each(|part| text.push_str(part)),
        }
    }
}

/// The patterns by their names, in the order in which they are put in.
fn patterns() -> Vec<(&'static str, String)> {
    let mut patterns: Vec<(&str, String)> = Vec::new();
    for line in PATTERNS.lines() {
        match (line.strip_prefix(' '), line.split_once(" ="), patterns.last_mut()) {
            (Some(more), _, Some((_, value))) => value.push_str(more),
            (None, Some((name, value)), _) if name.starts_with('$') => {
                patterns.push((name, value.trim_start().to_owned()));
            }
            _ => {}
        }
    }
    patterns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_whole() {
        let text = catalog_question(true);
        assert!(text.is_ascii() && !text.contains('\\'));
        assert_eq!(patterns().len(), 10);
        assert!(patterns().iter().all(|(name, value)| !value.is_empty() && !text.contains(*name)));
        let operators = text.split(' ').filter(|word| OPERATORS.contains(word));
        assert_eq!(operators.count(), 0, "each has its schema");
        assert!(text.contains("OPERATOR(pg_catalog.=)") && text.matches("'s', CASE").count() == 1);
        assert!(text.contains("SELECT 'i', reset_val") && text.contains("SELECT 'c', pg_catalog.sum"));
        let of_one_node = catalog_question(false);
        assert!(!of_one_node.contains("'s', CASE"));
    }
}

//! The walls of core: which folder may do what. See ARCHITECTURE.md, "The rooms of core".

use std::path::Path;

use crate::tidy::Problem;
use crate::tidy::source::Source;

const CORE: &str = "crates/core/src";
/// Clients of a pool, and servers.
const POOL: &str = "crates/core/src/pool";
/// Where their states are changed.
const MOVES: &str = "crates/core/src/pool/moves";
/// Booleans that a struct may have; with three or more, an enum says what the states are.
const BOOLS_MAX: usize = 2;

/// The walls that this file breaks.
pub(super) fn problems(path: &Path, source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !path.starts_with(CORE) {
        return problems;
    }
    let mut bools: Option<(String, usize)> = None;
    for (number, line) in source.lines() {
        if let Some((owner, room)) = owner(line)
            && !path.starts_with(Path::new(CORE).join(room))
            && path != Path::new(CORE).join(format!("{room}.rs"))
        {
            problems.push(Problem::new(path, number, format!("`impl {owner}` outside of core/src/{room}")));
        }
        let writes = line.contains("client.state = ") || line.contains("server.state = ");
        if writes && path.starts_with(POOL) && !path.starts_with(MOVES) {
            problems.push(Problem::new(path, number, "a state is changed outside of core/src/pool/moves"));
        }
        bools = match (struct_name(line), bools.take()) {
            (Some(name), _) => Some((name.to_owned(), 0)),
            (None, Some(_)) if line.starts_with('}') => None,
            (None, Some((name, count))) => {
                let count = count + usize::from(line.trim_end().ends_with(": bool,"));
                if count == BOOLS_MAX + 1 {
                    let text = format!("struct {name} has more than {BOOLS_MAX} booleans");
                    problems.push(Problem::new(path, number, text));
                }
                Some((name, count))
            }
            (None, None) => None,
        };
    }
    problems
}

/// Whose methods begin on this line, and the room that they belong to.
fn owner(line: &str) -> Option<(&'static str, &'static str)> {
    match line.trim_end().strip_prefix("impl ")?.strip_suffix(" {")? {
        "Pool" => Some(("Pool", "pool")),
        "Worker" => Some(("Worker", "worker")),
        _ => None,
    }
}

fn struct_name(line: &str) -> Option<&str> {
    let words = ["pub(crate) struct ", "pub struct ", "struct "];
    let rest = words.iter().find_map(|word| line.strip_prefix(word))?;
    rest.ends_with('{').then(|| rest.split([' ', '<']).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        problems(Path::new(path), &Source::new(text)).len()
    }

    #[test]
    fn methods_stand_in_their_room() {
        assert_eq!(found("crates/core/src/worker/a.rs", "impl Pool {\n"), 1);
        assert_eq!(found("crates/core/src/pool/a.rs", "impl Pool {\n"), 0);
        assert_eq!(found("crates/core/src/pool.rs", "impl Pool {\n"), 0);
        assert_eq!(found("crates/core/src/pool/a.rs", "impl Worker {\n"), 1);
        assert_eq!(found("crates/net/src/a.rs", "impl Worker {\n"), 0);
    }

    #[test]
    fn states_change_in_moves() {
        let text = "client.state = ClientState::Idle;\n";
        assert_eq!(found("crates/core/src/pool/relay/a.rs", text), 1);
        assert_eq!(found("crates/core/src/pool/moves/client.rs", text), 0);
    }

    #[test]
    fn a_struct_has_two_booleans() {
        let text = "struct A {\n    a: bool,\n    b: bool,\n    c: bool,\n    d: bool,\n}\n";
        assert_eq!(found("crates/core/src/a.rs", text), 1);
        assert_eq!(found("crates/core/src/a.rs", "struct A {\n    a: bool,\n    b: bool,\n}\n"), 0);
    }
}

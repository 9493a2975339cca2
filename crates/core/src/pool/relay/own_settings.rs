//! The settings under which pgweir's own questions run. A question runs in the session of a client, or of a new connection: the client,
//! its role and its database decide on settings there. None of these may change what a question answers, or how long it takes:
//! `statement_timeout` would end it, a serializable transaction may wait for others, and PostgreSQL compiles an expensive plan
//! by JIT, for seconds.
//!
//! So the text of a question begins with settings of its own. PostgreSQL runs the statements of one Query message in one transaction
//! (since version 10) and takes SET LOCAL back at its end, whether or not the question fails. This file must not set anything
//! that outlasts the message.

/// The first version in which the statements of a Query message are a transaction block, so that SET LOCAL is not refused there.
const BLOCK_SINCE: u16 = 10;

/// A serializable transaction that is read-only and deferrable waits until no other one can disturb it; and a standby refuses to begin a
/// serializable one.
pub(crate) const ISOLATION: &[u8] = b"SET TRANSACTION ISOLATION LEVEL READ COMMITTED;";

/// A setting, its value for questions, and the first version of PostgreSQL that has it.
type Own = (&'static str, &'static str, u16);

/// Settings of every question. `SHOW` tells the session's own values ahead of that, if the question asks for them.
const EACH: [Own; 4] = [
    ("statement_timeout", "0", 0),
    ("lock_timeout", "0", 0),
    ("jit", "off", 11),
    ("transaction_timeout", "0", 17),
];

/// Settings of questions that read much of the catalog: PostgreSQL's defaults of what decides on a plan. And no messages: with
/// `debug_print_plan` PostgreSQL sends the plan of such a question, which is larger than any message that pgweir takes.
const PLANS: [Own; 25] = [
    ("client_min_messages", "error", 0),
    ("enable_bitmapscan", "on", 0),
    ("enable_hashagg", "on", 0),
    ("enable_hashjoin", "on", 0),
    ("enable_incremental_sort", "on", 13),
    ("enable_indexonlyscan", "on", 0),
    ("enable_indexscan", "on", 0),
    ("enable_material", "on", 0),
    ("enable_memoize", "on", 14),
    ("enable_mergejoin", "on", 0),
    ("enable_nestloop", "on", 0),
    ("enable_seqscan", "on", 0),
    ("enable_sort", "on", 0),
    ("seq_page_cost", "1", 0),
    ("random_page_cost", "4", 0),
    ("cpu_tuple_cost", "0.01", 0),
    ("cpu_index_tuple_cost", "0.005", 0),
    ("cpu_operator_cost", "0.0025", 0),
    ("effective_cache_size", "'4GB'", 0),
    ("work_mem", "'64MB'", 0),
    ("from_collapse_limit", "8", 0),
    ("join_collapse_limit", "8", 0),
    ("geqo", "on", 0),
    ("geqo_threshold", "12", 0),
    ("max_parallel_workers_per_gather", "0", 0),
];

/// The kind of a question, as far as its settings depend on it.
#[derive(Clone, Copy)]
pub(crate) enum Asks<'a> {
    /// A question that asks for the values of these settings, among other things. The question does not set them.
    Values(&'a [Box<[u8]>]),
    /// A question that asks for all settings of the session. The question begins with `SHOW` of those that it sets itself.
    Session,
    /// A question that reads neither settings nor much of the catalog.
    Little,
    /// A question that reads much of the catalog.
    Catalog,
}

/// Returns a question for a server of this version, with the settings that it needs ahead of it.
pub(crate) fn question(version: u16, asks: Asks<'_>, text: &[u8]) -> Vec<u8> {
    let mut question = Vec::with_capacity(text.len() + 1024);
    begin_question(&mut question, version, asks);
    question.extend_from_slice(text);
    question
}

/// Returns the question itself, without the settings ahead of it: for tools that read what is sent to servers.
#[must_use]
pub fn question_in(text: &str) -> &str {
    let Some(mut rest) = text.strip_prefix("SET TRANSACTION ISOLATION LEVEL READ COMMITTED;") else {
        return text;
    };
    let is_own = |name: &str| EACH.iter().chain(&PLANS).any(|own| own.0 == name);
    while let Some((statement, behind)) = rest.split_once(';') {
        let name = statement
            .strip_prefix("SHOW ")
            .or_else(|| Some(statement.strip_prefix("SET LOCAL ")?.split_once('=')?.0));
        if !name.is_some_and(is_own) {
            break;
        }
        rest = behind;
    }
    rest
}

/// Writes the statements that go ahead of a question in the same Query message.
fn begin_question(out: &mut Vec<u8>, version: u16, asks: Asks<'_>) {
    if version < BLOCK_SINCE {
        return;
    }
    let of_version = |own: &&Own| own.2 <= version;
    out.extend_from_slice(ISOLATION);
    if let Asks::Session = asks {
        for (name, _, _) in EACH.iter().filter(of_version) {
            out.extend_from_slice(format!("SHOW {name};").as_bytes());
        }
    }
    let is_asked = |name: &str| match asks {
        Asks::Values(names) => names.iter().any(|asked| asked.eq_ignore_ascii_case(name.as_bytes())),
        _ => false,
    };
    for own in EACH.iter().filter(of_version).filter(|own| !is_asked(own.0)) {
        set_local(out, own);
    }
    if let Asks::Catalog = asks {
        plan_as_usual(out, version);
    }
}

/// Writes the settings for statements that read much of the catalog, which follow in the same Query message.
pub(crate) fn plan_as_usual(out: &mut Vec<u8>, version: u16) {
    if version >= BLOCK_SINCE {
        PLANS.iter().filter(|own| own.2 <= version).for_each(|own| set_local(out, own));
    }
}

fn set_local(out: &mut Vec<u8>, (name, value, _): &Own) {
    out.extend_from_slice(format!("SET LOCAL {name}={value};").as_bytes());
}

/// Returns the session's own value of a setting that the question has set, as `SHOW` told it; `None` if the session has not set it. `reset`
/// is the value that RESET goes back to, in PostgreSQL's base unit.
pub(crate) fn unmask<'a>(shown: &'a [u8], reset: Option<&[u8]>) -> Option<&'a [u8]> {
    let is_reset = match (milliseconds(shown), reset) {
        (Some(own), Some(reset)) => milliseconds(reset) == Some(own),
        (None, Some(reset)) => shown == reset,
        (_, None) => false,
    };
    (!is_reset).then_some(shown)
}

/// Returns the place of a setting among the values that `SHOW` tells.
pub(crate) fn place_of_masked(name: &[u8]) -> Option<usize> {
    EACH.iter().position(|own| own.0.as_bytes() == name)
}

/// Returns the number of milliseconds of a time as PostgreSQL shows it: `0`, `500ms`, `1min`, `1d`.
fn milliseconds(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let factor = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Returns the major version in a value of `server_version`: `15.4 (Debian 15.4-1)`, `18beta1`.
pub(crate) fn major_version(value: &[u8]) -> u16 {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).take(4);
    digits.fold(0, |number, digit| number * 10 + u16::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::session::audit::EVERYTHING;

    fn begin(version: u16, asks: Asks<'_>) -> String {
        let mut out = Vec::new();
        begin_question(&mut out, version, asks);
        String::from_utf8(out).expect("a text")
    }

    #[test]
    fn only_what_a_version_has_is_set() {
        assert_eq!(begin(0, Asks::Little), "");
        assert_eq!(begin(9, Asks::Catalog), "");
        assert!(!begin(10, Asks::Session).contains("jit"));
        assert!(begin(16, Asks::Little).ends_with("SET LOCAL jit=off;"));
        assert!(begin(17, Asks::Little).ends_with("SET LOCAL transaction_timeout=0;"));
        assert!(
            !begin(13, Asks::Catalog).contains("memoize") && begin(14, Asks::Catalog).contains("memoize")
        );
    }

    #[test]
    fn what_is_asked_for_is_not_set() {
        let names: Vec<Box<[u8]>> = vec![b"JIT"[..].into(), b"work_mem"[..].into()];
        let text = begin(18, Asks::Values(&names));
        assert!(!text.contains("jit") && text.contains("SET LOCAL lock_timeout=0;"), "{text}");
    }

    #[test]
    fn the_values_that_are_set_are_shown_before_in_their_order() {
        let text = begin(18, Asks::Session);
        let shows: Vec<&str> = text.split(';').filter_map(|part| part.strip_prefix("SHOW ")).collect();
        assert_eq!(shows, EACH.map(|own| own.0));
        assert!(text.find("SET LOCAL") > text.rfind("SHOW "));
        let places = shows.iter().map(|name| place_of_masked(name.as_bytes()));
        assert!(places.eq((0..4).map(Some)));
        let masked = EACH.map(|own| own.0).join(",");
        assert!(String::from_utf8_lossy(EVERYTHING).contains(&format!("'{{{masked}}}'")));
    }

    #[test]
    fn a_value_that_reset_goes_back_to_is_not_the_sessions() {
        for (shown, reset, is_own) in [
            ("0", "0", false),
            ("5s", "5000", false),
            ("1min", "60000", false),
            ("1ms", "0", true),
            ("1d", "86400000", false),
            ("5s", "0", true),
            ("on", "on", false),
            ("off", "on", true),
        ] {
            assert_eq!(unmask(shown.as_bytes(), Some(reset.as_bytes())).is_some(), is_own, "{shown} {reset}");
        }
    }

    #[test]
    fn versions_are_read() {
        for (value, version) in [("15.4 (Debian)", 15), ("18beta1", 18), ("9.6.24", 9), ("", 0), ("x", 0)] {
            assert_eq!(major_version(value.as_bytes()), version);
        }
    }
}

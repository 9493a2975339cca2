//! The parts of pgpool.conf for reads from standbys: whether they run there, the share of each node, the lag
//! that a standby may have, and the clients that are routed elsewhere.
//!
//! pgpool's preference lists are for statements that only read, but a line of `[routes]` is for all
//! statements of a client. So only clients that use the primary get a line; for the others the administrator
//! has to know whether they write.

use crate::dialect::{self, Given, Takes};
use crate::kinds::Kind;
use crate::plan::{Cluster, Line};
use crate::reader::Reader;
use crate::tree::Table;

/// The preference lists, in pgpool's order of precedence, each with its key in `[routes]`.
const LISTS: [(&str, &str); 3] = [
    ("app_name_redirect_preference_list", "application_name"),
    ("database_redirect_preference_list", "database"),
    ("user_redirect_preference_list", "user"),
];

/// The lists of names, each with the setting that it becomes.
const NAME_LISTS: [(&str, &str); 5] = [
    ("read_only_function_list", "read_functions"),
    ("white_function_list", "read_functions"),
    ("write_function_list", "write_functions"),
    ("black_function_list", "write_functions"),
    ("primary_routing_query_pattern_list", "primary_names"),
];

/// Characters that mean more to a shell than letters of a word.
const OF_SHELL: [char; 16] =
    ['\'', '"', '\\', '$', '`', '|', '&', ';', '<', '>', '(', ')', '*', '?', '~', '#'];

/// The number below which a limit of the lag without a unit is read as seconds.
const SECONDS_BELOW: u64 = 1000;

/// The maximum of `weight`.
const WEIGHT_MAX: f64 = 1000.0;

/// Writes the settings of the cluster, and the lines of `[routes]`.
pub(super) fn reads(table: &Table, cluster: &mut Cluster, reader: &mut Reader<'_, '_>) {
    let bytes = table.text("delay_threshold").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    if bytes > 0 {
        cluster.options.insert("lag_limit_bytes", bytes.min(i32::MAX.unsigned_abs().into()).to_string());
    }
    limit_by_time(table, cluster, reader);
    lag_command(table, cluster, reader);
    for (key, option, value) in [
        ("prefer_lower_delay_standby", "prefer_lower_lag", "1"),
        ("statement_level_load_balance", "balance", "statement"),
    ] {
        if table.text(key).is_some_and(|text| dialect::flag(Kind::Pgpool, text) == Ok(true)) {
            cluster.options.insert(option, value.to_owned());
        }
    }
    if table.text("load_balance_mode").is_none_or(|text| dialect::flag(Kind::Pgpool, text) == Ok(true)) {
        balance(table, cluster, reader);
    }
    for (key, subject) in LISTS {
        preferences(table, key, subject, cluster, reader);
    }
}

/// Sets the maximum lag. A number without a unit is seconds or milliseconds, depending on pgpool's version.
fn limit_by_time(table: &Table, cluster: &mut Cluster, reader: &mut Reader<'_, '_>) {
    let key = "delay_threshold_by_time";
    let Some((node, text)) = table.get(key).and_then(|node| Some((node, node.text()?))) else { return };
    let Ok(Given::TimeMs(ms)) = dialect::understand_text(Takes::Seconds, Kind::Pgpool, text) else { return };
    if ms == 0 {
        return;
    }
    let alone = text.trim().parse::<u64>().ok();
    let ms =
        alone.filter(|number| *number >= SECONDS_BELOW).unwrap_or(ms).min(i32::MAX.unsigned_abs().into());
    cluster.options.insert("lag_limit_ms", ms.to_string());
    if let Some(number) = alone {
        let why = format!(
            "pgpool takes a number without a unit as seconds, or as milliseconds in later versions; {number} was taken for {ms} ms \
             (`lag_limit_ms`)"
        );
        reader.differs(node.line, key, &why);
    }
}

/// Sets the program that prints the lag, which pgpool runs once for all standbys, with a shell.
fn lag_command(table: &Table, cluster: &mut Cluster, reader: &mut Reader<'_, '_>) {
    let key = "replication_delay_source_cmd";
    let Some(command) = table.text(key).map(str::trim).filter(|command| !command.is_empty()) else { return };
    let line = table.get(key).map_or(0, |node| node.line);
    if command.contains(OF_SHELL) {
        let why = "pgweir runs `lag_command` without a shell: put the command into a script, and name that";
        return reader.missing(line, key, why);
    }
    cluster.options.insert("lag_command", command.to_owned());
    let timeout = table.text("replication_delay_source_timeout");
    let timeout = timeout.and_then(|text| dialect::understand_text(Takes::Seconds, Kind::Pgpool, text).ok());
    if let Some(Given::TimeMs(ms)) = timeout {
        let seconds = ms.div_ceil(1000).clamp(1, i32::MAX.unsigned_abs().into());
        cluster.options.insert("lag_command_timeout", seconds.to_string());
    }
    let why = "pgpool runs it once for all standbys, pgweir once for each, with the `host:port` of that one: see that it prints one number \
               then";
    reader.differs(line, key, why);
}

/// Lets statements that only read run on standbys.
fn balance(table: &Table, cluster: &mut Cluster, reader: &mut Reader<'_, '_>) {
    let key = "load_balance_mode";
    cluster.options.insert("route", "auto".to_owned());
    // pgpool-II, too, sends the reads of a transaction to a standby until the transaction changes something.
    cluster.options.insert("begin_undeclared", "first".to_owned());
    if reader.pool_mode().is_none_or(|mode| mode == "session") {
        let why = "`route=auto` sends reads to standbys in transaction pooling. The imported `pool_mode = session` keeps them at the primary: \
                   import with --pool-mode=transaction, or set `pool_mode = transaction`";
        reader.differs(table.get(key).map_or(0, |node| node.line), key, why);
    }
    for (key, option) in NAME_LISTS {
        let separator = if option == "primary_names" { ';' } else { ',' };
        names(table, (key, option), separator, cluster, reader);
    }
}

/// Turns lists of expressions into names for pgweir.
fn names(
    table: &Table,
    (key, option): (&str, &'static str),
    separator: char,
    cluster: &mut Cluster,
    reader: &mut Reader<'_, '_>,
) {
    let Some(node) = table.get(key) else { return };
    let given = table.text(key).unwrap_or_default();
    let mut names: Vec<String> = cluster.options.get(option).into_iter().cloned().collect();
    for expression in given.split(separator).map(str::trim).filter(|expression| !expression.is_empty()) {
        let name = match option {
            // pgpool searches the expression in the text of the statement.
            "primary_names" => anywhere(expression),
            _ => star_pattern(expression),
        };
        match name.filter(|name| {
            !name.trim_end_matches('*').is_empty() && !name.trim_end_matches('*').contains('*')
        }) {
            Some(name) => names.push(name),
            None => {
                let why = format!(
                    "\"{expression}\" is a regular expression; `{option}` has names, with `*` at the end for any rest"
                );
                reader.missing(node.line, key, &why);
            }
        }
    }
    if !names.is_empty() {
        cluster.options.insert(option, names.join(","));
    }
}

/// Returns the name that an expression finds anywhere in a statement: `.*name.*`.
fn anywhere(expression: &str) -> Option<String> {
    let rest = expression.trim_start_matches('^').trim_end_matches('$');
    let name = rest.strip_prefix(".*")?.strip_suffix(".*")?;
    star_pattern(name).filter(|name| !name.contains('*')).map(|name| format!("{name}*"))
}

/// Returns weights for pgweir: whole numbers unchanged, others as thousandths of the largest.
pub(super) fn weights(given: &[Option<f64>]) -> Vec<u32> {
    let weights = given.iter().map(|weight| weight.unwrap_or(1.0).max(0.0));
    let largest = weights.clone().fold(0.0, f64::max);
    let is_plain = largest <= WEIGHT_MAX && weights.clone().all(|weight| weight.fract() == 0.0);
    let scaled =
        |weight: f64| if is_plain { weight } else { (weight / largest * WEIGHT_MAX).round().max(1.0) };
    let whole = |weight: f64| format!("{:.0}", if weight > 0.0 { scaled(weight) } else { 0.0 });
    weights.map(|weight| whole(weight).parse().unwrap_or(1)).collect()
}

/// Reads `name:node(ratio),...`.
fn preferences(
    table: &Table,
    key: &str,
    subject: &'static str,
    cluster: &Cluster,
    reader: &mut Reader<'_, '_>,
) {
    let Some(node) = table.get(key) else { return };
    for entry in
        table.text(key).unwrap_or_default().split(',').map(str::trim).filter(|entry| !entry.is_empty())
    {
        let Some((pattern, target)) = entry.rsplit_once(':') else {
            reader.missing(node.line, key, &format!("\"{entry}\" has no node"));
            continue;
        };
        let (target, ratio) = match target.split_once('(') {
            Some((target, ratio)) => (target, ratio.trim_end_matches(')').parse().unwrap_or(1.0)),
            None => (target, 1.0),
        };
        let Some(pattern) = star_pattern(pattern) else {
            let why =
                format!("\"{pattern}\" is a regular expression; a line of `[routes]` has `*` for any text");
            reader.missing(node.line, key, &why);
            continue;
        };
        let percent: u32 = format!("{:.0}", f64::clamp(ratio, 0.0, 1.0) * 100.0).parse().unwrap_or(100);
        let (what, value) = match target.parse().ok().and_then(|number: usize| cluster.nodes.get(number)) {
            Some(node) => ("node", node.clone()),
            None if target == "primary" => ("route", "primary".to_owned()),
            None => ("route", "prefer-standby".to_owned()),
        };
        let mut pairs = vec![(subject, pattern), (what, value)];
        if percent < 100 {
            pairs.push(("percent", percent.to_string()));
        }
        if target == "primary" {
            let name = format!("{subject}{}", reader.plan.routes.len() + 1);
            reader.plan.routes.push(Line { name, pairs });
            continue;
        }
        let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let why = format!(
            "pgpool sends only reads of \"{entry}\" there, and a line of `[routes]` all statements. If these clients only read, add \
             `{} = {}` to `[routes]`",
            subject,
            pairs.join(" ")
        );
        reader.missing(node.line, key, &why);
    }
}

/// Returns a pattern for a plain name, or for a regular expression that a `*` can replace.
fn star_pattern(expression: &str) -> Option<String> {
    let text = expression.trim().trim_start_matches('^').trim_end_matches('$').replace(".*", "*");
    let is_plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '*');
    (!text.is_empty() && text.chars().all(is_plain)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_whole_numbers() {
        assert_eq!(weights(&[Some(1.0), None, Some(0.0), Some(3.0)]), [1, 1, 0, 3]);
        assert_eq!(weights(&[Some(0.5), Some(0.25), Some(0.0)]), [1000, 500, 0]);
        assert_eq!(weights(&[Some(0.0), Some(0.0)]), [0, 0]);
        assert_eq!(weights(&[Some(2000.0), Some(1.0)]), [1000, 1]);
    }

    #[test]
    fn expressions_that_are_no_pattern_are_left_to_a_human() {
        assert_eq!(star_pattern("^report_.*$").as_deref(), Some("report_*"));
        assert_eq!(star_pattern("app").as_deref(), Some("app"));
        assert_eq!(star_pattern("mydb[0-4]"), None);
        assert_eq!(star_pattern("^$"), None);
        assert_eq!(anywhere(".*accounts.*").as_deref(), Some("accounts*"));
        assert_eq!(anywhere("accounts"), None);
        assert_eq!(anywhere(".*SELECT .* FROM accounts.*"), None);
    }
}
